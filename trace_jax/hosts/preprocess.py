"""Images to pixel values through transformers' PIL processors, every constant spelled out.

The Pil classes are named explicitly: the Auto class would pick torchvision's resize where
torchvision happens to be installed, and its pixels differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from trace_jax.errors import FaultsError, UserError
from trace_jax.images import to_rgb

# Pillow's numbers: 2 bilinear, 3 bicubic.
_COMMON: dict[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
}
# The constants of the published checkpoints: openai/clip-vit-large-patch14 and
# google/siglip2-base-patch16-224 (SigLIP2 resizes bilinearly, SigLIP 1 bicubically). `None` stands
# for the host's image size. They hold where a weights folder has no preprocessor_config.json, or
# where it leaves a key out.
CLIP_DEFAULTS: dict[str, Any] = {
    **_COMMON,
    "size": {"shortest_edge": None},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": None, "width": None},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
SIGLIP2_DEFAULTS: dict[str, Any] = {
    **_COMMON,
    "size": {"height": None, "width": None},
    "resample": 2,
    "do_center_crop": False,
    "crop_size": {"height": None, "width": None},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
DEFAULTS: dict[str, dict[str, Any]] = {"clip": CLIP_DEFAULTS, "siglip2": SIGLIP2_DEFAULTS}

IGNORED: dict[str, str] = {
    "do_convert_rgb": "every image is brought to RGB by trace_jax.images",
    "image_processor_type": "the class is named by the host",
    "feature_extractor_type": "the class is named by the host",
    "processor_class": "tokenizer and image processor are used apart",
    "default_to_square": "the sizes are spelled out",
    "use_square_size": "the sizes are spelled out",
    "data_format": "output is always NHWC",
    "input_data_format": "input is always a PIL image",
    "device": "processing is on the host's CPU",
    "return_tensors": "output is always numpy",
    "disable_grouping": "a torchvision option",
    "do_pad": "no padding in these families",
    "pad_size": "no padding in these families",
    "image_seq_length": "an option of other models",
    "_valid_processor_keys": "bookkeeping of older transformers",
}


class ImagePreprocessor:
    """One host's way from PIL images to {"pixel_values": float32 [B, H, W, 3]}.

    Args:
      family: "clip" or "siglip2".
      config: contents of preprocessor_config.json, or None: the family's published constants.
      image_size: side in pixels the host takes.

    Attributes:
      constants: every constant, resolved.
      description: the same, JSON-able, with the class's name; part of a cache's identity.

    Raises:
      FaultsError: unknown keys, or sizes that do not end at `image_size`.
    """

    def __init__(self, family: str, config: Mapping[str, Any] | None, *, image_size: int) -> None:
        self.family = family
        self.image_size = image_size
        self.constants = resolve(family, {} if config is None else config, image_size)
        self._processor: Any = None

    @property
    def description(self) -> dict[str, Any]:
        return {
            "processor": _CLASSES[self.family],
            "image_rule": "trace_jax.images.to_rgb",
            **self.constants,
        }

    @property
    def hub_config(self) -> dict[str, Any]:
        """A preprocessor_config.json that transformers reads back to the same constants."""
        return {
            "image_processor_type": _CLASSES[self.family].removesuffix("Pil"),
            "do_convert_rgb": True,
            **self.constants,
        }

    def __call__(self, images: Sequence[Image.Image]) -> dict[str, np.ndarray]:
        """Any PIL images to pixel values; see trace_jax.images for odd modes and EXIF.

        Raises:
          UserError: `images` is a single image, or its items are no PIL images.
        """
        check_images(images)
        side = self.image_size
        out = np.empty((len(images), side, side, 3), np.float32)
        if not len(images):
            return {"pixel_values": out}
        if self._processor is None:
            self._processor = self._load()
        batch = self._processor([to_rgb(image) for image in images], return_tensors="np")
        np.copyto(out, batch["pixel_values"].transpose(0, 2, 3, 1))
        return {"pixel_values": out}

    def _load(self) -> Any:
        # Imported here: it takes seconds, and work on cached features needs no pixels.
        import transformers

        return getattr(transformers, _CLASSES[self.family])(do_convert_rgb=False, **self.constants)


def check_images(images: Sequence[Image.Image]) -> None:
    """Refuses anything but a list of PIL images.

    Raises:
      UserError: `images` is a single image, or its items are no PIL images.
    """
    if isinstance(images, Image.Image):
        raise UserError("expected a list of PIL images, got a single one")
    for image in images:
        if not isinstance(image, Image.Image):
            raise UserError(f"expected PIL images, got {type(image).__name__}")


_CLASSES = {"clip": "CLIPImageProcessorPil", "siglip2": "SiglipImageProcessorPil"}


def resolve(family: str, config: Mapping[str, Any], image_size: int) -> dict[str, Any]:
    """Every constant of a family's preprocessing, from a config of any age.

    Old files give `size` and `crop_size` as integers: for CLIP the shortest edge and a square.

    Raises:
      FaultsError: all unknown keys and wrong sizes together.
    """
    defaults = DEFAULTS[family]
    faults = [
        f"{key!r} = {config[key]!r} is a setting this host does not know"
        for key in sorted(set(config) - set(defaults) - set(IGNORED))
    ]
    values = {
        key: config[key] if key in config and config[key] is not None else default
        for key, default in defaults.items()
    }
    square = {"height": image_size, "width": image_size}
    for key in ("size", "crop_size"):
        edge = "shortest_edge" if key == "size" and family == "clip" else ""
        values[key] = _size(values[key], edge, image_size)
    last = values["crop_size"] if values["do_center_crop"] else values["size"]
    if not values["do_resize"] and not values["do_center_crop"]:
        faults.append("neither do_resize nor do_center_crop is on: image sizes would vary")
    elif last != square:
        faults.append(f"images end as {last}, the weights take {square}")
    if faults:
        raise FaultsError(
            "preprocessor_config.json does not fit this host",
            faults,
            "Use the file that belongs to the weights.",
        )
    return values


def _size(value: Any, edge: str, image_size: int) -> dict[str, int]:
    if isinstance(value, int):
        return {edge: value} if edge else {"height": value, "width": value}
    if isinstance(value, list | tuple) and len(value) == 2:
        return {"height": int(value[0]), "width": int(value[1])}
    if isinstance(value, Mapping):
        return {k: image_size if v is None else int(v) for k, v in sorted(value.items())}
    raise UserError(f"preprocessor_config.json: {value!r} is no image size")
