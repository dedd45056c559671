"""Many bodies as one, each in its place, and what of each can be seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from trace_jax.synthesis.procedural import patterns as pt
from trace_jax.synthesis.procedural.camera import Camera, Light
from trace_jax.synthesis.procedural.mesh import vertex_normals
from trace_jax.synthesis.procedural.render import (
    SUPERSAMPLING,
    Body,
    draw,
    empty,
    encode_srgb,
    shadow_map,
)
from trace_jax.synthesis.procedural.shading import shade

_SHADOW_MAP = 420
# Length in metres that nearness (occlusion, shadow bias) is measured in: about a chair's.
_UNIT = 1.1


@dataclasses.dataclass(frozen=True)
class Placed:
    """A body in the world.

    Attributes:
      body: in its own units and place.
      scale: metres a unit. yaw: degrees. at: position of its origin, metres.
      shadow: whether it throws one (walls do not: the light is in the room).
    """

    body: Body
    scale: float
    yaw: float
    at: tuple[float, float, float]
    shadow: bool = True

    def world(self) -> np.ndarray:
        """Points [V, 3] in metres."""
        a = np.radians(self.yaw)
        turn = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
        return self.body.points.astype(np.float64) @ turn.T * self.scale + np.array(self.at)


@dataclasses.dataclass(frozen=True)
class Seen:
    """A rendered scene.

    Attributes:
      pixels: uint8 [H, W, 3].
      owner: int32 [H * s, W * s], which placed body is in front at every sample, -1 for none; s is
        render.SUPERSAMPLING.
    """

    pixels: np.ndarray
    owner: np.ndarray


def merge(placed: Sequence[Placed]) -> tuple[Body, np.ndarray, np.ndarray]:
    """All bodies as one in the world; also which body each face is of, and which throw shadows."""
    bodies = [one.body for one in placed]
    counts = np.cumsum([0, *(len(b.points) for b in bodies)])
    rows = np.cumsum([0, *(len(b.table) for b in bodies)])
    faces = [b.faces + first for b, first in zip(bodies, counts, strict=False)]
    whole = Body(
        points=np.concatenate([one.world() for one in placed]).astype(np.float32),
        rest=np.concatenate([b.rest for b in bodies]),
        uv=np.concatenate([b.uv for b in bodies]),
        st=np.concatenate([b.st for b in bodies]),
        faces=np.concatenate(faces).astype(np.int32),
        weld=np.concatenate([b.weld + c for b, c in zip(bodies, counts, strict=False)]),
        finish=np.concatenate([b.finish + r for b, r in zip(bodies, rows, strict=False)]).astype(
            np.int32
        ),
        table=np.concatenate([b.table for b in bodies]),
        kinds=np.concatenate([b.kinds for b in bodies]),
        keep=np.concatenate([b.keep for b in bodies]),
        state=np.concatenate([b.state for b in bodies]),
        opacity=max(b.opacity for b in bodies),
        shard_scale=bodies[0].shard_scale,
        seed=bodies[0].seed,
    )
    sizes = [len(b.faces) for b in bodies]
    owner = np.repeat(np.arange(len(bodies)), sizes)
    shadow = np.repeat([one.shadow for one in placed], sizes)
    return whole, owner, shadow


def look(placed: Sequence[Placed], camera: Camera, light: Light, width: int, height: int) -> Seen:
    """Draws the bodies; the picture is the middle band of the square that the camera sees.

    Args:
      placed: everything, walls first.
      camera: its focal length is in picture widths.
      width, height: pixels; height at most width.
    """
    body, owner_of, thrower = merge(placed)
    wide = width * SUPERSAMPLING
    points = np.ascontiguousarray(body.points)
    rest = np.ascontiguousarray(body.rest, np.float32)
    state = np.ascontiguousarray(body.state, np.float32)
    margin = np.ascontiguousarray(state[:, 3])
    normals = vertex_normals(points, body.faces, body.weld)
    front = _in_front(points, body.faces, camera)
    screen = camera.project(points.astype(np.float64))
    screen[:, :2] *= wide
    glassy = body.table[:, pt.ALPHA][body.finish[body.faces[:, 0]]] < 0.995
    opaque = draw(screen, body, margin, rest, body.keep & front & ~glassy, wide, True)
    clear = body.keep & front & glassy
    glass = draw(screen, body, margin, rest, clear, wide, True) if clear.any() else empty(wide)
    shadow = shadow_map(points, body, body.keep & thrower, light, _UNIT, _SHADOW_MAP)
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
        *shadow,
        np.zeros((4, 4)),
        np.array([0.0, 0.0, 1.0]),
        camera.eye,
        camera.axes,
        np.array([camera.focal, *camera.centre]),
        np.array([*light.direction, light.key, light.ambient]),
        body.seed,
        out,
    )
    nearest = np.where(glass[0] < opaque[0], glass[1], opaque[1])
    owner = np.where(nearest >= 0, owner_of[np.maximum(nearest, 0)], -1).astype(np.int32)
    top = (width - height) // 2 * SUPERSAMPLING
    band = slice(top, top + height * SUPERSAMPLING)
    small = out[band].reshape(height, SUPERSAMPLING, width, SUPERSAMPLING, 3).mean((1, 3))
    return Seen(encode_srgb(small), owner[band])


def alone(one: Placed, camera: Camera, width: int, height: int) -> int:
    """Samples that a body would cover with nothing before it."""
    body, _, _ = merge([one])
    wide = width * SUPERSAMPLING
    screen = camera.project(body.points.astype(np.float64))
    screen[:, :2] *= wide
    keep = body.keep & _in_front(body.points, body.faces, camera)
    margin = np.ascontiguousarray(body.state[:, 3], np.float32)
    rest = np.ascontiguousarray(body.rest, np.float32)
    depth, _, _ = draw(screen, body, margin, rest, keep, wide, True)
    top = (width - height) // 2 * SUPERSAMPLING
    return int(np.isfinite(depth[top : top + height * SUPERSAMPLING]).sum())


def _in_front(points: np.ndarray, faces: np.ndarray, camera: Camera) -> np.ndarray:
    """Faces wholly before the camera: the rasteriser does not clip."""
    depth = (points.astype(np.float64) - camera.eye) @ camera.axes[2]
    return (depth[faces] > 0.15).all(axis=1)
