"""The place itself: floor, walls or an open yard, fixed props, and the marks a fire leaves on them.

Units are metres; x to the right, y away from the camera, z up. The fire starts at one spot; hot gas
rises, so what is high up and near it is hotter and blacker, and a V opens upwards on the wall.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from trace_jax.synthesis.procedural.noise import fractal_at
from trace_jax.synthesis.procedural.render import Body
from trace_jax.synthesis.procedural.scenes.kit import SKY, Block, Kit, Top
from trace_jax.synthesis.procedural.scenes.places import places
from trace_jax.synthesis.procedural.scenes.props import furnish
from trace_jax.synthesis.procedural.undamaged import SHARD_SCALE

# How hot the hottest place of a wall is, and how far soot reaches, at L0..L4.
_HEAT = (0.34, 0.50, 0.68, 0.88, 1.08)
_SOOT = (-0.20, 0.0, 0.22, 0.46, 0.70)
_CLEAR = 0.62  # hotness that soot just reaches where its level adds nothing
_FLAKY = 0.22  # how far within the film the crusted soot begins
_THICKEST = (0.50, 0.60, 0.70, 0.78, 0.84)
_CLEAN, _UNCUT = -9.0, 9.0
# The place reaches beyond what things stand on: towards the camera, and outdoors all around.
_FRONT, _FAR = 3.0, 9.0


@dataclasses.dataclass(frozen=True)
class Room:
    """One place.

    Attributes:
      width, depth, height: metres; outdoors the height of what bounds it.
      outdoor: under the open sky.
      origin: where the fire started, on the floor [3].
      points, uv, st, faces, finish, table, cut: geometry as in Body.
      vanishes: [V] heat at which a point is gone. burns: [V] which points take soot (the sky does
        not).
      tops: what things may stand on. blocks: what is taken up already.
      seed: of its noise.
    """

    width: float
    depth: float
    height: float
    outdoor: bool
    origin: np.ndarray
    points: np.ndarray
    uv: np.ndarray
    st: np.ndarray
    faces: np.ndarray
    finish: np.ndarray
    table: np.ndarray
    vanishes: np.ndarray
    cut: np.ndarray
    burns: np.ndarray
    tops: tuple[Top, ...]
    blocks: tuple[Block, ...]
    seed: int


def make_room(scene_type: str, environment: str, rng: np.random.Generator) -> Room:
    """Draws a place of a scene type."""
    outdoor = environment == "outdoor"
    large = environment in ("commercial", "institutional")
    width = float(rng.uniform(2.9, 3.6) + (0.4 if large else 0.0) + (0.9 if outdoor else 0.0))
    depth = float(rng.uniform(2.1, 2.7) + (0.2 if large else 0.0) + (0.6 if outdoor else 0.0))
    height = float(rng.uniform(2.3, 2.6))
    place = places()[scene_type]
    floor, wall = (str(rng.choice(list(names))) for names in (place.floor, place.wall))
    if outdoor:
        height = {"brick": 3.4, "plaster": 3.4, "leaves": 2.2}.get(wall, rng.uniform(1.3, 1.7))
    kit = Kit(rng)
    w, back, front = width / 2, depth / 2, -depth / 2 - _FRONT
    far = _FAR if outdoor else 0.0
    ground, bound = kit.finish(floor), kit.finish(wall)
    kit.sheet((-w - far, front, 0), (2 * (w + far), 0, 0), (0, back - front, 0), ground)
    kit.sheet(
        (-w - far, back, 0), (2 * (w + far), 0, 0), (0, 0, height), bound, frail=wall == "fence"
    )
    if outdoor:
        sky = kit.finish(SKY)
        kit.sheet((-30, back + far, -2), (60, 0, 0), (0, 0, 26), sky, burns=False)
    else:
        kit.sheet((-w, front, 0), (0, back - front, 0), (0, 0, height), bound)
        kit.sheet((w, back, 0), (0, front - back, 0), (0, 0, height), bound)
        ceiling = kit.finish(place.ceiling)
        kit.sheet((-w, back, height), (2 * w, 0, 0), (0, front - back, 0), ceiling)
        skirting = kit.finish("lacquer")
        kit.box((0, back - 0.01), (2 * w, 0.02, 0.09), 0.0, skirting)
    furnish(kit, place.props, width, depth, height)
    return Room(
        width=width,
        depth=depth,
        height=height,
        outdoor=outdoor,
        origin=np.array([rng.uniform(-0.75, 0.75) * w, back - rng.uniform(0.0, 0.45) * depth, 0.2]),
        tops=tuple(kit.tops),
        blocks=tuple(kit.blocks),
        seed=int(rng.integers(1, 1 << 20)),
        **kit.gathered(),
    )


def hotness(room: Room, points: np.ndarray) -> np.ndarray:
    """How much of the fire reached points [V, 3], 0 to about 1.3, whatever the level."""
    away = points - room.origin
    rise = np.clip(points[:, 2] / min(room.height, 2.4), 0, 1.2)
    # The plume widens with height: a V on the wall behind it, an inverted cone in the room.
    side = np.linalg.norm(away[:, :2], axis=1)
    plume = np.exp(-((np.maximum(side - 0.42 * points[:, 2], 0) / 0.85) ** 2))
    spread = np.exp(-side / (0.55 * max(room.width, room.depth)))
    layer = 0.25 if room.outdoor else 1.0
    q = (points / 2.6).astype(np.float32)
    rough = fractal_at(q, 1.4, room.seed, 3)
    return (
        0.55 * plume
        + 0.25 * spread
        + 0.46 * layer * rise**1.6 * (0.45 + 0.55 * spread)
        + (0.15 * rough)
    )


def film(room: Room, level: int | None) -> np.ndarray:
    """How much smoke has darkened the place's points [V], 0-1: thin at its edge, thick inside."""
    if level is None:
        return np.zeros(len(room.points))
    reach = hotness(room, room.points) - _CLEAR + _SOOT[level]
    t = np.clip((reach + 0.22) / 0.62, 0, 1)
    return np.where(room.burns, _THICKEST[level] * t * t * (3 - 2 * t), 0.0)


def room_body(room: Room, level: int | None, opacity: float) -> Body:
    """The place before the fire (None) or after it (0..4)."""
    count = len(room.points)
    state = np.tile(np.array([0.0, _CLEAN, _CLEAN, _UNCUT], np.float32), (count, 1))
    if level is not None:
        hot = hotness(room, room.points)
        heat = np.clip(hot * _HEAT[level], 1e-3, 1.3)
        soot = hot - _CLEAR + _SOOT[level] - _FLAKY
        burnt = np.column_stack([heat, heat - 0.66, soot, room.vanishes - heat])
        state = np.where(room.burns[:, None], burnt, state).astype(np.float32)
    return Body(
        points=room.points.astype(np.float32),
        rest=room.points.astype(np.float32),
        uv=room.uv.astype(np.float32),
        st=room.st.astype(np.float32),
        faces=room.faces.astype(np.int32),
        weld=np.arange(count),
        finish=room.finish,
        table=room.table,
        kinds=room.cut,
        keep=np.ones(len(room.faces), bool),
        state=state,
        opacity=opacity,
        shard_scale=SHARD_SCALE,
        seed=room.seed,
    )
