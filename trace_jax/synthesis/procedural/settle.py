"""What falls, falls: loose islands drop, unsupported bodies topple, crumbs turn to ash.

After the fire has cut and bent a mesh, its surviving vertices form islands. The largest one that
stands on the floor stays; others that stand topple when their centre of mass leaves their
support; those that hang in the air drop onto whatever lies below. Nothing floats.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from trace_jax.synthesis.procedural.camera import Camera
from trace_jax.synthesis.procedural.joints import Joints, floor_height, islands, overhang
from trace_jax.synthesis.procedural.mesh import Mesh

# Islands below this share of the pristine area are crumbs.
_CRUMB_AIR, _CRUMB_FLOOR = 0.012, 0.002
_CELLS = 40
_BORDER = 0.03


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
    floor = floor_height(mesh)
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
        over, towards, edge = overhang(points, weight, floor)
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
