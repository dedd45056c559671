"""Z-buffer rasterisation: which face covers which pixel, and shadows on the floor."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from trace_jax.synthesis.procedural.noise import cells, value_noise

# What happens where a face's margin nears zero.
SOLID, RAGGED, SHARD = 0, 1, 2
# Amplitude of the jitter that makes a cut edge ragged, and that of shards (margin units).
RAGGED_JITTER, SHARD_JITTER = 0.05, 0.2


@njit(cache=True)
def cut_margin(
    kind: int, margin: float, x: float, y: float, z: float, shard_scale: float, seed: int
) -> float:
    """The margin at one surface point with its edge jitter; below zero the surface is gone."""
    if kind == SHARD:
        number, _ = cells(x * shard_scale, y * shard_scale, z * shard_scale, seed)
        return margin + SHARD_JITTER * (2.0 * number - 1.0)
    return margin + RAGGED_JITTER * value_noise(x * 22.0, y * 22.0, z * 22.0, seed)


@njit(cache=True)
def rasterise(
    screen: np.ndarray,
    faces: np.ndarray,
    kinds: np.ndarray,
    keep: np.ndarray,
    margin: np.ndarray,
    rest: np.ndarray,
    shard_scale: float,
    seed: int,
    perspective: bool,
    depth: np.ndarray,
    face_of: np.ndarray,
    weights: np.ndarray,
) -> None:
    """Draws the kept faces into the buffers.

    Args:
      screen: [V, 3] x, y in pixels and depth.
      kinds: [F] SOLID, RAGGED or SHARD. keep: [F] bool.
      margin: [V]; rest: [V, 3] pristine positions, for edge jitter.
      depth: [S, S] filled with infinity. face_of: [S, S] filled with -1.
      weights: [S, S, 2], barycentric weights of a face's first two vertices.
    """
    size = depth.shape[0]
    for f in range(faces.shape[0]):
        if not keep[f]:
            continue
        a, b, c = faces[f, 0], faces[f, 1], faces[f, 2]
        ma, mb, mc = margin[a], margin[b], margin[c]
        kind = kinds[f]
        band = SHARD_JITTER if kind == SHARD else RAGGED_JITTER
        low = min(ma, mb, mc)
        cut = kind != SOLID and low < band
        if cut and max(ma, mb, mc) < -band:
            continue
        ax, ay, az = screen[a, 0], screen[a, 1], screen[a, 2]
        bx, by, bz = screen[b, 0], screen[b, 1], screen[b, 2]
        cx, cy, cz = screen[c, 0], screen[c, 1], screen[c, 2]
        area = (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
        if abs(area) < 1e-9:
            continue
        x0 = max(int(math.ceil(min(ax, bx, cx) - 0.5)), 0)
        x1 = min(int(math.floor(max(ax, bx, cx) - 0.5)), size - 1)
        y0 = max(int(math.ceil(min(ay, by, cy) - 0.5)), 0)
        y1 = min(int(math.floor(max(ay, by, cy) - 0.5)), size - 1)
        for j in range(y0, y1 + 1):
            py = j + 0.5
            for i in range(x0, x1 + 1):
                px = i + 0.5
                wa = ((bx - px) * (cy - py) - (by - py) * (cx - px)) / area
                wb = ((cx - px) * (ay - py) - (cy - py) * (ax - px)) / area
                wc = 1.0 - wa - wb
                if wa < 0.0 or wb < 0.0 or wc < 0.0:
                    continue
                if perspective:
                    ia, ib, ic = wa / az, wb / bz, wc / cz
                    inverse = ia + ib + ic
                    z = 1.0 / inverse
                    wa, wb, wc = ia * z, ib * z, ic * z
                else:
                    z = wa * az + wb * bz + wc * cz
                if z >= depth[j, i]:
                    continue
                if cut:
                    x = wa * rest[a, 0] + wb * rest[b, 0] + wc * rest[c, 0]
                    y = wa * rest[a, 1] + wb * rest[b, 1] + wc * rest[c, 1]
                    h = wa * rest[a, 2] + wb * rest[b, 2] + wc * rest[c, 2]
                    m = wa * ma + wb * mb + wc * mc
                    if cut_margin(kind, m, x, y, h, shard_scale, seed) < 0.0:
                        continue
                depth[j, i] = z
                face_of[j, i] = f
                weights[j, i, 0] = wa
                weights[j, i, 1] = wb


@njit(cache=True)
def floor_shadow(
    points: np.ndarray,
    faces: np.ndarray,
    keep: np.ndarray,
    margin: np.ndarray,
    direction: np.ndarray,
    origin: np.ndarray,
    cell: float,
    heights: np.ndarray,
    layers: np.ndarray,
) -> None:
    """Projects faces along the light onto the floor, one layer a band of height.

    Args:
      origin: [2] corner of the floor grid; cell: its spacing.
      heights: [L] upper bounds of the bands. layers: [L, G, G] of zeros, set to 1 in shadow.
    """
    size = layers.shape[1]
    kx, ky = direction[0] / direction[2], direction[1] / direction[2]
    for f in range(faces.shape[0]):
        if not keep[f]:
            continue
        a, b, c = faces[f, 0], faces[f, 1], faces[f, 2]
        if margin[a] + margin[b] + margin[c] < 0.0:
            continue
        z = (points[a, 2] + points[b, 2] + points[c, 2]) / 3.0
        layer = 0
        while layer < heights.shape[0] - 1 and z > heights[layer]:
            layer += 1
        ax = (points[a, 0] - kx * points[a, 2] - origin[0]) / cell
        ay = (points[a, 1] - ky * points[a, 2] - origin[1]) / cell
        bx = (points[b, 0] - kx * points[b, 2] - origin[0]) / cell
        by = (points[b, 1] - ky * points[b, 2] - origin[1]) / cell
        cx = (points[c, 0] - kx * points[c, 2] - origin[0]) / cell
        cy = (points[c, 1] - ky * points[c, 2] - origin[1]) / cell
        area = (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
        x0 = max(int(math.floor(min(ax, bx, cx))), 0)
        x1 = min(int(math.floor(max(ax, bx, cx))), size - 1)
        y0 = max(int(math.floor(min(ay, by, cy))), 0)
        y1 = min(int(math.floor(max(ay, by, cy))), size - 1)
        small = x1 - x0 <= 1 and y1 - y0 <= 1
        for j in range(y0, y1 + 1):
            for i in range(x0, x1 + 1):
                if not small and abs(area) > 1e-9:
                    px, py = i + 0.5, j + 0.5
                    wa = ((bx - px) * (cy - py) - (by - py) * (cx - px)) / area
                    wb = ((cx - px) * (ay - py) - (cy - py) * (ax - px)) / area
                    if wa < -0.02 or wb < -0.02 or 1.0 - wa - wb < -0.02:
                        continue
                layers[layer, j, i] = 1.0


@njit(cache=True)
def box_blur(image: np.ndarray, radius: int, passes: int) -> np.ndarray:
    """Repeated box blur of [G, G], edges darkened by nothing outside."""
    size = image.shape[0]
    source = image.copy()
    other = np.zeros_like(source)
    for _ in range(passes):
        for axis in range(2):
            for j in range(size):
                total = 0.0
                for i in range(-radius, size):
                    ahead, behind = i + radius, i - radius - 1
                    if ahead < size:
                        total += source[j, ahead] if axis == 0 else source[ahead, j]
                    if behind >= 0:
                        total -= source[j, behind] if axis == 0 else source[behind, j]
                    if i >= 0:
                        mean = total / (2 * radius + 1)
                        if axis == 0:
                            other[j, i] = mean
                        else:
                            other[i, j] = mean
            source, other = other, source
    return source
