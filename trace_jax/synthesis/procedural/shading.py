"""Light on surfaces: one compiled loop over the pixels of a picture.

Linear RGB; a white floor lit to exactly 1, so that everything around the object is pure white.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from trace_jax.synthesis.procedural import patterns as pt
from trace_jax.synthesis.procedural.mesh import face_normal
from trace_jax.synthesis.procedural.noise import cells, fractal, value_noise
from trace_jax.synthesis.procedural.patterns import albedo

PAPER, FABRIC, FOAM, LEATHER, WOOD, PLASTIC, RUBBER, GLASS, CERAMIC, METAL, GEM = range(11)
_ALPHA, _GLOSS, _METALLIC, _SHINE = pt.ALPHA, pt.GLOSS, pt.METALLIC, pt.SHINE


@njit(cache=True)
def _smooth(low: float, high: float, x: float) -> float:
    t = min(max((x - low) / (high - low), 0.0), 1.0)
    return t * t * (3.0 - 2.0 * t)


@njit(cache=True)
def _towards(rgb: np.ndarray, r: float, g: float, b: float, amount: float) -> None:
    rgb[0] += (r - rgb[0]) * amount
    rgb[1] += (g - rgb[1]) * amount
    rgb[2] += (b - rgb[2]) * amount


@njit(cache=True)
def burn(
    f: np.ndarray,
    rgb: np.ndarray,
    surface: np.ndarray,
    heat: float,
    fail: float,
    soot: float,
    opacity: float,
    margin: float,
    x: float,
    y: float,
    z: float,
    seed: int,
) -> None:
    """Turns a pristine colour into a burnt one, in place (paper B.1's material behaviours).

    Args:
      f: finish row. rgb: albedo. surface: gloss, metallic, alpha; changed too.
      heat: local heat, about 0-1.3. fail, soot: scores above their thresholds where positive.
      opacity: of full soot. margin: distance to the cut edge in heat units.
    """
    material = int(f[pt.MATERIAL])
    fine = value_noise(x * 16, y * 16, z * 16, seed + 31)
    failed = _smooth(-0.02, 0.12, fail + 0.05 * fine)
    edge = 1.0 - _smooth(0.0, 0.13, margin + 0.03 * fine) if margin < 0.2 else 0.0
    hot = _smooth(0.35, 1.0, heat + 0.08 * fine)
    # Browning runs ahead of failure.
    scorch = _smooth(-0.25, 0.05, fail + 0.06 * fine)
    if material == PAPER or material == FABRIC:
        _towards(rgb, rgb[0] * 0.55, rgb[1] * 0.38, rgb[2] * 0.22, 0.8 * scorch)
        _towards(rgb, 0.030, 0.026, 0.024, failed * (0.5 + 0.35 * hot))
        _towards(rgb, 0.02, 0.017, 0.015, 0.95 * edge)
        ash = (
            _smooth(0.25, 0.6, fine + 0.6 * hot)
            * failed
            * hot
            * (0.55 if material == PAPER else 0.2)
        )
        _towards(rgb, 0.42, 0.41, 0.40, ash)
    elif material == FOAM:
        _towards(rgb, rgb[0] * 0.5, rgb[1] * 0.35, rgb[2] * 0.16, 0.8 * scorch)
        _towards(rgb, 0.035, 0.025, 0.018, failed * (0.55 + 0.35 * hot))
        _towards(rgb, 0.02, 0.015, 0.012, 0.9 * edge)
        surface[0] += 0.25 * failed
    elif material == LEATHER:
        _, border = cells(x * 16, y * 16, z * 16, seed + 7)
        _towards(rgb, rgb[0] * 0.4, rgb[1] * 0.28, rgb[2] * 0.2, 0.8 * scorch)
        _towards(rgb, 0.03, 0.022, 0.018, failed * (0.4 + 0.4 * hot))
        if border < 0.09:
            _towards(rgb, 0.008, 0.006, 0.005, failed)
        surface[0] *= 1.0 - 0.7 * failed
    elif material == WOOD:
        _, border = cells(x * 13, y * 13, z * 7.5, seed + 7)
        _towards(rgb, rgb[0] * 0.42, rgb[1] * 0.3, rgb[2] * 0.2, 0.75 * scorch)
        _towards(rgb, 0.034, 0.030, 0.028, failed * (0.6 + 0.35 * hot))
        if border < 0.1:
            _towards(rgb, 0.004, 0.004, 0.004, failed)
        elif border > 0.36:
            _towards(rgb, 0.10, 0.097, 0.095, 0.5 * failed * hot)
        _towards(rgb, 0.015, 0.013, 0.012, 0.9 * edge)
        surface[0] += 0.12 * failed
    elif material == PLASTIC:
        bubble = fractal(x * 11, y * 11, z * 11, seed + 9, 2)
        _towards(rgb, rgb[0] * 0.72, rgb[1] * 0.58, rgb[2] * 0.42, 0.6 * scorch)
        _towards(rgb, rgb[0] * 0.28, rgb[1] * 0.25, rgb[2] * 0.23, failed * (0.5 + 0.4 * hot))
        _towards(rgb, 0.03, 0.027, 0.025, failed * hot * _smooth(-0.2, 0.5, bubble) * 0.75)
        _towards(rgb, 0.02, 0.018, 0.016, 0.8 * edge)
        surface[0] += 0.25 * failed
    elif material == RUBBER:
        _, border = cells(x * 11, y * 11, z * 11, seed + 7)
        _towards(
            rgb, rgb[0] * 0.35 + 0.01, rgb[1] * 0.33 + 0.01, rgb[2] * 0.33 + 0.01, 0.8 * scorch
        )
        if border < 0.1:
            _towards(rgb, 0.16, 0.155, 0.15, 0.7 * failed)
    elif material == GLASS:
        _, border = cells(x * 6.5, y * 6.5, z * 6.5, seed)
        if border < 0.05:
            _towards(rgb, 0.85, 0.87, 0.88, 0.85 * failed)
            surface[2] += (0.9 - surface[2]) * failed
        _towards(rgb, rgb[0] * 0.5, rgb[1] * 0.48, rgb[2] * 0.45, 0.5 * failed)
        surface[2] += (1.0 - surface[2]) * 0.45 * failed
    elif material == CERAMIC:
        _, border = cells(x * 6.5, y * 6.5, z * 6.5, seed)
        _, small = cells(x * 17, y * 17, z * 17, seed + 7)
        _towards(rgb, rgb[0] * 0.8, rgb[1] * 0.72, rgb[2] * 0.62, 0.6 * scorch)
        if small < 0.06:
            _towards(rgb, rgb[0] * 0.45, rgb[1] * 0.42, rgb[2] * 0.4, failed)
        if border < 0.05:
            _towards(rgb, 0.02, 0.02, 0.02, failed)
        spall = fractal(x * 5, y * 5, z * 5, seed + 13, 2)
        _towards(rgb, 0.52, 0.44, 0.36, 0.6 * failed * hot * _smooth(0.25, 0.35, spall))
        surface[0] *= 1.0 - 0.6 * failed
    elif material == METAL:
        _metal_tint(f, rgb, surface, heat, failed, fine, x, y, z, seed)
    # Soot last: a film that thickens with its score.
    if soot > -0.1 and material != GEM:
        grain = 0.04 * fine + 0.03 * value_noise(x * 45, y * 45, z * 45, seed + 3)
        film = (
            opacity * (0.62 + 0.38 * _smooth(0.0, 0.35, soot)) * _smooth(-0.03, 0.04, soot + grain)
        )
        dull = 1.0 + 0.5 * value_noise(x * 7, y * 7, z * 7, seed + 4)
        _towards(rgb, 0.022 * dull, 0.020 * dull, 0.019 * dull, film)
        surface[0] *= 1.0 - 0.75 * film
        surface[1] *= 1.0 - 0.8 * film
        surface[2] += (1.0 - surface[2]) * 0.8 * film


@njit(cache=True)
def _metal_tint(
    f: np.ndarray,
    rgb: np.ndarray,
    surface: np.ndarray,
    heat: float,
    failed: float,
    fine: float,
    x: float,
    y: float,
    z: float,
    seed: int,
) -> None:
    warmth = heat + 0.16 * fractal(x * 3.5, y * 3.5, z * 3.5, seed + 17, 2)
    blotch = fractal(x * 6, y * 6, z * 6, seed + 19, 3)
    if f[_METALLIC] < 0.5:
        # Paint blisters off and bares dull steel.
        _towards(rgb, rgb[0] * 0.5, rgb[1] * 0.42, rgb[2] * 0.36, 0.6 * failed)
        peeled = failed * _smooth(-0.1, 0.12, blotch + 0.5 * (warmth - 0.6))
        _towards(rgb, 0.20, 0.19, 0.185, 0.9 * peeled)
        surface[1] = 0.7 * peeled
        tint = peeled
    else:
        tint = _smooth(0.2, 0.4, warmth)
    straw = tint * _smooth(0.25, 0.4, warmth) * (1 - _smooth(0.45, 0.58, warmth))
    purple = tint * _smooth(0.42, 0.55, warmth) * (1 - _smooth(0.6, 0.7, warmth))
    blue = tint * _smooth(0.55, 0.68, warmth) * (1 - _smooth(0.78, 0.95, warmth))
    _towards(rgb, 0.62, 0.42, 0.14, 0.55 * straw)
    _towards(rgb, 0.30, 0.12, 0.26, 0.5 * purple)
    _towards(rgb, 0.13, 0.20, 0.42, 0.5 * blue)
    scale = failed * _smooth(0.55, 0.95, warmth + 0.25 * blotch)
    _towards(rgb, 0.075, 0.05, 0.04, 0.7 * scale)
    rust = failed * _smooth(0.3, 0.6, blotch + 0.3 * (warmth - 0.6))
    _towards(rgb, 0.26, 0.10, 0.035, 0.7 * rust)
    surface[0] *= 1.0 - 0.55 * max(scale, rust)
    surface[1] *= 1.0 - 0.75 * max(scale, rust)
    surface[0] *= 1.0 - 0.02 * fine


@njit(cache=True)
def _environment(x: float, y: float, z: float) -> float:
    """The studio seen in a mirror: soft boxes above, a dark band behind, a white floor."""
    sky = 0.45 + 0.6 * _smooth(0.15, 0.75, z)
    if z < 0:
        return 0.9 - 0.35 * _smooth(0.0, -0.25, z) if z > -0.25 else 0.75
    band = _smooth(0.0, 0.1, z) * (1.0 - _smooth(0.15, 0.45, z))
    box = 0.35 * _smooth(0.55, 0.75, x * 0.7 - y * 0.45 + z * 0.4)
    return sky - 0.3 * band + box


@njit(cache=True)
def shade(
    depth: np.ndarray,
    face_of: np.ndarray,
    weights: np.ndarray,
    glass_depth: np.ndarray,
    glass_face: np.ndarray,
    glass_weights: np.ndarray,
    faces: np.ndarray,
    points: np.ndarray,
    rest: np.ndarray,
    normals: np.ndarray,
    uv: np.ndarray,
    st: np.ndarray,
    finish: np.ndarray,
    table: np.ndarray,
    state: np.ndarray,
    opacity: float,
    shadow_depth: np.ndarray,
    shadow_axes: np.ndarray,
    shadow_frame: np.ndarray,
    floor: np.ndarray,
    floor_frame: np.ndarray,
    eye: np.ndarray,
    axes: np.ndarray,
    lens: np.ndarray,
    light: np.ndarray,
    seed: int,
    out: np.ndarray,
) -> None:
    """Fills `out` [S, S, 3] with linear RGB.

    Args:
      depth..glass_weights: buffers of raster.rasterise, opaque and glass.
      state: [V, 4] heat, fail, soot, margin.
      shadow_depth: [M, M] orthographic depth from the light; shadow_axes its axes as rows;
        shadow_frame (x0, y0, scale, bias).
      floor: [G, G] darkness of the floor; floor_frame (x0, y0, cells a unit).
      lens: focal, centre x, centre y. light: direction (3), key, ambient.
    """
    size = depth.shape[0]
    rgb, surface = np.zeros(3), np.zeros(3)
    under = np.zeros(3)
    for j in range(size):
        for i in range(size):
            sx = ((i + 0.5) / size - 0.5) / lens[0] + lens[1]
            sy = (0.5 - (j + 0.5) / size) / lens[0] + lens[2]
            rx = axes[2, 0] + sx * axes[0, 0] + sy * axes[1, 0]
            ry = axes[2, 1] + sx * axes[0, 1] + sy * axes[1, 1]
            rz = axes[2, 2] + sx * axes[0, 2] + sy * axes[1, 2]
            if face_of[j, i] >= 0:
                _shade_face(
                    i, j, depth, face_of[j, i], weights[j, i, 0], weights[j, i, 1], faces, points,
                    rest, normals, uv, st, finish, table, state, opacity, shadow_depth,
                    shadow_axes, shadow_frame, rx, ry, rz, light, seed, rgb, surface, under,
                )  # fmt: skip
            else:
                dark = 0.0
                if rz < -1e-4:
                    k = -eye[2] / rz
                    gx = (eye[0] + k * rx - floor_frame[0]) * floor_frame[2] - 0.5
                    gy = (eye[1] + k * ry - floor_frame[1]) * floor_frame[2] - 0.5
                    dark = _bilinear(floor, gx, gy)
                    # Shadows fade out before the border: the studio is seamless and white.
                    ex = abs((i + 0.5) / size - 0.5)
                    ey = abs((j + 0.5) / size - 0.5)
                    dark *= 1.0 - _smooth(0.40, 0.49, max(ex, ey))
                for c in range(3):
                    under[c] = 1.0 - dark * (0.97 if c < 2 else 0.94)
            if glass_face[j, i] >= 0 and glass_depth[j, i] < depth[j, i]:
                out[j, i, 0], out[j, i, 1], out[j, i, 2] = under[0], under[1], under[2]
                _shade_face(
                    i, j, glass_depth, glass_face[j, i], glass_weights[j, i, 0],
                    glass_weights[j, i, 1], faces, points, rest, normals, uv, st, finish, table,
                    state, opacity, shadow_depth, shadow_axes, shadow_frame, rx, ry, rz, light,
                    seed, rgb, surface, under,
                )  # fmt: skip
                alpha = surface[2]
                for c in range(3):
                    # Behind glass: filtered by its tint, then its own reflection on top.
                    behind = out[j, i, c] * (1.0 - 0.6 * (1.0 - rgb[c]))
                    out[j, i, c] = behind * (1.0 - alpha) + under[c] * alpha
            else:
                out[j, i, 0], out[j, i, 1], out[j, i, 2] = under[0], under[1], under[2]


@njit(cache=True)
def _bilinear(image: np.ndarray, x: float, y: float) -> float:
    size = image.shape[0]
    i, j = int(math.floor(x)), int(math.floor(y))
    if i < 0 or j < 0 or i >= size - 1 or j >= size - 1:
        return 0.0
    fx, fy = x - i, y - j
    top = image[j, i] + fx * (image[j, i + 1] - image[j, i])
    bottom = image[j + 1, i] + fx * (image[j + 1, i + 1] - image[j + 1, i])
    return top + fy * (bottom - top)


@njit(cache=True)
def _occlusion(depth: np.ndarray, i: int, j: int, z: float, reach: float, unit: float) -> float:
    """How much nearby nearer surface hides the sky, 0-1, from the depth buffer."""
    size = depth.shape[0]
    hidden = 0.0
    for k in range(14):
        angle = 2.399963 * k + 0.7 * ((i * 7 + j * 13) % 4)
        r = reach * math.sqrt((k + 0.5) / 14.0)
        x, y = i + int(r * math.cos(angle)), j + int(r * math.sin(angle))
        if x < 0 or y < 0 or x >= size or y >= size:
            continue
        gap = (z - depth[y, x]) / unit
        if gap > 0.012:
            hidden += _smooth(0.012, 0.06, gap) * (1.0 - _smooth(0.15, 0.5, gap))
    return hidden / 14.0


@njit(cache=True)
def _shade_face(
    i: int, j: int, depth: np.ndarray, face: int, wa: float, wb: float, faces: np.ndarray,
    points: np.ndarray, rest: np.ndarray, normals: np.ndarray, uv: np.ndarray, st: np.ndarray,
    finish: np.ndarray, table: np.ndarray, state: np.ndarray, opacity: float,
    shadow_depth: np.ndarray, shadow_axes: np.ndarray, shadow_frame: np.ndarray,
    rx: float, ry: float, rz: float, light: np.ndarray, seed: int,
    rgb: np.ndarray, surface: np.ndarray, lit: np.ndarray,
) -> None:  # fmt: skip
    a, b, c = faces[face, 0], faces[face, 1], faces[face, 2]
    wc = 1.0 - wa - wb
    x = wa * rest[a, 0] + wb * rest[b, 0] + wc * rest[c, 0]
    y = wa * rest[a, 1] + wb * rest[b, 1] + wc * rest[c, 1]
    z = wa * rest[a, 2] + wb * rest[b, 2] + wc * rest[c, 2]
    f = table[finish[a]]
    albedo(
        f,
        wa * uv[a, 0] + wb * uv[b, 0] + wc * uv[c, 0],
        wa * uv[a, 1] + wb * uv[b, 1] + wc * uv[c, 1],
        wa * st[a, 0] + wb * st[b, 0] + wc * st[c, 0],
        wa * st[a, 1] + wb * st[b, 1] + wc * st[c, 1],
        x,
        y,
        z,
        rgb,
    )
    surface[0], surface[1], surface[2] = f[_GLOSS], f[_METALLIC], f[_ALPHA]
    heat = wa * state[a, 0] + wb * state[b, 0] + wc * state[c, 0]
    if heat > 0.0:
        burn(
            f,
            rgb,
            surface,
            heat,
            wa * state[a, 1] + wb * state[b, 1] + wc * state[c, 1],
            wa * state[a, 2] + wb * state[b, 2] + wc * state[c, 2],
            opacity,
            wa * state[a, 3] + wb * state[b, 3] + wc * state[c, 3],
            x,
            y,
            z,
            seed,
        )
    # Geometry of the lit side.
    nx = wa * normals[a, 0] + wb * normals[b, 0] + wc * normals[c, 0]
    ny = wa * normals[a, 1] + wb * normals[b, 1] + wc * normals[c, 1]
    nz = wa * normals[a, 2] + wb * normals[b, 2] + wc * normals[c, 2]
    gx, gy, gz = face_normal(points, a, b, c)
    if gx * rx + gy * ry + gz * rz > 0:
        gx, gy, gz = -gx, -gy, -gz
    if nx * gx + ny * gy + nz * gz < 0:
        nx, ny, nz = -nx, -ny, -nz
    if heat > 0.0 and surface[2] > 0.99:
        # Burnt surfaces are rough.
        rough = 0.28 * min(max(heat - 0.2, 0.0), 1.0)
        nx += rough * value_noise(x * 26, y * 26, z * 26, seed + 41)
        ny += rough * value_noise(x * 26, y * 26, z * 26, seed + 42)
        nz += rough * value_noise(x * 26, y * 26, z * 26, seed + 43)
    norm = math.sqrt(nx * nx + ny * ny + nz * nz) + 1e-9
    nx, ny, nz = nx / norm, ny / norm, nz / norm
    norm = math.sqrt(rx * rx + ry * ry + rz * rz)
    ex, ey, ez = -rx / norm, -ry / norm, -rz / norm
    facing = max(nx * ex + ny * ey + nz * ez, 0.02)
    lx, ly, lz = light[0], light[1], light[2]
    towards = max(nx * lx + ny * ly + nz * lz, 0.0)
    px = wa * points[a, 0] + wb * points[b, 0] + wc * points[c, 0]
    py = wa * points[a, 1] + wb * points[b, 1] + wc * points[c, 1]
    pz = wa * points[a, 2] + wb * points[b, 2] + wc * points[c, 2]
    visible = 1.0
    if towards > 0.0:
        visible = _lit(shadow_depth, shadow_axes, shadow_frame, px, py, pz, towards)
    unit = shadow_frame[4]
    ao = 1.0 - 0.85 * _occlusion(depth, i, j, depth[j, i], 0.05 * depth.shape[0], unit)
    ground = 1.0 - 0.35 * math.exp(-pz / (0.04 * unit)) * (1.0 - max(nz, 0.0))
    sky = 0.5 + 0.5 * nz
    ambient = light[4] * (0.62 + 0.38 * sky) * ao * ground
    diffuse = ambient + light[3] * towards * visible
    # Mirror direction for gloss and metal.
    rr = 2.0 * (nx * ex + ny * ey + nz * ez)
    qx, qy, qz = rr * nx - ex, rr * ny - ey, rr * nz - ez
    mirror = _environment(qx, qy, qz) * (0.35 + 0.65 * ao)
    hx, hy, hz = lx + ex, ly + ey, lz + ez
    norm = math.sqrt(hx * hx + hy * hy + hz * hz) + 1e-9
    half = max((nx * hx + ny * hy + nz * hz) / norm, 0.0)
    spark = half ** f[_SHINE] * visible * towards
    gloss, metallic = surface[0], surface[1]
    fresnel = 0.04 + 0.96 * (1.0 - facing) ** 5
    for k in range(3):
        base = rgb[k] * diffuse
        metal = rgb[k] * (0.25 * diffuse + 0.85 * mirror)
        value = base + metallic * (metal - base)
        value += gloss * (0.55 * fresnel * mirror + 0.5 * spark * (1.0 + metallic))
        # A soft shoulder keeps lit white surfaces apart from the white studio.
        lit[k] = value if value < 0.8 else 0.8 + 0.2 * (1.0 - math.exp(-(value - 0.8) / 0.2))
    if surface[2] < 0.99:
        edge = (1.0 - facing) ** 2
        surface[2] = min(surface[2] + 0.5 * edge + 0.4 * spark, 1.0)


@njit(cache=True)
def _lit(
    shadow_depth: np.ndarray,
    shadow_axes: np.ndarray,
    frame: np.ndarray,
    x: float,
    y: float,
    z: float,
    towards: float,
) -> float:
    """Share of the key light that reaches a point: 3x3 samples of the shadow map."""
    size = shadow_depth.shape[0]
    u = x * shadow_axes[0, 0] + y * shadow_axes[0, 1] + z * shadow_axes[0, 2]
    v = x * shadow_axes[1, 0] + y * shadow_axes[1, 1] + z * shadow_axes[1, 2]
    d = x * shadow_axes[2, 0] + y * shadow_axes[2, 1] + z * shadow_axes[2, 2]
    i = int((u - frame[0]) * frame[2])
    j = int((v - frame[1]) * frame[2])
    bias = frame[3] * (1.0 + 2.0 * (1.0 - towards))
    open_, total = 0.0, 0.0
    for b in range(-1, 2):
        for a in range(-1, 2):
            k, m = i + a, j + b
            total += 1.0
            if k < 0 or m < 0 or k >= size or m >= size or d - bias < shadow_depth[m, k]:
                open_ += 1.0
    return open_ / total
