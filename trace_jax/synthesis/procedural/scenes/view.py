"""Camera and light of a scene: a photograph as an inspector takes it."""

from __future__ import annotations

import dataclasses

import numpy as np

from trace_jax.synthesis.procedural.camera import Camera, Light, studio_light
from trace_jax.synthesis.procedural.scenes.room import Room

_FRAME = 36.0  # millimetres, the width that a lens' equivalent length is told for


@dataclasses.dataclass(frozen=True)
class View:
    """What a scene's renders share.

    Attributes:
      camera, light: as for objects; the camera sees a square of `width` pixels.
      width, height: of the picture, pixels: the middle band of that square.
      tint: white balance, linear RGB [3]. falloff: how much darker the corners are, 0-1.
    """

    camera: Camera
    light: Light
    width: int
    height: int
    tint: np.ndarray
    falloff: float

    def sees(self, point: np.ndarray, border: float = 0.03) -> bool:
        """Whether a point [3] lies in the picture, `border` picture widths from its sides."""
        (x, y, depth), band = self.camera.project(point[None])[0], self.height / self.width / 2
        inside = border < x < 1 - border and abs(y - 0.5) < band - border
        return bool(inside and depth > 0.3)


def make_view(room: Room, width: int, height: int, rng: np.random.Generator) -> View:
    """Draws a view: standing in the open side, 24 to 35 mm equivalent, looking a little down."""
    yaw, pitch = np.radians(rng.uniform(-22, 22)), np.radians(rng.uniform(14, 22))
    focal = float(rng.uniform(24, 35)) / _FRAME
    middle = np.array([rng.uniform(-0.2, 0.2), rng.uniform(-0.02, 0.12) * room.depth, 0.62])
    if room.outdoor:
        middle[2] = 0.5
    distance = max(0.92 * room.width * focal, 0.5 * room.depth + 0.9)
    back = np.array([np.sin(yaw) * np.cos(pitch), -np.cos(yaw) * np.cos(pitch), np.sin(pitch)])
    eye = middle + distance * back
    # Never outside the side walls.
    eye[0] = np.clip(eye[0], -room.width / 2 + 0.25, room.width / 2 - 0.25)
    eye[2] = min(eye[2], room.height - 0.2) if not room.outdoor else max(eye[2], 1.3)
    forward = middle - eye
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    camera = Camera(
        eye, np.stack([right, np.cross(right, forward), forward]), focal, np.array([0.0, 0.0])
    )
    light = studio_light(
        rng.uniform(-60, 60), rng.uniform(48, 66), rng.uniform(0.42, 0.66), rng.uniform(0.44, 0.56)
    )
    warmth = rng.uniform(-0.07, 0.07)
    tint = np.array([1 + warmth, 1.0, 1 - warmth])
    return View(camera, light, width, height, tint, float(rng.uniform(0.05, 0.35)))
