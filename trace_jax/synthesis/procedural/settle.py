"""What falls, falls: loose islands drop, unsupported bodies topple, crumbs turn to ash.

After the fire has cut and bent a mesh, its surviving vertices form islands. The largest one that
stands on the floor stays; others that stand topple when their centre of mass leaves their
support; those that hang in the air drop onto whatever lies below. Nothing floats.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numba import njit
from scipy.spatial import cKDTree

from trace_jax.synthesis.procedural.camera import Camera
from trace_jax.synthesis.procedural.mesh import Mesh

# Islands below this share of the pristine area are crumbs.
_CRUMB_AIR, _CRUMB_FLOOR = 0.012, 0.002
_CELLS = 40
_BORDER = 0.03
_ANGLES = np.linspace(0, 2 * np.pi, 16, endpoint=False)
_DIRECTIONS = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], 1)


@dataclasses.dataclass(frozen=True)
class Joints:
    """What holds a mesh together, found once on the pristine object.

    Attributes:
      links: [L, 2] pairs of vertices that hold to one another: copies at hard edges, and the
        nearest vertices of touching pieces.
      order: [P] pieces from those that stand on the floor upwards; the first `roots` are those.
      first: [P + 1] where each ordered piece's `ties` begin.
      ties: [T, 2] (vertex of the piece, vertex of an earlier piece that it touches).
      skin: [P] by order, whether the piece lies on another all over, like a label.
      members, member_first: vertices of each ordered piece.
      overhang: how far the pristine centre of mass lies outside its support; an umbrella that
        the studio holds upright does not topple before its support has changed.
    """

    links: np.ndarray
    order: np.ndarray
    roots: int
    first: np.ndarray
    ties: np.ndarray
    skin: np.ndarray
    members: np.ndarray
    member_first: np.ndarray
    overhang: float


def find_joints(mesh: Mesh, area: np.ndarray) -> Joints:
    """Links copies of one point, and each vertex to its nearest one of another piece if near.

    Args:
      area: [V] surface carried by each vertex.
    """
    points = mesh.points.astype(np.float64)
    keys = np.round(points / (1e-4 * mesh.diagonal)).astype(np.int64)
    code = (keys[:, 0] * 2_000_003 + keys[:, 1]) * 2_000_003 + keys[:, 2]
    order = np.argsort(code, kind="stable")
    same = np.flatnonzero(code[order][1:] == code[order][:-1])
    pairs = [np.stack([order[same], order[same + 1]], 1)]
    count = int(mesh.piece.max()) + 1
    if count > 1:
        gap, near = cKDTree(points).query(points, k=10, distance_upper_bound=0.05 * mesh.diagonal)
        near = np.where(np.isfinite(gap), near, 0)
        foreign = np.isfinite(gap) & (mesh.piece[near] != mesh.piece[:, None])
        touching = np.flatnonzero(foreign.any(1))
        pairs.append(np.stack([touching, near[touching, foreign[touching].argmax(1)]], 1))
        # What touches nothing hangs on its nearest neighbour.
        whole = np.ones(len(points), bool)
        while True:
            label = islands(whole, mesh.faces, np.concatenate(pairs).astype(np.int64))
            if label.max() == 0:
                break
            mine = np.flatnonzero(label == label.max())
            others = np.flatnonzero(label != label.max())
            gap, nearest = cKDTree(points[others]).query(points[mine], k=1)
            best = np.argsort(gap, kind="stable")[:6]
            pairs.append(np.stack([mine[best], others[nearest[best]]], 1))
    links = np.concatenate(pairs).astype(np.int64)
    over, _, _ = _overhang(points, area, _floor(mesh))
    return Joints(links, *_hierarchy(mesh, links), max(over, 0.0))


def _floor(mesh: Mesh) -> float:
    """Height up to which a point counts as touching the floor."""
    return 0.04 * float(mesh.points[:, 2].max()) + 0.006 * mesh.diagonal


def _overhang(
    points: np.ndarray, weight: np.ndarray, floor: float
) -> tuple[float, np.ndarray, float]:
    """How far the centre of mass lies outside the points near the floor.

    Returns:
      The distance (negative inside), the direction [2], and the support's reach along it.
    """
    centre = weight @ points / max(weight.sum(), 1e-12)
    near = points[points[:, 2] < floor]
    if not len(near):
        near = points[[int(points[:, 2].argmin())]]
    edge = (near[:, :2] @ _DIRECTIONS.T).max(0)
    over = _DIRECTIONS @ centre[:2] - edge
    worst = int(over.argmax())
    return float(over[worst]), _DIRECTIONS[worst], float(edge[worst])


def _hierarchy(
    mesh: Mesh, links: np.ndarray
) -> tuple[np.ndarray, int, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Which piece hangs on which: from the floor upwards over touching pieces."""
    count = int(mesh.piece.max()) + 1
    both = np.concatenate([links, links[:, ::-1]])
    both = both[mesh.piece[both[:, 0]] != mesh.piece[both[:, 1]]]
    child, parent = mesh.piece[both[:, 0]], mesh.piece[both[:, 1]]
    lowest = np.full(count, np.inf)
    np.minimum.at(lowest, mesh.piece, mesh.points[:, 2])
    size = np.bincount(mesh.piece, minlength=count)
    touching = [np.flatnonzero(child == k) for k in range(count)]
    covered = np.array(
        [len(np.unique(both[touching[k], 0])) / max(size[k], 1) for k in range(count)]
    )
    standing = (lowest < 0.02 * mesh.points[:, 2].max()) & (covered < 0.6)
    if not standing.any():
        standing[np.argmin(lowest)] = True
    order = [int(k) for k in np.flatnonzero(standing)]
    roots, placed = len(order), standing.copy()
    ties: list[np.ndarray] = [np.zeros((0, 2), np.int64)] * roots
    while not placed.all():
        reach = np.bincount(child[placed[parent] & ~placed[child]], minlength=count)
        following = int(reach.argmax()) if reach.any() else int(np.flatnonzero(~placed)[0])
        mine = touching[following]
        ties.append(both[mine[placed[parent[mine]]]])
        placed[following] = True
        order.append(following)
    first = np.cumsum([0, *(len(t) for t in ties)])
    skin = (covered >= 0.6)[order] & (np.diff(first) > 0)
    members = np.argsort(mesh.piece, kind="stable")
    starts = np.cumsum([0, *size])
    members = np.concatenate([members[starts[k] : starts[k + 1]] for k in order])
    return (
        np.array(order),
        roots,
        first.astype(np.int64),
        np.concatenate(ties).astype(np.int64),
        skin,
        members.astype(np.int64),
        np.cumsum([0, *(size[k] for k in order)]).astype(np.int64),
    )


