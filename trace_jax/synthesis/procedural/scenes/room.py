"""The place itself: floor, walls or an open yard, and the marks a fire leaves on them.

Units are metres; x to the right, y away from the camera, z up. The fire starts at one spot; hot gas
rises, so what is high up and near it is hotter and blacker, and a V opens upwards on the wall.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from trace_jax.synthesis.procedural import patterns as pt
from trace_jax.synthesis.procedural.noise import fractal_at
from trace_jax.synthesis.procedural.palette import Palette
from trace_jax.synthesis.procedural.raster import SOLID
from trace_jax.synthesis.procedural.render import Body
from trace_jax.synthesis.procedural.shapes import NO_LABEL
from trace_jax.synthesis.procedural.undamaged import SHARD_SCALE

# How hot the hottest place of a wall is, and how far soot reaches, at L0..L4.
_HEAT = (0.42, 0.55, 0.72, 0.92, 1.15)
_SOOT = (-0.26, -0.02, 0.20, 0.42, 0.66)
_CELLS = 26  # grid cells along a wall
_CLEAN = -9.0


@dataclasses.dataclass(frozen=True)
class Room:
    """One place.

    Attributes:
      width, depth, height: metres; outdoors the height of what bounds it.
      outdoor: under the open sky.
      origin: where the fire started, on the floor [3].
      points, uv, faces, finish, table, burns: geometry as in Body; `burns` [V] says which vertices
        take soot (the sky does not).
      seed: of its noise.
    """

    width: float
    depth: float
    height: float
    outdoor: bool
    origin: np.ndarray
    points: np.ndarray
    uv: np.ndarray
    faces: np.ndarray
    finish: np.ndarray
    table: np.ndarray
    burns: np.ndarray
    seed: int


def make_room(environment: str, rng: np.random.Generator) -> Room:
    """Draws a place of an environment group."""
    outdoor = environment == "outdoor"
    large = environment in ("commercial", "institutional")
    width = float(rng.uniform(3.0, 3.9) + (0.6 if large else 0.0) + (1.2 if outdoor else 0.0))
    depth = float(rng.uniform(2.2, 3.0) + (0.4 if large else 0.0) + (1.0 if outdoor else 0.0))
    height = float(rng.uniform(1.5, 2.2) if outdoor else rng.uniform(2.4, 2.8))
    palette = Palette(rng, ("cream", "white", "light grey", "tan", "light blue", "lavender"))
    floors = {
        "residential": (("wood", ("plain",), 1.0), ("fabric", ("plain", "checks"), -1.0),
                        ("ceramic", ("checks", "plain"), -1.0)),
        "commercial": (("ceramic", ("checks", "speckle"), -1.0), ("wood", ("plain",), 1.0),
                       ("fabric", ("plain",), -1.0)),
        "institutional": (("plastic", ("plain", "checks"), -1.0),
                          ("ceramic", ("speckle", "checks"), -1.0)),
        "outdoor": (("ceramic", ("speckle",), -1.0), ("ceramic", ("checks",), -1.0)),
    }[environment]  # fmt: skip
    material, kinds, bare = floors[int(rng.integers(len(floors)))]
    slot = "dark" if rng.random() < 0.3 else "second" if rng.random() < 0.2 else "light"
    floor = palette.finish(rng, material, slot, kinds, bare, 0.35)
    wall_kinds = (("plain",), ("plain", "stripes"), ("plain", "checks"))[int(rng.integers(3))]
    wall = palette.finish(rng, "ceramic", "main", wall_kinds, -1.0, 0.4)
    fence = palette.finish(rng, "wood", "main", ("plain",), 0.7, 0.5)
    skirting = palette.finish(rng, "wood", "trim", ("plain",), 0.5, 1.0)
    sky = palette.finish(rng, "ceramic", "light", ("plain",))
    sky_row = sky.row.copy()
    sky_row[pt.C1 : pt.C1 + 3] = np.array([0.50, 0.62, 0.78]) * rng.uniform(0.7, 1.1)
    sky_row[pt.GLOSS] = 0.0
    table = np.stack([floor.row, fence.row if outdoor else wall.row, skirting.row, sky_row])
    table[0, pt.GLOSS] *= 0.4
    table[1, pt.GLOSS] *= 0.25
    for row in (0, 1):
        # Tiles and papers are of shades of one colour; objects are what stands out.
        for other in (pt.C2, pt.C3):
            mixed = 0.72 * table[row, pt.C1 : pt.C1 + 3] + 0.28 * table[row, other : other + 3]
            table[row, other : other + 3] = mixed
    w, back, front = width / 2, depth / 2, -depth / 2 - 3.0
    far = 9.0 if outdoor else 0.0
    sheets = [
        _sheet((-w - far, front, 0), (2 * w + 2 * far, 0, 0), (0, back + far - front, 0), 0),
        _sheet((-w - far, back, 0), (2 * w + 2 * far, 0, 0), (0, 0, height), 1),
    ]
    if not outdoor:
        sheets += [
            _sheet((-w, front, 0), (0, back - front, 0), (0, 0, height), 1),
            _sheet((w, back, 0), (0, front - back, 0), (0, 0, height), 1),
            _sheet((-w, back, height), (2 * w, 0, 0), (0, front - back, 0), 1),
            _sheet((-w, back - 0.015, 0), (2 * w, 0, 0), (0, 0, 0.09), 2),
        ]
    else:
        sheets.append(_sheet((-30, back + far, -2), (60, 0, 0), (0, 0, 30), 3))
    first = np.cumsum([0, *(len(s[0]) for s in sheets)])
    points = np.concatenate([s[0] for s in sheets])
    return Room(
        width=width,
        depth=depth,
        height=height,
        outdoor=outdoor,
        origin=np.array([rng.uniform(-0.8, 0.8) * w, back - rng.uniform(0.0, 0.5) * depth, 0.2]),
        points=points,
        uv=np.concatenate([s[1] for s in sheets]),
        faces=np.concatenate([s[2] + f for s, f in zip(sheets, first, strict=False)]),
        finish=np.concatenate([np.full(len(s[0]), s[3]) for s in sheets]).astype(np.int32),
        table=table,
        burns=np.concatenate([np.full(len(s[0]), s[3] != 3) for s in sheets]),
        seed=int(rng.integers(1, 1 << 20)),
    )


def hotness(room: Room, points: np.ndarray) -> np.ndarray:
    """How much of the fire reached points [V, 3], 0 to about 1.3, whatever the level."""
    away = points - room.origin
    rise = np.clip(points[:, 2] / room.height, 0, 1.2)
    # The plume widens with height: a V on the wall behind it, an inverted cone in the room.
    side = np.linalg.norm(away[:, :2], axis=1)
    plume = np.exp(-((np.maximum(side - 0.42 * points[:, 2], 0) / 0.9) ** 2))
    spread = np.exp(-side / (0.55 * max(room.width, room.depth)))
    layer = 0.0 if room.outdoor else 1.0
    q = (points / 2.6).astype(np.float32)
    rough = fractal_at(q, 1.4, room.seed, 3)
    return (
        0.55 * plume
        + 0.25 * spread
        + 0.42 * layer * rise**1.6 * (0.4 + 0.6 * spread)
        + (0.16 * rough)
    )


def room_body(room: Room, level: int | None, opacity: float) -> Body:
    """The place before the fire (None) or after it (0..4)."""
    count = len(room.points)
    state = np.tile(np.array([0.0, _CLEAN, _CLEAN, 9.0], np.float32), (count, 1))
    if level is not None:
        hot = hotness(room, room.points)
        heat = np.clip(hot * _HEAT[level], 1e-3, 1.3)
        fail = heat - 0.62
        soot = hot - 0.62 + _SOOT[level]
        burnt = np.column_stack([heat, fail, soot, np.full(count, 9.0)]).astype(np.float32)
        state = np.where(room.burns[:, None], burnt, state)
    return Body(
        points=room.points.astype(np.float32),
        rest=room.points.astype(np.float32),
        uv=room.uv.astype(np.float32),
        st=np.full((count, 2), NO_LABEL, np.float32),
        faces=room.faces.astype(np.int32),
        weld=np.arange(count),
        finish=room.finish,
        table=room.table,
        kinds=np.full(len(room.faces), SOLID, np.int64),
        keep=np.ones(len(room.faces), bool),
        state=state.astype(np.float32),
        opacity=opacity,
        shard_scale=SHARD_SCALE,
        seed=room.seed,
    )


def _sheet(
    corner: tuple[float, ...], along: tuple[float, ...], up: tuple[float, ...], row: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """A flat grid: points, uv in metres, faces, finish row."""
    a, b = np.array(along, float), np.array(up, float)
    columns = max(2, min(60, int(np.linalg.norm(a) / 5.0 * _CELLS)))
    rows = max(2, min(60, int(np.linalg.norm(b) / 5.0 * _CELLS)))
    s, t = np.meshgrid(np.linspace(0, 1, columns + 1), np.linspace(0, 1, rows + 1))
    points = np.array(corner, float) + s.reshape(-1, 1) * a + t.reshape(-1, 1) * b
    uv = np.column_stack([s.ravel() * np.linalg.norm(a), t.ravel() * np.linalg.norm(b)])
    index = np.arange((rows + 1) * (columns + 1)).reshape(rows + 1, columns + 1)
    p, q = index[:-1, :-1].ravel(), index[:-1, 1:].ravel()
    u, v = index[1:, :-1].ravel(), index[1:, 1:].ravel()
    faces = np.concatenate([np.stack([p, q, v], 1), np.stack([p, v, u], 1)])
    return points, uv, faces, row
