"""The assembled object: one vertex soup with everything the fire and the shader need."""

from __future__ import annotations

import dataclasses

import numpy as np
from numba import njit

from trace_jax.synthesis.procedural.palette import Finish


@dataclasses.dataclass(frozen=True)
class Mesh:
    """An object in its own units, standing on z = 0.

    Attributes:
      points: [V, 3] float32.
      uv, st: [V, 2] float32, see shapes.
      faces: [F, 3] int32.
      weld: [V] int64; vertices of one number share a normal.
      piece: [V] int32, which primitive.
      finish: [V] int32, index into `finishes`.
      finishes: one a taxonomy part in use.
      parts: the part name of each finish.
    """

    points: np.ndarray
    uv: np.ndarray
    st: np.ndarray
    faces: np.ndarray
    weld: np.ndarray
    piece: np.ndarray
    finish: np.ndarray
    finishes: tuple[Finish, ...]
    parts: tuple[str, ...]

    @property
    def table(self) -> np.ndarray:
        """The finishes' rows [parts, COLUMNS] float64."""
        return np.stack([finish.row for finish in self.finishes])

    @property
    def materials(self) -> np.ndarray:
        """Material number of every vertex [V]."""
        return self.table[:, 0].astype(np.int64)[self.finish]

    @property
    def diagonal(self) -> float:
        """Diagonal of the bounding box."""
        return float(np.linalg.norm(np.ptp(self.points, axis=0)))


@njit(cache=True)
def face_normal(
    points: np.ndarray, a: int, b: int, c: int
) -> tuple[np.float32, np.float32, np.float32]:
    """Normal of a triangle of vertices, as long as twice its area."""
    ux, uy, uz = (
        points[b, 0] - points[a, 0],
        points[b, 1] - points[a, 1],
        points[b, 2] - points[a, 2],
    )
    vx, vy, vz = (
        points[c, 0] - points[a, 0],
        points[c, 1] - points[a, 1],
        points[c, 2] - points[a, 2],
    )
    return uy * vz - uz * vy, uz * vx - ux * vz, ux * vy - uy * vx


@njit(cache=True)
def vertex_normals(points: np.ndarray, faces: np.ndarray, weld: np.ndarray) -> np.ndarray:
    """Area-weighted unit normals [V, 3], shared within a weld."""
    count = points.shape[0]
    sums = np.zeros((count, 3), np.float32)
    for f in range(faces.shape[0]):
        a, b, c = faces[f, 0], faces[f, 1], faces[f, 2]
        nx, ny, nz = face_normal(points, a, b, c)
        for k in (a, b, c):
            w = weld[k]
            sums[w, 0] += nx
            sums[w, 1] += ny
            sums[w, 2] += nz
    out = np.empty((count, 3), np.float32)
    for v in range(count):
        w = weld[v]
        x, y, z = sums[w, 0], sums[w, 1], sums[w, 2]
        n = np.sqrt(x * x + y * y + z * z)
        if n > 1e-12:
            out[v, 0], out[v, 1], out[v, 2] = x / n, y / n, z / n
        else:
            out[v, 0], out[v, 1], out[v, 2] = 0.0, 0.0, 1.0
    return out


@njit(cache=True)
def vertex_areas(points: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """A third of the area of the faces around each vertex [V]."""
    out = np.zeros(points.shape[0], np.float64)
    for f in range(faces.shape[0]):
        a, b, c = faces[f, 0], faces[f, 1], faces[f, 2]
        nx, ny, nz = face_normal(points, a, b, c)
        area = np.sqrt(nx * nx + ny * ny + nz * nz) / 6.0
        out[a] += area
        out[b] += area
        out[c] += area
    return out
