"""Images to squares, for detectors: bilinear resize with antialiasing, ImageNet's normalisation.

The shape of an image is not kept: RF-DETR was trained and is scored on images pressed into a
square (its validation transform: Pillow's antialiased bilinear resize of the 8-bit image, then
scaling and normalisation). transformers' processor, which needs torchvision, resizes without
antialiasing; the published scores do not come from that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from trace_jax.errors import FaultsError
from trace_jax.hosts.preprocess import IGNORED, check_images
from trace_jax.images import to_rgb

DEFAULTS: dict[str, Any] = {
    "do_resize": True,
    "resample": 2,  # Pillow's number for bilinear
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}
_CLASS = "RfDetrImageProcessor"
_IGNORED = {
    **IGNORED,
    "format": "annotations are read by trace_jax.data",
    "do_convert_annotations": "annotations are read by trace_jax.data",
    "pad_and_return_pixel_mask": "a square resize leaves nothing to pad",
    "max_size": "the size is a square",
}
_ALWAYS = ("do_resize", "do_rescale", "do_normalize")


class DetectorImages:
    """One host's way from PIL images to {"pixel_values": float32 [B, S, S, 3], "sizes": int32
    [B, 2]}, the height and width that each image had.

    Args:
      config: contents of preprocessor_config.json, or None: the published constants.
      image_size: side S for a file without `size`.

    Attributes:
      image_size: the side that holds.
      constants: every constant, resolved.
      description: the same, JSON-able; part of a cache's identity.
      hub_config: a preprocessor_config.json that reads back to the same constants.

    Raises:
      FaultsError: unknown keys, or a size that is no square.
    """

    def __init__(self, config: Mapping[str, Any] | None, *, image_size: int) -> None:
        given = {} if config is None else config
        faults = [
            f"{key!r} = {given[key]!r} is a setting this host does not know"
            for key in sorted(set(given) - set(DEFAULTS) - set(_IGNORED) - {"size"})
        ]
        self.constants = {
            key: given[key] if key in given and given[key] is not None else default
            for key, default in DEFAULTS.items()
        }
        faults += [
            f"{key} is off; this host's images are always resized, scaled and normalised"
            for key in _ALWAYS
            if not self.constants[key]
        ]
        size = given["size"] if "size" in given else None
        self.image_size = image_size if size is None else _side(size)
        if not self.image_size:
            faults.append(f"size is {size!r}; this host takes squares, {{height: S, width: S}}")
        if self.constants["resample"] != DEFAULTS["resample"]:
            faults.append(f"resample is {self.constants['resample']!r}, must be 2 (bilinear)")
        if faults:
            raise FaultsError(
                "preprocessor_config.json does not fit this host",
                faults,
                "Use the file that belongs to the weights.",
            )
        self.constants["size"] = {"height": self.image_size, "width": self.image_size}

    @property
    def description(self) -> dict[str, Any]:
        return {
            "processor": "square, Pillow bilinear, antialiased",
            "image_rule": "trace_jax.images.to_rgb",
            **self.constants,
        }

    @property
    def hub_config(self) -> dict[str, Any]:
        return {"image_processor_type": _CLASS, **self.constants}

    def __call__(self, images: Sequence[Image.Image]) -> dict[str, np.ndarray]:
        """Any PIL images to arrays; see trace_jax.images for odd modes and EXIF.

        Raises:
          UserError: `images` is a single image, or its items are no PIL images.
        """
        check_images(images)
        side = self.image_size
        out = np.empty((len(images), side, side, 3), np.float32)
        sizes = np.empty((len(images), 2), np.int32)
        mean, std = (np.asarray(self.constants[k], np.float32) for k in ("image_mean", "image_std"))
        factor = np.float32(self.constants["rescale_factor"])
        for row, image in enumerate(images):
            image = to_rgb(image)
            sizes[row] = image.height, image.width
            small = image.resize((side, side), Image.Resampling.BILINEAR)
            out[row] = (np.asarray(small, np.float32) * factor - mean) / std
        return {"pixel_values": out, "sizes": sizes}


def _side(size: Any) -> int:
    """The side of a square, or 0 for anything else."""
    if isinstance(size, Mapping):
        known = {key: value for key, value in size.items() if value is not None}
        if sorted(known) != ["height", "width"] or known["height"] != known["width"]:
            return 0
        size = known["height"]
    return size if isinstance(size, int) and size > 0 else 0
