"""Seeded noise over space: hashes, value noise, fractal sums, Voronoi cells.

Pure functions of (position, seed), so a pixel's pattern never depends on the order of work.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

_MASK = 0xFFFFFFFF


@njit(cache=True)
def hash01(x: int, y: int, z: int, seed: int) -> float:
    """A lattice point's number in [0, 1)."""
    h = (x * 0x8DA6B343 + y * 0xD8163841 + z * 0xCB1AB31F + seed * 0x165667B1) & _MASK
    h ^= h >> 15
    h = (h * 0x2C1B3C6D) & _MASK
    h ^= h >> 12
    h = (h * 0x297A2D39) & _MASK
    h ^= h >> 15
    return h / 4294967296.0


@njit(cache=True)
def value_noise(x: float, y: float, z: float, seed: int) -> float:
    """Smooth noise in [-1, 1], one feature a unit."""
    ix, iy, iz = math.floor(x), math.floor(y), math.floor(z)
    fx, fy, fz = x - ix, y - iy, z - iz
    jx, jy, jz = int(ix), int(iy), int(iz)
    ux = fx * fx * (3.0 - 2.0 * fx)
    uy = fy * fy * (3.0 - 2.0 * fy)
    uz = fz * fz * (3.0 - 2.0 * fz)
    a00 = hash01(jx, jy, jz, seed)
    a10 = hash01(jx + 1, jy, jz, seed)
    a01 = hash01(jx, jy + 1, jz, seed)
    a11 = hash01(jx + 1, jy + 1, jz, seed)
    b00 = hash01(jx, jy, jz + 1, seed)
    b10 = hash01(jx + 1, jy, jz + 1, seed)
    b01 = hash01(jx, jy + 1, jz + 1, seed)
    b11 = hash01(jx + 1, jy + 1, jz + 1, seed)
    a0 = a00 + ux * (a10 - a00)
    a1 = a01 + ux * (a11 - a01)
    b0 = b00 + ux * (b10 - b00)
    b1 = b01 + ux * (b11 - b01)
    a = a0 + uy * (a1 - a0)
    b = b0 + uy * (b1 - b0)
    return 2.0 * (a + uz * (b - a)) - 1.0


@njit(cache=True)
def fractal(x: float, y: float, z: float, seed: int, octaves: int) -> float:
    """Sum of octaves of value noise, roughly in [-1, 1]."""
    total, amplitude, norm = 0.0, 1.0, 0.0
    for octave in range(octaves):
        total += amplitude * value_noise(x, y, z, seed + 101 * octave)
        norm += amplitude
        amplitude *= 0.5
        x, y, z = 2.03 * x + 11.3, 2.03 * y + 5.7, 2.03 * z + 3.1
    return 1.4 * total / norm


@njit(cache=True)
def cells(x: float, y: float, z: float, seed: int) -> tuple[float, float]:
    """Voronoi cells of a jittered unit lattice.

    Returns:
      The cell's own number in [0, 1), and the distance margin F2 - F1 (0 on a cell's border).
    """
    jx, jy, jz = int(math.floor(x)), int(math.floor(y)), int(math.floor(z))
    best, second, number = 1e9, 1e9, 0.0
    for ax in range(-1, 2):
        for ay in range(-1, 2):
            for az in range(-1, 2):
                px, py, pz = jx + ax, jy + ay, jz + az
                dx = px + hash01(px, py, pz, seed) - x
                dy = py + hash01(px, py, pz, seed + 1) - y
                dz = pz + hash01(px, py, pz, seed + 2) - z
                d = dx * dx + dy * dy + dz * dz
                if d < best:
                    second, best = best, d
                    number = hash01(px, py, pz, seed + 3)
                elif d < second:
                    second = d
    return number, math.sqrt(second) - math.sqrt(best)


@njit(cache=True)
def fractal_at(points: np.ndarray, frequency: float, seed: int, octaves: int) -> np.ndarray:
    """`fractal` at points [V, 3] scaled by `frequency`; [V]."""
    out = np.empty(points.shape[0], np.float32)
    for v in range(points.shape[0]):
        out[v] = fractal(
            points[v, 0] * frequency,
            points[v, 1] * frequency,
            points[v, 2] * frequency,
            seed,
            octaves,
        )
    return out


@njit(cache=True)
def cells_at(points: np.ndarray, frequency: float, seed: int) -> np.ndarray:
    """The Voronoi cell's number at points [V, 3] scaled by `frequency`; [V]."""
    out = np.empty(points.shape[0], np.float32)
    for v in range(points.shape[0]):
        out[v] = cells(
            points[v, 0] * frequency, points[v, 1] * frequency, points[v, 2] * frequency, seed
        )[0]
    return out
