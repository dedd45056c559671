"""From a mesh, a camera and a light to a picture."""

from __future__ import annotations

import dataclasses

import numpy as np

from trace_jax.synthesis.procedural import patterns as pt
from trace_jax.synthesis.procedural.camera import Camera, Light
from trace_jax.synthesis.procedural.mesh import vertex_normals
from trace_jax.synthesis.procedural.raster import box_blur, floor_shadow, rasterise
from trace_jax.synthesis.procedural.shading import shade

SUPERSAMPLING = 2
_SHADOW_MAP = 160
_FLOOR = 128
_MARGIN_WHOLE = 9.0


@dataclasses.dataclass(frozen=True)
class Body:
    """What is drawn: geometry in its present state, with the fire's marks.

    Attributes:
      points: [V, 3] present positions; rest: [V, 3] pristine ones.
      uv, st, faces, weld, finish, table: as in Mesh.
      kinds: [F] cut kind of each face (raster.SOLID, RAGGED, SHARD). keep: [F] bool.
      state: [V, 4] heat, fail, soot, margin; see damage.
      opacity: of a full film of soot.
      shard_scale: Voronoi cells a unit. seed: of the object's noise.
    """

    points: np.ndarray
    rest: np.ndarray
    uv: np.ndarray
    st: np.ndarray
    faces: np.ndarray
    weld: np.ndarray
    finish: np.ndarray
    table: np.ndarray
    kinds: np.ndarray
    keep: np.ndarray
    state: np.ndarray
    opacity: float
    shard_scale: float
    seed: int


def render(body: Body, camera: Camera, light: Light, size: int) -> np.ndarray:
    """Draws `body` on the white studio floor; uint8 [size, size, 3]."""
    wide = size * SUPERSAMPLING
    points = np.ascontiguousarray(body.points, np.float32)
    rest = np.ascontiguousarray(body.rest, np.float32)
    state = np.ascontiguousarray(body.state, np.float32)
    margin = np.ascontiguousarray(state[:, 3])
    normals = vertex_normals(points, body.faces, body.weld)
    screen = camera.project(points.astype(np.float64))
    screen[:, :2] *= wide
    glassy = body.table[:, pt.ALPHA][body.finish[body.faces[:, 0]]] < 0.995
    opaque = draw(screen, body, margin, rest, body.keep & ~glassy, wide, True)
    if glassy.any():
        glass = draw(screen, body, margin, rest, body.keep & glassy, wide, True)
    else:
        glass = empty(wide)
    unit = float(np.linalg.norm(np.ptp(rest, axis=0)))
    shadow, shadow_axes, shadow_frame = shadow_map(
        points, body, body.keep, light, unit, _SHADOW_MAP
    )
    floor, floor_frame = _floor(points, body, margin, light, glassy)
    out = np.empty((wide, wide, 3))
    shade(
        *opaque,
        *glass,
        body.faces,
        points,
        rest,
        normals,
        body.uv,
        body.st,
        body.finish,
        body.table,
        state,
        float(body.opacity),
        shadow,
        shadow_axes,
        shadow_frame,
        floor,
        floor_frame,
        camera.eye,
        camera.axes,
        np.array([camera.focal, *camera.centre]),
        np.array([*light.direction, light.key, light.ambient]),
        body.seed,
        out,
    )
    small = out.reshape(size, SUPERSAMPLING, size, SUPERSAMPLING, 3).mean((1, 3))
    return encode_srgb(small)


def encode_srgb(linear: np.ndarray) -> np.ndarray:
    """Linear 0-1 to 8-bit sRGB, by a table of 4096 steps."""
    return _SRGB[np.clip(linear * 4095 + 0.5, 0, 4095).astype(np.int32)]


def _srgb_table() -> np.ndarray:
    x = np.arange(4096) / 4095
    y = np.where(x <= 0.0031308, 12.92 * x, 1.055 * x ** (1 / 2.4) - 0.055)
    return np.rint(y * 255).astype(np.uint8)


