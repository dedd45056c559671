"""Many bodies as one, each in its place, and what of each can be seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from trace_jax.synthesis.procedural import patterns as pt
from trace_jax.synthesis.procedural.camera import Camera
from trace_jax.synthesis.procedural.mesh import vertex_normals
from trace_jax.synthesis.procedural.render import (
    SUPERSAMPLING,
    Body,
    draw,
    empty,
    encode_srgb,
    shadow_map,
)
from trace_jax.synthesis.procedural.scenes.view import View
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


def look(placed: Sequence[Placed], view: View, film: np.ndarray, dim: float = 1.0) -> Seen:
    """Draws the bodies as the view shows them.

    Args:
      placed: everything, the place itself first.
      view: its picture is the middle band of the square that the camera sees.
      film: [V] of the place's points, how much smoke has darkened them, 0-1.
      dim: how bright the light is.
    """
    body, owner_of, thrower = merge(placed)
    camera, light = view.camera, view.light
    wide = view.width * SUPERSAMPLING
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
    nearest = np.where(glass[0] < opaque[0], glass[1], opaque[1])
    owner = np.where(nearest >= 0, owner_of[np.maximum(nearest, 0)], -1).astype(np.int32)
    smoked = _smoked(view, owner, opaque[1], opaque[2], body.faces, film)
    plain = _spare(view, owner, opaque[1], glass[1])
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
        np.array([*light.direction, light.key * dim, light.ambient * dim]),
        body.seed,
        out,
    )
    band = _band(view)
    out = out[band]
    # Two samples of a pixel, or all four.
    pair = out[::2, ::2] + out[1::2, 1::2]
    others = out[::2, 1::2] + out[1::2, ::2]
    small = np.where(plain[..., None], 0.5 * pair, 0.25 * (pair + others))
    small *= view.tint * (_falloff(view) * (1 - smoked))[..., None]
    return Seen(encode_srgb(small), owner[band])


def _band(view: View) -> slice:
    """Rows of the square's samples that are the picture."""
    top = (view.width - view.height) // 2 * SUPERSAMPLING
    return slice(top, top + view.height * SUPERSAMPLING)


def _smoked(
    view: View,
    owner: np.ndarray,
    face: np.ndarray,
    weights: np.ndarray,
    faces: np.ndarray,
    film: np.ndarray,
) -> np.ndarray:
    """How much smoke darkens every pixel [H, W]: the film on the place, by one of its samples.

    The shader's own soot breaks up at its edge, which suits objects; walls grade.
    """
    band = _band(view)
    mine = [owner[band][k::SUPERSAMPLING, k::SUPERSAMPLING] == 0 for k in range(SUPERSAMPLING)]
    out = np.zeros((view.height, view.width))
    for k in range(SUPERSAMPLING):
        here = mine[k]
        corner = film[faces[face[band][k::SUPERSAMPLING, k::SUPERSAMPLING][here]]]
        w = weights[band][k::SUPERSAMPLING, k::SUPERSAMPLING][here]
        value = w[:, 0] * corner[:, 0] + w[:, 1] * corner[:, 1]
        out[here] += value + (1 - w[:, 0] - w[:, 1]) * corner[:, 2]
    return out / SUPERSAMPLING


def _spare(view: View, owner: np.ndarray, face: np.ndarray, glass: np.ndarray) -> np.ndarray:
    """Marks samples that need no shading as empty: those outside the picture, and one of two in
    pixels that show nothing but the place; shading is most of the cost.

    Returns:
      Which pixels are shaded by two samples, bool [H, W].
    """
    band = _band(view)
    outside = np.ones(len(owner), bool)
    outside[band] = False
    face[outside], glass[outside] = -1, -1
    plain = np.ones((view.height, view.width), bool)
    for j in range(SUPERSAMPLING):
        for i in range(SUPERSAMPLING):
            plain &= owner[band][j::SUPERSAMPLING, i::SUPERSAMPLING] == 0
    for j, i in ((0, 1), (1, 0)):
        face[band][j::SUPERSAMPLING, i::SUPERSAMPLING][plain] = -1
        glass[band][j::SUPERSAMPLING, i::SUPERSAMPLING][plain] = -1
    return plain


def _falloff(view: View) -> np.ndarray:
    """Brightness of every pixel [H, W]: lamps and lenses leave the corners darker."""
    x = (np.arange(view.width) + 0.5) / view.width - 0.5
    y = (np.arange(view.height) + 0.5 - view.height / 2) / view.width
    return 1 - view.falloff * 2 * (x[None, :] ** 2 + y[:, None] ** 2)


def alone(one: Placed, view: View) -> int:
    """Samples that a body would cover with nothing before it."""
    body, _, _ = merge([one])
    wide = view.width * SUPERSAMPLING
    screen = view.camera.project(body.points.astype(np.float64))
    screen[:, :2] *= wide
    keep = body.keep & _in_front(body.points, body.faces, view.camera)
    if not keep.any():
        return 0
    band = _band(view)
    # A buffer of its own box, moved by whole samples, covers the same ones.
    seen = screen[body.faces[keep]].reshape(-1, 3)
    x0, x1 = (int(np.clip(v, 0, wide)) for v in (seen[:, 0].min(), seen[:, 0].max() + 1))
    y0, y1 = (
        int(np.clip(v, band.start, band.stop)) for v in (seen[:, 1].min(), seen[:, 1].max() + 1)
    )
    if x1 <= x0 or y1 <= y0:
        return 0
    screen[:, :2] -= (x0, y0)
    margin = np.ascontiguousarray(body.state[:, 3], np.float32)
    rest = np.ascontiguousarray(body.rest, np.float32)
    depth, _, _ = draw(screen, body, margin, rest, keep, max(x1 - x0, y1 - y0), True)
    return int(np.isfinite(depth[: y1 - y0, : x1 - x0]).sum())


def _in_front(points: np.ndarray, faces: np.ndarray, camera: Camera) -> np.ndarray:
    """Faces wholly before the camera: the rasteriser does not clip."""
    depth = (points.astype(np.float64) - camera.eye) @ camera.axes[2]
    return (depth[faces] > 0.15).all(axis=1)
