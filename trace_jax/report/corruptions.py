"""Common image corruptions at a strong setting, to set beside physical damage (Figure 8).

After the kinds of ImageNet-C (Hendrycks and Dietterich 2019); settings ours, deterministic.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter


def noise(picture: Image.Image) -> Image.Image:
    """Gaussian noise of 0.18 of the range."""
    values = np.asarray(picture, np.float32)
    rng = np.random.default_rng(8)
    spoiled = values + rng.normal(0, 0.18 * 255, values.shape)
    return Image.fromarray(np.clip(spoiled, 0, 255).astype(np.uint8))


def blur(picture: Image.Image) -> Image.Image:
    """Gaussian blur of a fortieth of the width."""
    return picture.filter(ImageFilter.GaussianBlur(picture.width / 40))


def motion(picture: Image.Image) -> Image.Image:
    """Motion blur along a row, a tenth of the width."""
    values = np.asarray(picture, np.float32)
    reach = max(2, picture.width // 10)
    padded = np.pad(values, ((0, 0), (reach, 0), (0, 0)), mode="edge")
    total = np.cumsum(padded, axis=1)
    return Image.fromarray(((total[:, reach:] - total[:, :-reach]) / reach).astype(np.uint8))


def brightness(picture: Image.Image) -> Image.Image:
    """1.9 times as bright."""
    return ImageEnhance.Brightness(picture).enhance(1.9)


def contrast(picture: Image.Image) -> Image.Image:
    """A quarter of the contrast."""
    return ImageEnhance.Contrast(picture).enhance(0.25)


def jpeg(picture: Image.Image) -> Image.Image:
    """JPEG at quality 5."""
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=5)
    return Image.open(io.BytesIO(stream.getvalue())).convert("RGB")


CORRUPTIONS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "noise": noise,
    "blur": blur,
    "motion blur": motion,
    "brightness": brightness,
    "low contrast": contrast,
    "JPEG": jpeg,
}
