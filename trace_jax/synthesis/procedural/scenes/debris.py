"""What lies about after a fire: charred boards and flakes, more of it the worse the fire."""

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

_PIECES = (6, 16, 32, 52, 80)  # by level; a level has all of the one before


@dataclasses.dataclass(frozen=True)
class Piece:
    """One piece: points [V, 3] in the world, faces [F, 3], which finish."""

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
        long = rng.random() < 0.25
        size = (
            (rng.uniform(0.15, 0.5), rng.uniform(0.02, 0.05), rng.uniform(0.01, 0.03))
            if long
            else (rng.uniform(0.02, 0.09), rng.uniform(0.02, 0.08), rng.uniform(0.01, 0.04))
        )
        box = shapes.box(size, 0.0, float(rng.uniform(0.6, 1.0)))
        yaw, tilt = rng.uniform(0, np.pi), rng.uniform(-0.25, 0.25)
        turn = np.array(
            [[np.cos(yaw), -np.sin(yaw), 0], [np.sin(yaw), np.cos(yaw), 0], [0, 0, 1]]
        ) @ np.array([[np.cos(tilt), 0, np.sin(tilt)], [0, 1, 0], [-np.sin(tilt), 0, np.cos(tilt)]])
        points = box.points @ turn.T
        points[:, 2] -= points[:, 2].min()
        pieces.append(Piece(points + np.array([x, y, 0.0]), box.faces, int(rng.integers(3))))
    return pieces


def body(pieces: list[Piece], level: int, opacity: float, seed: int) -> Body:
    """The pieces of a level as one body."""
    shown = pieces[: _PIECES[level]]
    counts = np.cumsum([0, *(len(p.points) for p in shown)])
    points = np.concatenate([p.points for p in shown]).astype(np.float32)
    faces = np.concatenate([p.faces + c for p, c in zip(shown, counts, strict=False)])
    total = len(points)
    table = np.zeros((3, pt.COLUMNS))
    for row, (material, colour) in enumerate(
        (("wood", (0.03, 0.028, 0.026)), ("wood", (0.012, 0.011, 0.011)),
         ("ceramic", (0.20, 0.19, 0.18)))
    ):  # fmt: skip
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