@njit(cache=True)
def glue(
    rest: np.ndarray,
    bent: np.ndarray,
    roots: int,
    first: np.ndarray,
    ties: np.ndarray,
    skin: np.ndarray,
    members: np.ndarray,
    member_first: np.ndarray,
) -> None:
    """Moves pieces along with those that carry them, in place: a handle follows its lid down.

    Args:
      rest, bent: [V, 3] pristine and bent positions; see Joints for the others.
    """
    for k in range(roots, first.shape[0] - 1):
        begin, end = first[k], first[k + 1]
        if begin == end:
            continue
        mx, my, mz = 0.0, 0.0, 0.0
        for t in range(begin, end):
            a, b = ties[t, 0], ties[t, 1]
            mx += (bent[b, 0] - rest[b, 0]) - (bent[a, 0] - rest[a, 0])
            my += (bent[b, 1] - rest[b, 1]) - (bent[a, 1] - rest[a, 1])
            mz += (bent[b, 2] - rest[b, 2]) - (bent[a, 2] - rest[a, 2])
        n = end - begin
        for m in range(member_first[k], member_first[k + 1]):
            v = members[m]
            bent[v, 0] += mx / n
            bent[v, 1] += my / n
            bent[v, 2] += mz / n
        if skin[k]:
            for t in range(begin, end):
                a, b = ties[t, 0], ties[t, 1]
                for c in range(3):
                    bent[a, c] = rest[a, c] + bent[b, c] - rest[b, c]
        for m in range(member_first[k], member_first[k + 1]):
            v = members[m]
            bent[v, 2] = max(bent[v, 2], 0.0)


@njit(cache=True)
def _root(parent: np.ndarray, v: int) -> int:
    while parent[v] != v:
        parent[v] = parent[parent[v]]
        v = parent[v]
    return v


@njit(cache=True)
def islands(alive: np.ndarray, faces: np.ndarray, links: np.ndarray) -> np.ndarray:
    """Island number of every vertex [V], -1 where it is gone."""
    count = alive.shape[0]
    parent = np.arange(count)
    for f in range(faces.shape[0]):
        for k in range(3):
            a, b = faces[f, k], faces[f, (k + 1) % 3]
            if alive[a] and alive[b]:
                parent[_root(parent, a)] = _root(parent, b)
    for k in range(links.shape[0]):
        a, b = links[k, 0], links[k, 1]
        if alive[a] and alive[b]:
            parent[_root(parent, a)] = _root(parent, b)
    number = np.full(count, -1, np.int64)
    label = np.full(count, -1, np.int64)
    found = 0
    for v in range(count):
        if alive[v]:
            r = _root(parent, v)
            if number[r] < 0:
                number[r] = found
                found += 1
            label[v] = number[r]
    return label


