"""Viewpoint and light of one picture."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Camera:
    """A pinhole camera; `focal` and `centre` are in picture widths.

    Attributes:
      eye: position [3].
      axes: right, up, forward as rows [3, 3].
      focal: magnification.
      centre: what is shown in the middle of the picture, as (x/z, y/z) [2].
    """

    eye: np.ndarray
    axes: np.ndarray
    focal: float
    centre: np.ndarray

    def project(self, points: np.ndarray) -> np.ndarray:
        """Points [V, 3] to (x, y, depth) [V, 3]; x and y run 0-1 from the top left corner."""
        local = (points - self.eye) @ self.axes.T
        depth = np.maximum(local[:, 2], 1e-3)
        x = 0.5 + self.focal * (local[:, 0] / depth - self.centre[0])
        y = 0.5 - self.focal * (local[:, 1] / depth - self.centre[1])
        return np.stack([x, y, depth], 1)


@dataclasses.dataclass(frozen=True)
class Light:
    """Direction towards the key light [3] (unit), its strength and the ambient's."""

    direction: np.ndarray
    key: float
    ambient: float


def frame(points: np.ndarray, yaw: float, pitch: float, fill: float, lift: float = 0.0) -> Camera:
    """A camera that shows all `points` [V, 3] in the middle.

    Args:
      yaw: degrees to the right of the front.
      pitch: degrees above the horizon.
      fill: the larger side of the object's box in the picture, as a part of the picture.
      lift: moves the object up in the picture, in picture widths.
    """
    low, high = points.min(0), points.max(0)
    middle = (low + high) / 2
    distance = 3.4 * float(np.linalg.norm(high - low))
    yaw_r, pitch_r = np.radians(yaw), np.radians(pitch)
    back = np.array(
        [np.sin(yaw_r) * np.cos(pitch_r), -np.cos(yaw_r) * np.cos(pitch_r), np.sin(pitch_r)]
    )
    forward = -back
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    axes = np.stack([right, np.cross(right, forward), forward])
    eye = middle + distance * back
    local = (points - eye) @ axes.T
    x, y = local[:, 0] / local[:, 2], local[:, 1] / local[:, 2]
    centre = np.array([(x.min() + x.max()) / 2, (y.min() + y.max()) / 2])
    span = max(np.ptp(x), np.ptp(y), 1e-6)
    focal = fill / span
    return Camera(eye, axes, float(focal), centre - np.array([0.0, lift / focal]))


def studio_light(azimuth: float, elevation: float, key: float, ambient: float) -> Light:
    """A light at `azimuth` degrees right of the front and `elevation` degrees up."""
    a, e = np.radians(azimuth), np.radians(elevation)
    direction = np.array([np.sin(a) * np.cos(e), -np.cos(a) * np.cos(e), np.sin(e)])
    return Light(direction, key, ambient)
