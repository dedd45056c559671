"""Per-pixel surface patterns: the colour of one point of a finish, before light and fire.

A finish is one row of numbers (see the column constants), so that the shader is one compiled
loop over pixels. `PATTERNS` gives each pattern its number and the words of a caption.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from trace_jax.synthesis.procedural.noise import cells, fractal, hash01, value_noise

# Columns of a finish row.
MATERIAL, PATTERN, C1, C2, C3 = 0, 1, 2, 5, 8
SCALE, ANGLE, P1, P2, GLOSS, METALLIC, ALPHA, SEED, SHINE = range(11, 20)
COLUMNS = 20

# Pattern -> phrase; {c2} and {c3} are colour names. The order is the pattern's number.
PATTERNS: dict[str, str] = {
    "plain": "",
    "stripes": "with {c2} stripes",
    "checks": "with {c2} checks",
    "dots": "with {c2} dots",
    "plaid": "in {c2} plaid",
    "zigzag": "with {c2} zigzags",
    "bands": "with {c2} bands",
    "label": "with a {c2} label",
    "grain": "",
    "weave": "",
    "brushed": "",
    "split": "with a {c2} lower half",
    "speckle": "with {c2} speckles",
    "camo": "with {c2} blotches",
    "gradient": "fading to {c2}",
    "cardboard": "",
    "screen": "",
    "keys": "",
    "quilt": "quilted in {c2}",
    "emblem": "with a {c2} emblem",
    "flowers": "with {c2} flowers",
    "marble": "with {c2} veins",
    "pages": "",
    "diamonds": "with {c2} diamonds",
    "rings": "with {c2} rings",
    "panel": "with a {c2} panel",
    "hazard": "with a {c2} warning sign",
    "mesh": "",
}
NUMBER: dict[str, int] = {name: number for number, name in enumerate(PATTERNS)}


@njit(cache=True)
def _fract(x: float) -> float:
    return x - math.floor(x)


@njit(cache=True)
def _inside_emblem(kind: int, x: float, y: float) -> bool:
    """Whether (x, y) in [-1, 1] lies in emblem `kind`."""
    r = math.sqrt(x * x + y * y)
    if kind == 0:
        return r < 0.9
    if kind == 1:  # ring
        return 0.55 < r < 0.95
    if kind == 2:  # star
        angle = math.atan2(x, y)
        return r < 0.58 + 0.36 * math.cos(5 * angle)
    if kind == 3:  # cross
        return (abs(x) < 0.3 and abs(y) < 0.9) or (abs(y) < 0.3 and abs(x) < 0.9)
    if kind == 4:  # triangle
        return y > -0.8 and abs(x) < 0.55 * (0.9 - y)
    if kind == 5:  # heart
        b = y + 0.15 - 0.75 * math.sqrt(abs(x))
        return x * x * 1.3 + b * b < 0.55
    if kind == 6:  # square
        return abs(x) < 0.75 and abs(y) < 0.75
    return abs(x) + abs(y) < 0.95  # diamond


@njit(cache=True)
def albedo(
    f: np.ndarray,
    u: float,
    v: float,
    s: float,
    t: float,
    x: float,
    y: float,
    z: float,
    out: np.ndarray,
) -> None:
    """Writes the linear RGB of finish row `f` at surface point (u, v), (s, t), (x, y, z)."""
    pattern = int(f[PATTERN])
    scale, seed = f[SCALE], int(f[SEED])
    p1, p2 = f[P1], f[P2]
    c = math.cos(f[ANGLE])
    d = math.sin(f[ANGLE])
    a = (c * u + d * v) * scale
    b = (-d * u + c * v) * scale
    mix2, mix3, shade = 0.0, 0.0, 1.0
    if pattern == 0:
        shade = 1.0 + 0.05 * value_noise(x * 9, y * 9, z * 9, seed)
    elif pattern == 1:
        k = _fract(a)
        mix2 = 1.0 if k < p1 else 0.0
        mix3 = 1.0 if p2 > 0.5 and 0.66 < k < 0.8 else 0.0
    elif pattern == 2:
        mix2 = 1.0 if (_fract(a) < 0.5) != (_fract(b) < 0.5) else 0.0
    elif pattern == 3:
        row = math.floor(b)
        k, m = _fract(a + 0.5 * (row % 2)) - 0.5, _fract(b) - 0.5
        mix2 = 1.0 if k * k + m * m < 0.04 + 0.1 * p1 else 0.0
    elif pattern == 4:
        k, m = _fract(a), _fract(b)
        mix2 = 0.5 * (1.0 if k < 0.4 else 0.0) + 0.5 * (1.0 if m < 0.4 else 0.0)
        if 0.62 < k < 0.7 or 0.62 < m < 0.7:
            mix3 = 0.9
    elif pattern == 5:
        k = _fract(b + 0.5 * abs(2 * _fract(a) - 1))
        mix2 = 1.0 if k < p1 else 0.0
    elif pattern == 6:
        width = 0.05 + 0.12 * p2
        mix2 = 1.0 if abs(t - p1) < width else 0.0
        mix3 = 1.0 if width + 0.03 < abs(t - p1) < width + 0.075 else 0.0
    elif pattern == 7:
        half = 0.10 + 0.12 * p1
        if s < 2 and abs(s - 0.5) < half and 0.22 + 0.2 * p2 < t < 0.62 + 0.2 * p2:
            mix2 = 1.0
            k, m = (s - 0.5) / half, (t - 0.22 - 0.2 * p2) / 0.4
            if m > 0.62 and m < 0.86 and abs(k) < 0.75:
                mix3 = 1.0 if hash01(int((k + 1) * 5), 0, 0, seed) > 0.25 else 0.0
            elif m > 0.12 and m < 0.5 and abs(k) < 0.8:
                line = int(m * 16)
                mix3 = 0.6 if line % 2 == 0 and k < 0.7 - hash01(line, 1, 0, seed) else 0.0
    elif pattern == 8:
        # Growth rings of a board cut along `u`, stretched along the grain.
        g = b / scale * 14 + 1.6 * value_noise(a / scale * 2.0, b / scale * 7.0, z * 2, seed)
        ring = _fract(g * p1 * 2.2)
        fine = value_noise(a / scale * 7, b / scale * 90, z * 11, seed + 5)
        mix2 = 0.65 * ring * ring + 0.14 * fine
        mix2 = min(max(mix2, 0.0), 1.0)
    elif pattern == 9:
        k, m = _fract(a * 6), _fract(b * 6)
        over = (math.floor(a * 6) + math.floor(b * 6)) % 2
        shade = 0.86 + 0.2 * (k if over == 0 else m)
        shade += 0.06 * value_noise(x * 14, y * 14, z * 14, seed)
    elif pattern == 10:
        shade = 1.0 + 0.16 * value_noise(u * 5, v * 130, 0.0, seed)
    elif pattern == 11:
        edge = p1 + 0.05 * p2 * math.sin(u * scale * 2.0)
        mix2 = 1.0 if t < edge else 0.0
    elif pattern == 12:
        number, margin = cells(x * scale * 3.2, y * scale * 3.2, z * scale * 3.2, seed)
        mix2 = 1.0 if number < 0.35 + 0.2 * p1 and margin > 0.3 else 0.0
        mix3 = 1.0 if number > 0.86 and margin > 0.3 else 0.0
    elif pattern == 13:
        k = fractal(x * scale * 0.7, y * scale * 0.7, z * scale * 0.7, seed, 2)
        mix2 = 1.0 if k > 0.1 + 0.3 * p1 else 0.0
        mix3 = 1.0 if k < -0.45 + 0.2 * p2 else 0.0
    elif pattern == 14:
        mix2 = min(max((t - 0.15) / 0.7, 0.0), 1.0)
    elif pattern == 15:
        shade = 0.93 + 0.07 * math.sin(u * 150.0) + 0.04 * value_noise(u * 5, v * 60, 0.0, seed)
        if s < 2 and abs(s - 0.5) < 0.07 and p1 > 0.4:
            mix2 = 0.85
        elif s < 2 and p2 > 0.5 and abs(s - 0.24) < 0.12 and abs(t - 0.3) < 0.1:
            mix3 = 0.8
    elif pattern == 16:
        # A lit display: a window of blocks over a gradient.
        mix2 = 0.25 + 0.6 * t
        if 0.06 < s < 0.94 and 0.08 < t < 0.92:
            k, m = int(s * (2 + 3 * p1)), int(t * (3 + 3 * p2))
            mix3 = 0.75 if hash01(k, m, 3, seed) > 0.62 else 0.0
    elif pattern == 17:
        k, m = _fract(u * scale * 3), _fract(v * scale * 3)
        mix2 = 1.0 if 0.14 < k < 0.9 and 0.14 < m < 0.9 else 0.0
        mix3 = (
            1.0
            if mix2 > 0 and hash01(int(u * scale * 3), int(v * scale * 3), 0, seed) > p1 * 0.4 + 0.6
            else 0.0
        )
    elif pattern == 18:
        k, m = _fract(a + b), _fract(a - b)
        edge = min(min(k, 1 - k), min(m, 1 - m))
        mix2 = 1.0 if edge < 0.07 + 0.04 * p1 else 0.0
        shade = 0.82 + 0.36 * min(edge * 2, 0.6)
    elif pattern == 19:
        if s < 2:
            k = (s - 0.5) / (0.16 + 0.14 * p1)
            m = (t - 0.56) / (0.2 + 0.14 * p1)
            if _inside_emblem(int(p2 * 7.99), k, m):
                mix2 = 1.0
            elif abs(t - 0.12) < 0.035:
                mix3 = 1.0
    elif pattern == 20:
        row = math.floor(b)
        k, m = _fract(a + 0.5 * (row % 2)) - 0.5, _fract(b) - 0.5
        r = math.sqrt(k * k + m * m)
        petal = 0.2 + 0.12 * p1 + 0.13 * math.cos((4 + int(p2 * 3)) * math.atan2(k, m))
        mix2 = 1.0 if r < petal else 0.0
        mix3 = 1.0 if r < 0.1 else 0.0
    elif pattern == 21:
        k = fractal(x * scale * 0.5, y * scale * 0.5, z * scale * 0.5, seed, 3)
        vein = abs(_fract(k * 2.2 + a * 0.25) - 0.5)
        mix2 = 1.0 - min(vein * (5 + 6 * p1), 1.0)
        mix2 *= mix2
    elif pattern == 22:
        shade = 0.86 + 0.14 * math.sin(v * 420) + 0.05 * value_noise(u * 3, v * 60, 0.0, seed)
    elif pattern == 23:
        k, m = _fract(a) - 0.5, _fract(b * 0.6) - 0.5
        r = abs(k) + abs(m)
        mix2 = 1.0 if r < 0.24 + 0.14 * p1 else 0.0
        mix3 = 1.0 if p2 > 0.4 and r < 0.1 else 0.0
    elif pattern == 24:
        mix2 = 1.0 if _fract(t * (2.0 + 4.0 * p1) + 0.2) < 0.3 + 0.2 * p2 else 0.0
    elif pattern == 25:
        if s < 2 and 0.16 < s < 0.84 and 0.16 < t < 0.84:
            mix2 = 1.0
            if 0.22 + 0.3 * p1 < s < 0.5 + 0.28 * p1 and 0.5 < t < 0.76:
                mix3 = 1.0
    elif pattern == 26:
        if s < 2:
            k = (s - 0.5) / (0.13 + 0.08 * p1)
            m = (t - 0.5 - 0.12 * (p2 - 0.5)) / (0.19 + 0.08 * p1)
            outer = abs(k) + abs(m)
            if outer < 1.0:
                mix2 = 1.0
                if outer > 0.82 or (abs(k) < 0.16 and abs(m) < 0.5 and abs(m + 0.25) > 0.07):
                    mix3 = 1.0
            elif t < 0.14 or t > 0.9:
                mix2 = 1.0
    elif pattern == 27:
        k, m = _fract(u * scale * 4), _fract(v * scale * 4)
        mix2 = 1.0 if k < 0.4 or m < 0.4 else 0.0
    for i in range(3):
        value = f[C1 + i] + mix2 * (f[C2 + i] - f[C1 + i])
        value = value + mix3 * (f[C3 + i] - value)
        out[i] = min(max(value * shade, 0.0), 1.0)