@dataclasses.dataclass(frozen=True)
class Settled:
    """The scene after everything has come to rest.

    Attributes:
      points: [V', 3] positions; `source`: [V'] the mesh vertex each one is.
      faces: [F', 3]; `alive`: [V] mesh vertices that survive (crumbs removed).
      present: [V, 3] present position of every surviving mesh vertex.
    """

    points: np.ndarray
    source: np.ndarray
    faces: np.ndarray
    alive: np.ndarray
    present: np.ndarray


def settle(
    mesh: Mesh,
    joints: Joints,
    points: np.ndarray,
    alive: np.ndarray,
    area: np.ndarray,
    camera: Camera,
    whim: np.ndarray,
    loose: bool,
) -> Settled:
    """Lets islands fall.

    Args:
      points: [V, 3] bent positions. alive: [V] not consumed. area: [V] pristine area, sum 1.
      camera: nothing comes to rest outside its picture.
      whim: [V] smooth noise in about [-1, 1]; decides how islands tilt.
      loose: whether islands may fall; at L0 "all parts remain intact" (paper B.1).
    """
    label = islands(alive, mesh.faces, joints.links)
    if not loose:
        label = np.minimum(label, 0)
    count = int(label.max()) + 1
    if count == 0:
        # Keep the last crumb: a picture without any object shows nothing.
        alive = alive.copy()
        alive[np.argmax(area)] = True
        label = islands(alive, mesh.faces, joints.links)
        count = 1
    sound = label >= 0
    weight = np.bincount(label[sound], area[sound], count)
    lowest = np.full(count, np.inf)
    np.minimum.at(lowest, label[sound], points[sound, 2])
    floor = _floor(mesh)
    steady = 0.015 * mesh.diagonal
    held = joints.overhang + 0.035 * mesh.diagonal
    standing = lowest <= floor
    crumb = np.where(standing, weight < _CRUMB_FLOOR, weight < _CRUMB_AIR)
    if crumb.all():
        crumb[np.argmax(weight)] = False
    ranked = np.lexsort((np.arange(count), -(weight + 10.0 * (standing & ~crumb))))
    chief = int(ranked[0])
    moved = points.astype(np.float64).copy()
    face_label = label[mesh.faces].max(1)
    out_points, out_source, out_faces = [], [], []
    chief_faces = mesh.faces[(label[mesh.faces] == chief).any(1)]
    mine = label == chief
    moved = _rest(moved, mine, area, mesh.diagonal, camera, None, floor, held)
    out_points.append(moved)
    out_source.append(np.arange(len(moved)))
    out_faces.append(chief_faces)
    pile = _Pile(mesh)
    pile.add(moved[mine])
    present = moved.copy()
    total = len(moved)
    order = sorted(range(count), key=lambda k: (lowest[k], k))
    for number in order:
        if number == chief or crumb[number]:
            continue
        chosen = mesh.faces[face_label == number]
        chosen = np.concatenate(
            [chosen, mesh.faces[(label[mesh.faces] == number).any(1) & (face_label != number)]]
        )
        vertices, local = np.unique(chosen, return_inverse=True)
        local = local.reshape(-1, 3)
        body = points[vertices].astype(np.float64)
        solid = label[vertices] == number
        if not solid.any():
            continue
        part = area[vertices] * solid
        if not standing[number]:
            body = _tilt(body, solid, part, whim[vertices])
        body = _rest(
            body,
            solid,
            part,
            mesh.diagonal,
            camera,
            None if standing[number] else pile,
            floor,
            steady,
        )
        pile.add(body[solid])
        present[vertices[solid]] = body[solid]
        out_points.append(body)
        out_source.append(vertices)
        out_faces.append((local + total).astype(np.int32))
        total += len(body)
    survives = sound & ~crumb[np.maximum(label, 0)]
    return Settled(
        np.concatenate(out_points),
        np.concatenate(out_source),
        np.ascontiguousarray(np.concatenate(out_faces), np.int32),
        survives,
        present,
    )


