"""The mound of ash and residue that lost surface leaves in the object's footprint."""

from __future__ import annotations

import dataclasses

import numpy as np

from trace_jax.synthesis.procedural import behaviour
from trace_jax.synthesis.procedural import patterns as pt
from trace_jax.synthesis.procedural.camera import Camera
from trace_jax.synthesis.procedural.mesh import Mesh
from trace_jax.synthesis.procedural.noise import fractal_at
from trace_jax.synthesis.procedural.palette import MATERIAL_NUMBER
from trace_jax.synthesis.procedural.raster import SOLID
from trace_jax.synthesis.procedural.render import Body

_RINGS, _AROUND = 14, 40
_BORDER = 0.035
_LEAST = 0.015


def _long_axis(scatter: np.ndarray) -> np.ndarray:
    """Axes of the mound as columns [2, 2]: along an object that lies long across the floor."""
    values, vectors = np.linalg.eigh(scatter)
    return vectors[:, ::-1] if values[1] > 4 * values[0] else np.eye(2)


def add(
    body: Body, mesh: Mesh, lost: np.ndarray, kind: np.ndarray, camera: Camera, seed: int
) -> Body:
    """Appends a mound to `body` where something has burnt.

    Args:
      lost: [V] pristine area that is gone, as shares of the whole. kind: [V] material numbers.
      camera: the mound stays inside its picture.
    """
    table = behaviour.load()
    left = lost * table.ash[kind]
    volume = float(left.sum())
    if volume < _LEAST:
        return body
    colour = (table.debris[kind] * left[:, None]).sum(0) / volume
    points = mesh.points.astype(np.float64)
    middle = (points[:, :2] * left[:, None]).sum(0) / volume
    away = points[:, :2] - middle
    turn = _long_axis((away * left[:, None]).T @ away / volume)
    spread = np.sqrt(((away @ turn) ** 2 * left[:, None]).sum(0) / volume)
    half = np.clip(1.7 * spread, 0.09 * mesh.diagonal, np.ptp(away @ turn, axis=0).max() / 2)
    reach = 0.62 + 0.38 * min(volume / 0.4, 1.0)
    tall = (0.10 + 0.35 * min(volume, 0.6)) * float(half.min())
    theta = np.linspace(0, 2 * np.pi, _AROUND + 1)[:-1]
    share = np.linspace(0, 1, _RINGS + 1)
    wobble = fractal_at(
        np.column_stack([np.cos(theta), np.sin(theta), np.zeros(_AROUND)]).astype(np.float32),
        3.2, seed + 5000, 3,
    )  # fmt: skip
    edge = (0.80 + 0.34 * wobble)[None, :]
    for _ in range(12):
        grown = reach * share[:, None] * edge
        mound = [half[0] * grown * np.cos(theta), half[1] * grown * np.sin(theta)]
        x, y = middle[:, None, None] + np.einsum("ij,jrk->irk", turn, np.stack(mound))
        rim = np.column_stack([x[-1], y[-1], np.zeros(_AROUND)])
        seen = camera.project(rim)[:, :2]
        if seen.min() > _BORDER and seen.max() < 1 - _BORDER:
            break
        reach *= 0.93
    flat = np.column_stack([x.ravel(), y.ravel(), np.zeros(x.size)])
    q = (flat / mesh.diagonal).astype(np.float32)
    rough = fractal_at(q, 13.0, seed + 5100, 3)
    lumps = fractal_at(q, 5.0, seed + 5200, 2)
    dome = 1 - np.repeat(share, _AROUND) ** 2
    height = tall * dome * np.maximum(0.45 + 0.7 * lumps + 0.5 * rough, 0.0)
    flat[:, 2] = height + 1e-3 * mesh.diagonal * dome
    ring = np.arange(_RINGS)[:, None] * _AROUND
    here, following = np.arange(_AROUND)[None], (np.arange(_AROUND)[None] + 1) % _AROUND
    a, b = (ring + here).ravel(), (ring + following).ravel()
    c, d = a + _AROUND, b + _AROUND
    faces = np.concatenate([np.stack([a, c, d], 1), np.stack([a, d, b], 1)])
    first = len(body.points)
    count = len(flat)
    row = np.zeros(pt.COLUMNS)
    row[pt.MATERIAL], row[pt.PATTERN] = MATERIAL_NUMBER["ceramic"], pt.NUMBER["speckle"]
    row[pt.C1 : pt.C1 + 3] = colour
    row[pt.C2 : pt.C2 + 3] = colour * 0.35
    row[pt.C3 : pt.C3 + 3] = np.minimum(colour * 2.2 + 0.02, 0.6)
    row[pt.SCALE], row[pt.P1], row[pt.ALPHA] = 12.0 / mesh.diagonal, 0.5, 1.0
    row[pt.SEED], row[pt.SHINE] = seed, 8.0
    state = np.tile(np.array([0.0, -9.0, -9.0, 9.0], np.float32), (count, 1))
    return dataclasses.replace(
        body,
        points=np.concatenate([body.points, flat.astype(np.float32)]),
        rest=np.concatenate([body.rest, flat.astype(np.float32)]),
        uv=np.concatenate([body.uv, flat[:, :2].astype(np.float32)]),
        st=np.concatenate([body.st, np.full((count, 2), 9.0, np.float32)]),
        faces=np.concatenate([body.faces, (faces + first).astype(np.int32)]),
        weld=np.concatenate([body.weld, np.arange(first, first + count)]),
        finish=np.concatenate([body.finish, np.full(count, len(body.table), np.int32)]),
        table=np.concatenate([body.table, row[None]]),
        kinds=np.concatenate([body.kinds, np.full(len(faces), SOLID, body.kinds.dtype)]),
        keep=np.concatenate([body.keep, np.ones(len(faces), bool)]),
        state=np.concatenate([body.state, state]),
    )
