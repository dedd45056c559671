"""Random views of pictures with boxes, and batches of one size out of several.

Reference: RF-DETR 1.4.1, `make_coco_transforms_square_div_64` and the training loop's multi-scale
resize: a mirror image in half of the cases; then either the whole picture pressed into a square, or
a crop of it; each step's batch is scaled to one of several sides. Everything is a pure function of
(seed, step, index), so a resumed run sees what an unbroken one sees.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from trace_jax.errors import FaultsError


@dataclasses.dataclass(frozen=True)
class BoxViewConfig:
    """Ranges of the views. The defaults are RF-DETR-Medium's; lengths are pixels.

    Attributes:
      flip: probability of a mirror image.
      crop: probability that a part of the picture is shown.
      short: before a crop the shorter side is scaled to one of these.
      crop_least, crop_most: each side of a crop, drawn apart and never beyond the scaled picture.
      side: of the square a view is pressed into.
      sides: a step's batch is scaled to one of these; empty keeps `side`.
      least: boxes whose visible part is thinner than this, in pixels of the crop, are dropped.
    """

    flip: float = 0.5
    crop: float = 0.5
    short: tuple[int, ...] = (400, 500, 600)
    crop_least: int = 384
    crop_most: int = 600
    side: int = 736
    sides: tuple[int, ...] = tuple(range(416, 737, 32))
    least: float = 1.0

    def __post_init__(self) -> None:
        faults = []
        if not 0 <= self.flip <= 1 or not 0 <= self.crop <= 1:
            faults.append("flip and crop are probabilities")
        if self.crop and (not self.short or min(self.short) < 1):
            faults.append("short: at least one positive length")
        if not 1 <= self.crop_least <= self.crop_most:
            faults.append("crop_least: from 1 to crop_most")
        if self.side < 1 or any(side < 1 for side in self.sides):
            faults.append("side and sides: positive")
        if self.least <= 0:
            faults.append("least: positive, or boxes could lose their area")
        if faults:
            raise FaultsError("views of pictures with boxes", faults)


@dataclasses.dataclass(frozen=True)
class BoxView:
    """One view of one picture.

    Attributes:
      pixels: [S, S, 3] uint8.
      boxes: [K, 4], cx, cy, w, h in 0-1 of the view, each inside it and with an area.
      kept: [K], which of the picture's boxes these are.
    """

    pixels: UInt8[np.ndarray, "s s 3"]
    boxes: Float[np.ndarray, "k 4"]
    kept: np.ndarray


def view(
    image: Image.Image,
    boxes: Float[np.ndarray, "n 4"],
    config: BoxViewConfig,
    *,
    seed: int,
    step: int,
    index: int,
) -> BoxView:
    """A random view of a picture.

    Args:
      image: RGB.
      boxes: x, y, width, height in pixels of the picture.
      config: ranges.
      seed, step, index: of the run, of the step and of the picture's place in its batch.
    """
    rng = np.random.default_rng((seed, step, index, 1))
    width, height = image.size
    x, y, w, h = np.asarray(boxes, np.float64).reshape(-1, 4).T
    corners = np.stack([x, y, x + w, y + h], axis=1) / [width, height, width, height]  # 0-1
    if rng.random() < config.flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        corners = np.stack(
            [1 - corners[:, 2], corners[:, 1], 1 - corners[:, 0], corners[:, 3]], axis=1
        )
    if rng.random() < config.crop:
        image, corners, kept = _cropped(image, corners, config, rng)
    else:
        corners, kept = _clipped(corners, image.size, config.least)
    square = image.resize((config.side, config.side), Image.Resampling.BILINEAR)
    low, high = corners[:, :2], corners[:, 2:]
    centred = np.concatenate([(low + high) / 2, high - low], axis=1).astype(np.float32)
    return BoxView(np.asarray(square), centred, kept)


def _cropped(
    image: Image.Image, corners: np.ndarray, config: BoxViewConfig, rng: np.random.Generator
) -> tuple[Image.Image, np.ndarray, np.ndarray]:
    """The shorter side is scaled, then a part is cut out; boxes are cut with it."""
    short = int(rng.choice(config.short))
    ratio = short / min(image.size)
    scaled = [max(short, round(side * ratio)) for side in image.size]
    image = image.resize((scaled[0], scaled[1]), Image.Resampling.BILINEAR)
    size = [
        int(rng.integers(min(config.crop_least, side), min(config.crop_most, side) + 1))
        for side in scaled
    ]
    start = [int(rng.integers(side - part + 1)) for side, part in zip(scaled, size, strict=True)]
    image = image.crop((start[0], start[1], start[0] + size[0], start[1] + size[1]))
    place = corners * np.tile(scaled, 2) - np.tile(start, 2)
    corners, kept = _clipped(place / np.tile(size, 2), image.size, config.least)
    return image, corners, kept


def _clipped(
    corners: np.ndarray, size: tuple[int, int], least: float
) -> tuple[np.ndarray, np.ndarray]:
    """The parts of boxes inside the picture, and which boxes have one `least` pixels wide."""
    corners = np.clip(corners, 0.0, 1.0)
    extent = (corners[:, 2:] - corners[:, :2]) * size
    kept = np.flatnonzero((extent >= least).all(axis=1))
    return corners[kept], kept


def side_of_step(config: BoxViewConfig, seed: int, step: int) -> int:
    """The side to which the batch of a step is scaled."""
    if not config.sides:
        return config.side
    return int(np.random.default_rng((seed, step, 2)).choice(config.sides))


def scaled(
    pixels: Float[np.ndarray, "b s s 3"] | UInt8[np.ndarray, "b s s 3"], side: int
) -> Float[np.ndarray, "b t t 3"]:
    """A batch of squares at another side, float32: bilinear between the four nearest pixels, edges
    repeated (torch's `interpolate(mode="bilinear", align_corners=False)`, without antialiasing).
    """
    values = np.asarray(pixels, np.float32)
    have = values.shape[1]
    if have == side:
        return values
    # In float32, as torch computes them: float64 gives other fractions at the sixth digit.
    centres = np.arange(side, dtype=np.float32) + np.float32(0.5)
    at = np.clip(
        np.float32(have / side) * centres - np.float32(0.5), 0, have - 1
    )  # as torch rounds
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, have - 1)
    share = at - low.astype(np.float32)
    rows = values[:, low] + share[:, None, None] * (values[:, high] - values[:, low])
    return rows[:, :, low] + share[:, None] * (rows[:, :, high] - rows[:, :, low])
