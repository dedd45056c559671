"""Images of any size to square tiles, for InternVL.

The pixel work is transformers' GotOcr2ImageProcessorPil, named explicitly (see hosts.preprocess);
InternVL's own processor is that one with `crop_to_patches` on, whatever the file says.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from trace_jax.errors import FaultsError
from trace_jax.hosts.preprocess import IGNORED, check_images
from trace_jax.images import to_rgb

_CLASS = "GotOcr2ImageProcessorPil"
# OpenGVLab/InternVL3_5-4B-HF's preprocessor_config.json; `None` stands for the host's image size.
DEFAULTS: dict[str, Any] = {
    "do_resize": True,
    "size": {"height": None, "width": None},
    "resample": 3,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "min_patches": 1,
    "max_patches": 12,
}
_IGNORED = {
    **IGNORED,
    "crop_to_patches": "InternVL's processor always cuts tiles; max_patches 1 gives one",
}
_OFF = ("do_center_crop", "crop_size")


class TiledImages:
    """One host's way from PIL images to tiles of `image_size` x `image_size`.

    An image is stretched to the grid of tiles, `min_patches` to `max_patches` of them, whose
    aspect ratio is nearest to its own, and cut row by row; where there is more than one tile, a
    thumbnail of the whole image follows as the last. `max_patches` 1, or `fixed(image_size)`,
    makes one tile of each image.

    Args:
      config: contents of preprocessor_config.json, or None: the published constants.
      image_size: side of a tile in pixels, which the weights fix.

    Attributes:
      constants: every constant, resolved.
      side: every image is first brought to this square, or None: each keeps its own shape.

    Raises:
      FaultsError: unknown keys, or tiles of another size.
    """

    def __init__(self, config: Mapping[str, Any] | None, *, image_size: int) -> None:
        given = dict({} if config is None else config)
        faults = [
            f"{key!r} = {given[key]!r} is a setting this host does not know"
            for key in sorted(set(given) - set(DEFAULTS) - set(_IGNORED) - set(_OFF))
        ]
        faults += [
            f"{key} is {given[key]!r}, tiles are cut from the whole image"
            for key in _OFF
            if key in given and given[key]
        ]
        values = {**DEFAULTS, **{k: v for k, v in given.items() if k in DEFAULTS and v is not None}}
        square = {"height": image_size, "width": image_size}
        size = values["size"]
        if isinstance(size, Mapping):
            size = {k: image_size if v is None else v for k, v in size.items() if k in square}
        values["size"] = size
        if size != square:
            faults.append(f"size is {size!r}, the weights take {square}")
        if not values["do_resize"]:
            faults.append("do_resize is off: tiles would have any size")
        least, most = values["min_patches"], values["max_patches"]
        if not all(isinstance(n, int) for n in (least, most)) or not 1 <= least <= most:
            faults.append(f"min_patches {least!r} and max_patches {most!r} span no range")
        if faults:
            raise FaultsError(
                "preprocessor_config.json does not fit this host",
                faults,
                "Use the file that belongs to the weights.",
            )
        self.constants = values
        self.image_size = image_size
        self.side: int | None = None
        self._processor: Any = None

    @property
    def description(self) -> dict[str, Any]:
        return {
            "processor": _CLASS,
            "image_rule": "trace_jax.images.to_rgb",
            "image_size": self.side,
            "crop_to_patches": True,
            **self.constants,
        }

    @property
    def hub_config(self) -> dict[str, Any]:
        """A preprocessor_config.json that transformers reads back to the same constants."""
        return {
            "image_processor_type": _CLASS.removesuffix("Pil"),
            "do_convert_rgb": True,
            "crop_to_patches": True,
            **self.constants,
        }

    @property
    def default_size(self) -> int:
        """Side of the squares that runs bring every picture to: one tile each (paper section 4)."""
        return self.image_size

    def fixed(self, side: int) -> TiledImages:
        """The same, with every picture first brought to `side` x `side`."""
        other = copy.copy(self)
        other.side = side
        return other

    def __call__(self, images: Sequence[Image.Image]) -> dict[str, np.ndarray]:
        """Any PIL images to tiles, images of fewer tiles padded at the end.

        Returns:
          pixel_values: float32 [B, T, S, S, 3].
          tiles: int32 [B], tiles of each image.
          real: bool [B, T], only where some image has fewer tiles than others.

        Raises:
          UserError: no list of PIL images.
        """
        check_images(images)
        size = self.image_size
        if self._processor is None and len(images):
            self._processor = self._load()
        rows = []
        for image in images:
            picture = to_rgb(image)
            if self.side is not None:
                picture = picture.resize((self.side, self.side), Image.Resampling.BICUBIC)
            rows.append(np.stack(self._processor([picture])["pixel_values"]))
        tiles = np.array([len(row) for row in rows], np.int32)
        most = int(tiles.max(initial=1))
        pixels = np.zeros((len(rows), most, size, size, 3), np.float32)
        for place, row in zip(pixels, rows, strict=True):
            place[: len(row)] = row.transpose(0, 2, 3, 1)
        inputs: dict[str, np.ndarray] = {"pixel_values": pixels, "tiles": tiles}
        if (tiles < most).any():
            inputs["real"] = np.arange(most)[None, :] < tiles[:, None]
        return inputs

    def _load(self) -> Any:
        # Imported here: it takes seconds, and work on cached features needs no pixels.
        import transformers

        return getattr(transformers, _CLASS)(
            do_convert_rgb=False, crop_to_patches=True, **self.constants
        )
