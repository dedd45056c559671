"""What holds an object together: islands, joints between pieces, and what carries what."""

from __future__ import annotations

import dataclasses

import numpy as np
from numba import njit
from scipy.spatial import cKDTree

from trace_jax.synthesis.procedural.mesh import Mesh

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
    over, _, _ = overhang(points, area, floor_height(mesh))
    return Joints(links, *_hierarchy(mesh, links), max(over, 0.0))


def floor_height(mesh: Mesh) -> float:
    """Height up to which a point counts as touching the floor."""
    return 0.04 * float(mesh.points[:, 2].max()) + 0.006 * mesh.diagonal


def overhang(
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