_SRGB = _srgb_table()


def empty(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Buffers that nothing has been drawn into."""
    return (
        np.full((size, size), np.inf, np.float32),
        np.full((size, size), -1, np.int32),
        np.zeros((size, size, 2), np.float32),
    )


def draw(
    screen: np.ndarray,
    body: Body,
    margin: np.ndarray,
    rest: np.ndarray,
    keep: np.ndarray,
    size: int,
    perspective: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Depth, face and weights [size, size] of the kept faces; see raster.rasterise."""
    buffers = empty(size)
    rasterise(
        screen,
        body.faces,
        body.kinds,
        keep,
        margin,
        rest,
        body.shard_scale,
        body.seed,
        perspective,
        *buffers,
    )
    return buffers


def shadow_map(
    points: np.ndarray,
    body: Body,
    keep: np.ndarray,
    light: Light,
    unit: float,
    cells: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Depth seen from the light [cells, cells], the light's axes, and how to look it up.

    Args:
      points: [V, 3] present positions. body: what they belong to.
      keep: [F], which faces throw a shadow. unit: length that biases are told in.
    """
    margin = np.ascontiguousarray(body.state[:, 3], np.float32)
    rest = np.ascontiguousarray(body.rest, np.float32)
    forward = -light.direction
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    axes = np.stack([right, np.cross(right, forward), forward])
    local = points.astype(np.float64) @ axes.T
    thrown = local[np.unique(body.faces[keep])] if not keep.all() else local
    low, high = thrown.min(0), thrown.max(0)
    scale = (cells - 4) / max(high[0] - low[0], high[1] - low[1], 1e-6)
    origin = low[:2] - 2 / scale
    screen = np.concatenate([(local[:, :2] - origin) * scale, local[:, 2:]], 1)
    depth, _, _ = draw(screen, body, margin, rest, keep, cells, False)
    frame = np.array([origin[0], origin[1], scale, 0.008 * unit + 0.9 / scale, unit])
    return depth, axes, frame


def _floor(
    points: np.ndarray, body: Body, margin: np.ndarray, light: Light, glassy: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Darkness of the floor [G, G]: cast shadow, softer from higher up, and contact shadow."""
    low, high = points.min(0).astype(float), points.max(0).astype(float)
    tall = max(high[2], 1e-3)
    span = float(max(high[0] - low[0], high[1] - low[1])) + 1.2 * tall
    reach = light.direction[:2] / light.direction[2] * tall
    middle = (low[:2] + high[:2]) / 2 - reach / 2
    cell = 1.35 * span / _FLOOR
    origin = middle - cell * _FLOOR / 2
    heights = np.array([0.12, 0.35, 9.0]) * max(tall, 0.3 * span)
    layers = np.zeros((3, _FLOOR, _FLOOR), np.float32)
    args = (points, body.faces, body.keep, margin)
    floor_shadow(*args, light.direction, origin, cell, heights, layers)
    contact = np.zeros((2, _FLOOR, _FLOOR), np.float32)
    floor_shadow(
        *args, np.array([0.0, 0.0, 1.0]), origin, cell, np.array([0.10 * tall, 9.0]), contact
    )
    soft = [box_blur(layers[k], radius, 2) for k, radius in enumerate((2, 4, 7))]
    near = box_blur(contact[0], 3, 2)
    wide = box_blur(np.maximum(contact[0], 0.5 * contact[1]), 9, 2)
    cast = 1 - (1 - 0.9 * soft[0]) * (1 - 0.85 * soft[1]) * (1 - 0.7 * soft[2])
    strength = 0.3 if glassy.mean() < 0.6 else 0.17
    dark = 1 - (1 - strength * cast) * (1 - 0.42 * near) * (1 - 0.25 * wide)
    frame = np.array([origin[0], origin[1], 1 / cell])
    return np.ascontiguousarray(dark, np.float64), frame
