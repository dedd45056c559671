"""What lies about after a fire: charred boards, flakes, heaps of ash; more the worse the fire."""

from __future__ import annotations

import dataclasses

import numpy as np

from trace_jax.synthesis.procedural import patterns as pt
from trace_jax.synthesis.procedural import shapes
from trace_jax.synthesis.procedural.palette import MATERIAL_NUMBER
from trace_jax.synthesis.procedural.raster import SOLID
from trace_jax.synthesis.procedural.render import Body
from trace_jax.synthesis.procedural.scenes.room import Room, hotness
from trace_jax.synthesis.procedural.shapes import NO_LABEL
from trace_jax.synthesis.procedural.undamaged import SHARD_SCALE

_PIECES = (8, 22, 46, 76, 110)  # by level; a level has all of the one before
# Every so many pieces one is a heap, and one a fallen beam.
_HEAP, _BEAM = 11, 17
_LOOKS = (
    ("wood", (0.03, 0.028, 0.026)),
    ("wood", (0.012, 0.011, 0.011)),
    ("ceramic", (0.20, 0.19, 0.18)),
    ("ceramic", (0.085, 0.08, 0.075)),
)
_ASH = 3  # the heaps' row of _LOOKS


@dataclasses.dataclass(frozen=True)
class Piece:
    """One piece: points [V, 3] in the world, faces [F, 3], which of _LOOKS."""

    points: np.ndarray
    faces: np.ndarray
    row: int


def scatter(room: Room, rng: np.random.Generator) -> list[Piece]:
    """Draws all pieces, those of the mildest fire first; most lie near the origin and the walls."""
    pieces: list[Piece] = []
    while len(pieces) < _PIECES[-1]:
        x = rng.uniform(-0.48, 0.48) * room.width
        y = rng.uniform(-0.48, 0.48) * room.depth
        near = float(hotness(room, np.array([[x, y, 0.0]]))[0])
        if rng.random() > 0.25 + near:
            continue
        number = len(pieces) + 1
        if number % _HEAP == 0:
            pieces.append(_heap(x, y, rng))
        elif number % _BEAM == 0:
            pieces.append(_beam(room, x, rng))
        else:
            pieces.append(_chip(x, y, rng))
    return pieces


def _chip(x: float, y: float, rng: np.random.Generator) -> Piece:
    size = (
        (rng.uniform(0.15, 0.5), rng.uniform(0.02, 0.05), rng.uniform(0.01, 0.03))
        if rng.random() < 0.25
        else (rng.uniform(0.02, 0.10), rng.uniform(0.02, 0.09), rng.uniform(0.01, 0.05))
    )
    box = shapes.box(size, 0.0, float(rng.uniform(0.6, 1.0)))
    yaw, tilt = rng.uniform(0, np.pi), rng.uniform(-0.25, 0.25)
    points = box.points @ (_about_z(yaw) @ _about_y(tilt)).T
    points[:, 2] -= points[:, 2].min()
    return Piece(points + np.array([x, y, 0.0]), box.faces, int(rng.integers(3)))


def _heap(x: float, y: float, rng: np.random.Generator) -> Piece:
    r = float(rng.uniform(0.10, 0.26))
    tall = r * float(rng.uniform(0.18, 0.32))
    dome = shapes.loft([[0.0, r], [0.55 * tall, 0.75 * r], [0.9 * tall, 0.35 * r], [tall, 0.0]])
    rough = 1 + 0.22 * np.sin(dome.points @ rng.normal(0, 28, (3, 4))).sum(1) / 2
    points = dome.points * rough[:, None] * np.array([1.0, rng.uniform(0.6, 1.0), 1.0])
    points[:, 2] = np.maximum(points[:, 2], 0.002)
    return Piece(
        points @ _about_z(rng.uniform(0, np.pi)).T + np.array([x, y, 0.0]), dome.faces, _ASH
    )


def _beam(room: Room, x: float, rng: np.random.Generator) -> Piece:
    """A board that has come down and leans against the wall, or has slid to the floor."""
    long = float(rng.uniform(0.8, 1.5))
    wide, thick = rng.uniform(0.06, 0.11), rng.uniform(0.02, 0.05)
    box = shapes.box((long, wide, thick), 0.0, 1.0)
    tilt, yaw = rng.uniform(0.1, 1.1), np.pi / 2 + rng.uniform(-0.7, 0.7)
    points = box.points @ (_about_z(yaw) @ _about_y(-tilt)).T
    points[:, 2] -= points[:, 2].min()
    points += np.array([x, room.depth / 2 - 0.03 - points[:, 1].max(), 0.0])
    return Piece(points, box.faces, int(rng.integers(2)))


def _about_z(angle: float) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])


def _about_y(angle: float) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])


def body(pieces: list[Piece], level: int, opacity: float, seed: int) -> Body:
    """The pieces of a level as one body."""
    shown = pieces[: _PIECES[level]]
    counts = np.cumsum([0, *(len(p.points) for p in shown)])
    points = np.concatenate([p.points for p in shown]).astype(np.float32)
    faces = np.concatenate([p.faces + c for p, c in zip(shown, counts, strict=False)])
    total = len(points)
    table = np.zeros((len(_LOOKS), pt.COLUMNS))
    for row, (material, colour) in enumerate(_LOOKS):
        table[row, pt.MATERIAL] = MATERIAL_NUMBER[material]
        table[row, pt.PATTERN] = pt.NUMBER["speckle"]
        table[row, pt.C1 : pt.C1 + 3] = colour
        table[row, pt.C2 : pt.C2 + 3] = np.array(colour) * 0.4
        table[row, pt.C3 : pt.C3 + 3] = np.minimum(np.array(colour) * 2 + 0.02, 0.5)
        table[row, pt.SCALE], table[row, pt.P1], table[row, pt.ALPHA] = 20.0, 0.5, 1.0
        table[row, pt.SEED], table[row, pt.SHINE] = seed, 8.0
    return Body(
        points=points,
        rest=points,
        uv=points[:, :2].copy(),
        st=np.full((total, 2), NO_LABEL, np.float32),
        faces=faces.astype(np.int32),
        weld=np.arange(total),
        finish=np.repeat([p.row for p in shown], [len(p.points) for p in shown]).astype(np.int32),
        table=table,
        kinds=np.full(len(faces), SOLID, np.int64),
        keep=np.ones(len(faces), bool),
        state=np.tile(np.array([0.0, -9.0, -9.0, 9.0], np.float32), (total, 1)),
        opacity=opacity,
        shard_scale=SHARD_SCALE,
        seed=seed,
    )
