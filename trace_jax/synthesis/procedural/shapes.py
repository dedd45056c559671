"""Primitive surfaces: every recipe part is one of these, as a grid of vertices.

A surface has its vertices' positions, `uv` (surface coordinates in object units, for patterns
of constant scale), `st` (coordinates 0-1 within the part: s across, 0.5 at the front; t from
bottom to top; s beyond 1 means "no label here") and `weld` (vertices with one number share a
normal; copies at hard edges do not). Axes: x right, y back, z up; the front is -y.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

# Target edge in object units (an object is about 1 unit large): damage needs this resolution.
EDGE = 0.045
# `st.s` of surfaces that labels and screens must leave out.
NO_LABEL = 9.0


@dataclasses.dataclass
class Surface:
    """One primitive: points [V,3], uv [V,2], st [V,2], faces [F,3], weld [V]."""

    points: np.ndarray
    uv: np.ndarray
    st: np.ndarray
    faces: np.ndarray
    weld: np.ndarray


@functools.lru_cache(maxsize=4096)
def _grid_faces(rows: int, columns: int) -> np.ndarray:
    r, c = np.meshgrid(np.arange(rows - 1), np.arange(columns - 1), indexing="ij")
    a = (r * columns + c).ravel()
    b, d, e = a + 1, a + columns, a + columns + 1
    return np.concatenate([np.stack([a, b, e], 1), np.stack([a, e, d], 1)]).astype(np.int32)


def join(surfaces: Sequence[Surface]) -> Surface:
    """Surfaces side by side as one, each with its own normals."""
    vertex = np.cumsum([0, *(len(s.points) for s in surfaces)])
    return Surface(
        np.concatenate([s.points for s in surfaces]),
        np.concatenate([s.uv for s in surfaces]),
        np.concatenate([s.st for s in surfaces]),
        np.concatenate([s.faces + v for s, v in zip(surfaces, vertex, strict=False)]).astype(
            np.int32
        ),
        np.concatenate([s.weld + v for s, v in zip(surfaces, vertex, strict=False)]),
    )


def _count(length: float, low: int, high: int) -> int:
    return int(min(max(np.ceil(length / EDGE), low), high))


def smooth_curve(points: np.ndarray, samples: int, closed: bool = False) -> np.ndarray:
    """Catmull-Rom through rows of `points`; `samples` a segment."""
    count = len(points)
    if closed:
        extended = np.concatenate([points[-1:], points, points[:2]])
        segments = count
    else:
        extended = np.concatenate(
            [2 * points[:1] - points[1:2], points, 2 * points[-1:] - points[-2:-1]]
        )
        segments = count - 1
    u = (np.arange(samples) / samples)[:, None]
    rows = []
    for k in range(segments):
        p0, p1, p2, p3 = extended[k : k + 4]
        rows.append(
            0.5
            * (
                2 * p1
                + (p2 - p0) * u
                + (2 * p0 - 5 * p1 + 4 * p2 - p3) * u**2
                + (3 * p1 - p0 - 3 * p2 + p3) * u**3
            )
        )
    if not closed:
        rows.append(points[-1:])
    return np.concatenate(rows)


def loft(
    sections: Sequence[Sequence[float]],
    sides: int = 0,
    power: float = 2.0,
    smooth: bool = False,
) -> Surface:
    """Stacked cross-sections [z, rx, (ry, ox, oy)]: vases, cylinders, cones, bags, domes.

    Args:
      sections: bottom to top in drawing order; radius 0 closes a cap.
      sides: flat sides (a prism), or 0 for round.
      power: superellipse exponent; 2 is an ellipse, 5 a rounded square.
      smooth: one curve through all sections, otherwise creases at each.
    """
    rows = np.zeros((len(sections), 5))
    for k, section in enumerate(sections):
        rows[k, : len(section)] = section
        if len(section) < 3:
            rows[k, 2] = rows[k, 1]
    radius = float(np.abs(rows[:, 1:3]).max())
    around = sides * max(1, _count(2 * radius * np.pi / max(sides, 1), 1, 4)) if sides else 0
    around = around or _count(2 * np.pi * radius, 10, 32)
    theta = np.linspace(0.0, 2 * np.pi, around + 1) + np.pi / 2
    if sides:
        theta = theta + np.pi / sides
    cosine, sine = np.cos(theta), np.sin(theta)
    if power != 2.0:
        cosine = np.sign(cosine) * np.abs(cosine) ** (2 / power)
        sine = np.sign(sine) * np.abs(sine) ** (2 / power)
    elif sides:
        half = np.pi / sides
        local = np.mod(theta - np.pi / 2 - np.pi / sides, 2 * half) - half
        stretch = np.cos(half) / np.cos(local)
        cosine, sine = cosine * stretch, sine * stretch
    low, high = rows[:, 0].min(), rows[:, 0].max()
    tall = max(high - low, 1e-6)
    curves = []
    if smooth:
        length = np.abs(np.diff(rows[:, :3], axis=0)).max(1).sum()
        samples = max(2, _count(length / max(len(rows) - 1, 1), 2, 8))
        fine = smooth_curve(rows, samples)
        fine[:, 1:3] = np.maximum(fine[:, 1:3], 0.0)
        curves.append(fine)
    else:
        for first, last in zip(rows[:-1], rows[1:], strict=True):
            span = np.abs(last - first)[:3].max()
            n = _count(span, 1, 20)
            curves.append(first + (last - first) * np.linspace(0, 1, n + 1)[:, None])
    strips = []
    for curve in curves:
        ring, columns = len(curve), around + 1
        x = curve[:, 1:2] * cosine + curve[:, 3:4]
        y = curve[:, 2:3] * sine + curve[:, 4:5]
        z = np.broadcast_to(curve[:, 0:1], x.shape)
        flat = np.ptp(curve[:, 0]) < 0.2 * np.ptp(curve[:, 1])
        s = np.broadcast_to(np.linspace(0, 1, columns), x.shape)
        t = (z - low) / tall
        if flat:
            u, v = x, y
            s = np.full_like(x, NO_LABEL)
        else:
            steps = np.abs(np.diff(curve[:, :3], axis=0))
            arc = np.concatenate([[0], np.cumsum(np.sqrt(steps[:, 0] ** 2 + steps[:, 1] ** 2))])
            u = s * (2 * np.pi * max(radius, 1e-3))
            v = np.broadcast_to(curve[0, 0] + arc[:, None], x.shape)
        weld = np.arange(ring * columns).reshape(ring, columns)
        weld[:, -1] = weld[:, 0]
        strips.append(
            Surface(
                np.stack([x, y, z], -1).reshape(-1, 3),
                np.stack([u, v], -1).reshape(-1, 2),
                np.stack([s, t], -1).reshape(-1, 2),
                _grid_faces(ring, columns),
                weld.ravel(),
            )
        )
    out = join(strips)
    if sides:
        out = _faceted(out)
    return out


def _faceted(surface: Surface) -> Surface:
    index = surface.faces.ravel()
    count = len(index)
    return Surface(
        surface.points[index],
        surface.uv[index],
        surface.st[index],
        np.arange(count, dtype=np.int32).reshape(-1, 3),
        np.arange(count),
    )


_BOX_FACES = (  # origin corner, first axis, second axis, labelled
    ((-1, -1, -1), 0, 2, True),  # front
    ((1, 1, -1), 0, 2, True),  # back
    ((1, -1, -1), 1, 2, True),  # right
    ((-1, 1, -1), 1, 2, True),  # left
    ((-1, -1, 1), 0, 1, False),  # top
    ((-1, 1, -1), 0, 1, False),  # bottom
)


@functools.lru_cache(maxsize=4096)
def _box_grid(nx: int, ny: int, nz: int) -> Surface:
    counts = (nx, ny, nz)
    parts = []
    for corner, a, b, labelled in _BOX_FACES:
        origin = np.array(corner, float)
        da, db = np.zeros(3), np.zeros(3)
        da[a] = -2 * origin[a]
        db[b] = -2 * origin[b]
        s, t = np.meshgrid(np.linspace(0, 1, counts[a] + 1), np.linspace(0, 1, counts[b] + 1))
        points = origin + s[..., None] * da + t[..., None] * db
        st = np.stack([s if labelled else np.full_like(s, NO_LABEL), (points[..., 2] + 1) / 2], -1)
        rows, columns = s.shape
        parts.append(
            Surface(
                points.reshape(-1, 3),
                np.stack([points[..., a], points[..., b]], -1).reshape(-1, 2),
                st.reshape(-1, 2),
                _grid_faces(rows, columns),
                np.arange(s.size),
            )
        )
    return join(parts)


@functools.lru_cache(maxsize=4096)
def _box_weld(nx: int, ny: int, nz: int) -> np.ndarray:
    grid = np.round((_box_grid(nx, ny, nz).points + 1) * np.array([nx, ny, nz]) * 8).astype(int)
    keys = grid[:, 0] + 4096 * (grid[:, 1] + 4096 * grid[:, 2])
    return np.unique(keys, return_inverse=True)[1].ravel()


def box(size: Sequence[float], radius: float = 0.0, taper: float = 1.0) -> Surface:
    """A box standing on z = 0; `radius` rounds its edges, `taper` scales the top."""
    half = np.array(size, float) / 2
    counts = [_count(2 * h, 1 if radius <= 0 else 4, 20) for h in half]
    grid = _box_grid(*counts)
    points = grid.points * half
    weld = grid.weld
    if radius > 0:
        r = min(radius, 0.98 * half.min())
        # Rows bunch towards the edges, so that few of them draw the rounding.
        inner = half - r
        unit = grid.points
        bunch = np.sin(unit * (np.pi / 2) * 0.999)
        points = (0.35 * unit + 0.65 * bunch) * half
        core = np.clip(points, -inner, inner)
        offset = points - core
        norm = np.linalg.norm(offset, axis=1, keepdims=True)
        points = core + offset * np.where(norm > 0, r / np.maximum(norm, 1e-9), 0)
        weld = _box_weld(*counts)
    faces_uv = _box_uv(*counts)
    uv = np.take_along_axis(points, faces_uv, axis=1)
    if taper != 1.0:
        scale = 1 + (taper - 1) * (points[:, 2:3] + half[2]) / (2 * half[2])
        points = np.concatenate([points[:, :2] * scale, points[:, 2:]], 1)
    points = points + np.array([0, 0, half[2]])
    return Surface(points, uv, grid.st, grid.faces, weld)


@functools.lru_cache(maxsize=4096)
def _box_uv(nx: int, ny: int, nz: int) -> np.ndarray:
    counts = (nx, ny, nz)
    rows = [np.tile([[a, b]], ((counts[a] + 1) * (counts[b] + 1), 1)) for _, a, b, _ in _BOX_FACES]
    return np.concatenate(rows)


def tube(
    path: Sequence[Sequence[float]],
    radius: float | Sequence[float],
    closed: bool = False,
    smooth: bool = False,
    flat: float = 1.0,
) -> Surface:
    """A round bar along a path: rods, handles, hoses, rings; `flat` < 1 makes it a strap."""
    points = np.array(path, float)
    radii = np.broadcast_to(np.asarray(radius, float), (len(points),))
    table = np.concatenate([points, radii[:, None]], 1)
    spans = np.linalg.norm(np.diff(points, axis=0), axis=1)
    if smooth:
        table = smooth_curve(table, max(3, _count(spans.mean(), 3, 8)), closed)
    else:
        if closed:
            table = np.concatenate([table, table[:1]])
        fine = []
        for first, last in zip(table[:-1], table[1:], strict=True):
            n = _count(float(np.linalg.norm((last - first)[:3])), 1, 20)
            fine.append(first + (last - first) * (np.arange(n) / n)[:, None])
        table = np.concatenate([*fine, table[-1:]] if not closed else fine)
    if closed:
        table = np.concatenate([table, table[:1]])
    centre, radii = table[:, :3], np.maximum(table[:, 3], 1e-4)
    tangent = np.gradient(centre, axis=0)
    if closed:
        tangent[0] = tangent[-1] = centre[1] - centre[-2]
    tangent /= np.maximum(np.linalg.norm(tangent, axis=1, keepdims=True), 1e-9)
    around = _count(2 * np.pi * float(radii.max()), 6, 14)
    theta = np.linspace(0, 2 * np.pi, around + 1)
    normal = np.cross(tangent[0], [0.0, 0.0, 1.0])
    if np.linalg.norm(normal) < 1e-3:
        normal = np.array([1.0, 0.0, 0.0])
    rings = []
    for k in range(len(centre)):
        normal = normal - tangent[k] * (normal @ tangent[k])
        normal /= max(np.linalg.norm(normal), 1e-9)
        binormal = np.cross(tangent[k], normal)
        rings.append(
            centre[k]
            + radii[k]
            * (np.cos(theta)[:, None] * normal + flat * np.sin(theta)[:, None] * binormal)
        )
    if closed:
        rings[-1] = rings[0]
    arc = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(centre, axis=0), axis=1))])
    total = max(arc[-1], 1e-6)
    ends = [] if closed else [(0, rings[0]), (-1, rings[-1])]
    grid = np.stack(rings)
    ring, columns = grid.shape[:2]
    weld = np.arange(ring * columns).reshape(ring, columns)
    weld[:, -1] = weld[:, 0]
    s = np.broadcast_to(np.linspace(0, 1, columns), (ring, columns))
    v = np.broadcast_to(arc[:, None], (ring, columns))
    u = s * 2 * np.pi * float(radii.max())
    parts = [
        Surface(
            grid.reshape(-1, 3),
            np.stack([u, v], -1).reshape(-1, 2),
            np.stack([s, v / total], -1).reshape(-1, 2),
            _grid_faces(ring, columns),
            weld.ravel(),
        )
    ]
    for index, circle in ends:
        disc = np.concatenate([centre[index][None], circle])
        n = len(circle)
        fan = np.stack([np.zeros(n - 1, int), np.arange(1, n), np.arange(2, n + 1)], 1)
        if index == 0:
            fan = fan[:, ::-1]
        parts.append(
            Surface(
                disc,
                np.full((n + 1, 2), arc[index]),
                np.tile([[NO_LABEL, 0.0 if index == 0 else 1.0]], (n + 1, 1)),
                np.ascontiguousarray(fan, np.int32),
                np.arange(n + 1),
            )
        )
    return join(parts)


def plate(outline: Sequence[Sequence[float]], height: float, smooth: bool = False) -> Surface:
    """A flat outline [(x, y), ...] (star-shaped about its mean) raised along z."""
    edge = np.array(outline, float)
    if smooth:
        edge = smooth_curve(edge, 5, closed=True)
    loop = np.concatenate([edge, edge[:1]])
    fine = []
    for first, last in zip(loop[:-1], loop[1:], strict=True):
        n = _count(float(np.linalg.norm(last - first)), 1, 12)
        fine.append(first + (last - first) * (np.arange(n) / n)[:, None])
    loop = np.concatenate([*fine, loop[-1:]])
    low, span = loop.min(0), np.maximum(np.ptp(loop, axis=0), 1e-6)
    columns = len(loop)
    arc = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(loop, axis=0), axis=1))])
    rows = _count(height, 1, 8) + 1
    z = np.broadcast_to(np.linspace(0, height, rows)[:, None], (rows, columns))
    side = np.stack([*(np.broadcast_to(loop[:, k], z.shape) for k in (0, 1)), z], -1)
    weld = np.arange(rows * columns).reshape(rows, columns)
    if smooth:
        weld[:, -1] = weld[:, 0]
    parts = [
        Surface(
            side.reshape(-1, 3),
            np.stack([np.broadcast_to(arc, z.shape), z], -1).reshape(-1, 2),
            np.stack([np.full(z.shape, NO_LABEL), z / max(height, 1e-6)], -1).reshape(-1, 2),
            _grid_faces(rows, columns),
            weld.ravel(),
        )
    ]
    middle = edge.mean(0)
    rings = _count(float(np.linalg.norm(edge - middle, axis=1).max()), 2, 10)
    share = np.linspace(0, 1, rings + 1)[:, None, None]
    cap = middle + (loop - middle) * share
    st = (cap - low) / span
    for top in (False, True):
        points = np.concatenate([cap, np.full((*cap.shape[:2], 1), height if top else 0.0)], -1)
        faces = _grid_faces(rings + 1, columns)
        parts.append(
            Surface(
                points.reshape(-1, 3),
                cap.reshape(-1, 2).copy(),
                st.reshape(-1, 2) if top else np.full_like(st.reshape(-1, 2), NO_LABEL),
                faces if not top else np.ascontiguousarray(faces[:, ::-1]),
                np.arange(cap.shape[0] * columns),
            )
        )
    return join(parts)


def ellipsoid(size: Sequence[float], low: float = -90.0, high: float = 90.0) -> Surface:
    """An ellipsoid with half-axes `size` about the origin, between two latitudes in degrees."""
    rx, ry, rz = size
    n = max(6, _count(2.2 * max(size), 6, 18))
    phi = np.radians(np.linspace(low, high, n + 1))
    rows = np.stack([rz * np.sin(phi), rx * np.cos(phi), ry * np.cos(phi)], 1)
    rows[:, 1:] = np.maximum(rows[:, 1:], 0)
    around = _count(2 * np.pi * max(rx, ry), 10, 32)
    theta = np.linspace(0.0, 2 * np.pi, around + 1) + np.pi / 2
    x, y = rows[:, 1:2] * np.cos(theta), rows[:, 2:3] * np.sin(theta)
    z = np.broadcast_to(rows[:, 0:1], x.shape)
    s = np.broadcast_to(np.linspace(0, 1, around + 1), x.shape)
    t = np.broadcast_to(np.linspace(0, 1, n + 1)[:, None], x.shape)
    weld = np.arange(x.size).reshape(x.shape)
    weld[:, -1] = weld[:, 0]
    if high >= 90:
        weld[-1] = weld[-1, 0]
    if low <= -90:
        weld[0] = weld[0, 0]
    return Surface(
        np.stack([x, y, z], -1).reshape(-1, 3),
        np.stack([s * 2 * np.pi * max(rx, ry), t * np.pi * rz], -1).reshape(-1, 2),
        np.stack([s, t], -1).reshape(-1, 2),
        _grid_faces(n + 1, around + 1),
        weld.ravel(),
    )