class _Pile:
    """Which cells of space hold something, to find what a falling island lands on."""

    def __init__(self, mesh: Mesh) -> None:
        low, high = mesh.points.min(0), mesh.points.max(0)
        middle = (low + high)[:2] / 2
        half = 0.75 * float(np.ptp(mesh.points, axis=0)[:2].max()) + 1e-3
        self._origin = np.array([*(middle - half), 0.0])
        self._cell = np.array(
            [2 * half / _CELLS, 2 * half / _CELLS, max(float(high[2]), 1e-3) / _CELLS]
        )
        self._full = np.zeros((_CELLS, _CELLS, _CELLS + 1), bool)

    def _index(self, points: np.ndarray) -> np.ndarray:
        index = np.floor((points - self._origin) / self._cell).astype(int)
        return np.clip(index, 0, [_CELLS - 1, _CELLS - 1, _CELLS])

    def add(self, points: np.ndarray) -> None:
        """Fills the cells of a body at rest."""
        i, j, k = self._index(points).T
        self._full[i, j, k] = True

    def drop(self, points: np.ndarray) -> float:
        """How far a body of these points can fall."""
        levels = np.arange(_CELLS + 1)
        top = np.maximum.accumulate(np.where(self._full, levels, -1), axis=2)
        i, j, k = self._index(points).T
        below = np.where(k > 0, top[i, j, np.maximum(k - 1, 0)], -1)
        ground = (below + 1) * self._cell[2]
        ground[below < 0] = 0.0
        return float(max((points[:, 2] - ground).min(), 0.0))


def _tilt(body: np.ndarray, solid: np.ndarray, part: np.ndarray, whim: np.ndarray) -> np.ndarray:
    """A fallen island lies askew."""
    mean = float((whim * part).sum() / max(part.sum(), 1e-12))
    turn = np.radians(28.0 * np.clip(3.0 * mean, -1, 1))
    axis = 7.0 * mean
    direction = np.array([np.cos(axis), np.sin(axis), 0.0])
    middle = (body * part[:, None]).sum(0) / max(part.sum(), 1e-12)
    return _rotate(body - middle, direction, turn) + middle


def _rotate(points: np.ndarray, axis: np.ndarray, angle: float) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    return points * c + np.cross(axis, points) * s + np.outer(points @ axis, axis) * (1 - c)


def _rest(
    body: np.ndarray,
    solid: np.ndarray,
    part: np.ndarray,
    unit: float,
    camera: Camera,
    pile: _Pile | None,
    floor: float,
    steady: float,
) -> np.ndarray:
    """Lowers a body onto the pile or the floor, topples it until it is stable, keeps it in view."""
    body = _inside(body, solid, camera)
    if pile is not None:
        shift = pile.drop(body[solid])
        body = body - np.array([0.0, 0.0, shift])
        if body[solid, 2].min() > 2 * floor:
            return body  # it came to lie on something
    body = body - np.array([0.0, 0.0, max(float(body[solid, 2].min()), -1.0)])
    weight = part[solid] / max(part[solid].sum(), 1e-12)
    toppled = False
    for _ in range(4):
        points = body[solid]
        over, towards, edge = _overhang(points, weight, floor)
        if over < steady:
            break
        ahead = points[:, :2] @ towards - edge
        outer = ahead > 0.02 * unit
        if not outer.any():
            break
        angle = float(np.arctan2(points[outer, 2], ahead[outer]).min())
        if angle <= 1e-3:
            break
        pivot = np.array([*(towards * edge), 0.0])
        axis = np.array([-towards[1], towards[0], 0.0])
        body = _rotate(body - pivot, axis, min(angle, np.pi / 2)) + pivot
        body = body - np.array([0.0, 0.0, float(body[solid, 2].min())])
        toppled = True
    return _inside(body, solid, camera) if toppled else body


def _inside(body: np.ndarray, solid: np.ndarray, camera: Camera) -> np.ndarray:
    """Slides a body over the floor until the picture holds it; squeezes it if it is too wide."""
    right = camera.axes[0, :2] / max(np.linalg.norm(camera.axes[0, :2]), 1e-9)
    away = camera.axes[2, :2] / max(np.linalg.norm(camera.axes[2, :2]), 1e-9)
    slope = max(abs(float(camera.axes[2, 2])), 0.2)
    for _ in range(8):
        seen = camera.project(body[solid])
        left, top = seen[:, :2].min(0)
        end, bottom = seen[:, :2].max(0)
        scale = float(seen[:, 2].mean()) / camera.focal
        if end - left > 1 - 2 * _BORDER:
            middle = body[solid, :2].mean(0)
            across = (body[:, :2] - middle) @ right
            squeeze = 0.98 * (1 - 2 * _BORDER) / (end - left) - 1
            body = body + np.concatenate(
                [np.outer(across * squeeze, right), np.zeros((len(body), 1))], 1
            )
            continue
        sideways = max(_BORDER - left, 0.0) - max(end - (1 - _BORDER), 0.0)
        back = max(bottom - (1 - _BORDER), 0.0) - max(_BORDER - top, 0.0)
        if sideways == 0.0 and back == 0.0:
            break
        step = right * sideways * scale * 1.02 + away * back * scale / slope
        body = body + np.array([*step, 0.0])
    return body
