"""Images of any size to rows of patches, for the hosts with a Qwen-type vision tower.

Sides are rounded to whole merge blocks inside an area range, patches are ordered block by block.
The pixel work is transformers' Qwen2VLImageProcessorPil, named explicitly (see hosts.preprocess).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from PIL import Image

from trace_jax.errors import FaultsError, UserError
from trace_jax.hosts.preprocess import IGNORED, check_images
from trace_jax.images import to_rgb

_CLASS = "Qwen2VLImageProcessorPil"
_KEYS = (
    "do_resize", "size", "resample", "do_rescale", "rescale_factor", "do_normalize", "image_mean",
    "image_std", "patch_size", "temporal_patch_size", "merge_size",
)  # fmt: skip
_AREAS = ("min_pixels", "max_pixels")
# The longest side may be this many times the shortest: transformers' smart_resize refuses more.
MAX_ASPECT = 200
# Paper section 4: inputs of 448 x 448.
PAPER_SIZE = 448


class QwenImages:
    """One host's way from PIL images to patches.

    Args:
      config: contents of preprocessor_config.json, or None.
      defaults: the family's published constants, for keys the file leaves out.
      patch, temporal, merge: what the weights take; the file must agree.
      image_size: every image is first brought to this square (the paper's 448), or None: each
        keeps its own shape.

    Attributes:
      description: every constant, JSON-able; part of a cache's identity.
      hub_config: a preprocessor_config.json that transformers reads back to the same constants.

    Raises:
      FaultsError: unknown keys, or sizes that the weights do not take.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None,
        *,
        defaults: Mapping[str, Any],
        patch: int,
        temporal: int,
        merge: int,
        image_size: int | None = None,
    ) -> None:
        given = dict({} if config is None else config)
        wanted = {"patch_size": patch, "temporal_patch_size": temporal, "merge_size": merge}
        faults = [
            f"{key!r} = {given[key]!r} is a setting this host does not know"
            for key in sorted(set(given) - set(_KEYS) - set(_AREAS) - set(IGNORED))
        ]
        values = {**defaults, **wanted}
        values.update({k: v for k, v in given.items() if k in _KEYS and v is not None})
        # Of a file with both, transformers 5 lets these win over `size`.
        size = dict(values["size"])
        for old, new in zip(_AREAS, ("shortest_edge", "longest_edge"), strict=True):
            size[new] = given[old] if given.get(old) is not None else size.get(new)
        values["size"] = {key: size[key] for key in ("shortest_edge", "longest_edge")}
        faults += [
            f"{key} is {values[key]!r}, the weights take {want}"
            for key, want in wanted.items()
            if values[key] != want
        ]
        if not all(isinstance(area, int) and area > 0 for area in values["size"].values()):
            faults.append(f"size is {values['size']!r}, must give two areas in pixels")
        if faults:
            raise FaultsError(
                "preprocessor_config.json does not fit this host",
                faults,
                "Use the file that belongs to the weights.",
            )
        self.constants = values
        self.image_size = image_size
        self._processor: Any = None

    @property
    def description(self) -> dict[str, Any]:
        return {
            "processor": _CLASS,
            "image_rule": "trace_jax.images.to_rgb",
            "image_size": self.image_size,
            **self.constants,
        }

    @property
    def hub_config(self) -> dict[str, Any]:
        return {
            "image_processor_type": _CLASS.removesuffix("Pil"),
            "do_convert_rgb": True,
            **self.constants,
        }

    @property
    def default_size(self) -> int:
        """Side of the squares that runs bring every picture to, so that all give as many tokens:
        the paper's, or the only one that the processor's areas leave.
        """
        least, most = (self.constants["size"][k] for k in ("shortest_edge", "longest_edge"))
        return math.isqrt(most) if least == most else PAPER_SIZE

    def fixed(self, side: int) -> QwenImages:
        """The same, with every picture first brought to `side` x `side`."""
        other = copy.copy(self)
        other.image_size = side
        return other

    def __call__(self, images: Sequence[Image.Image]) -> dict[str, np.ndarray]:
        """Any PIL images to patches, shorter images padded at the end.

        Returns:
          patches: float32 [B, P, C * T * p * p].
          grid: int32 [B, 2], patches down and across.

        Raises:
          UserError: no list of PIL images, or one too narrow for the tower.
        """
        check_images(images)
        width = 3 * self.constants["temporal_patch_size"] * self.constants["patch_size"] ** 2
        if not len(images):
            return {"patches": np.zeros((0, 0, width), np.float32), "grid": np.zeros((0, 2), int)}
        if self._processor is None:
            self._processor = self._load()
        rows, grids = [], []
        for image in images:
            picture = to_rgb(image)
            if self.image_size is not None:
                side = (self.image_size, self.image_size)
                picture = picture.resize(side, Image.Resampling.BICUBIC)
            if max(picture.size) > MAX_ASPECT * min(picture.size):
                raise UserError(
                    f"an image of {picture.width}x{picture.height} pixels is over {MAX_ASPECT} "
                    "times as long as it is wide, which this host does not take. Crop it."
                )
            one = self._processor([picture], return_tensors="np")
            rows.append(one["pixel_values"])
            grids.append(one["image_grid_thw"][0, 1:])
        patches = np.zeros((len(rows), max(len(row) for row in rows), width), np.float32)
        for place, row in zip(patches, rows, strict=True):
            place[: len(row)] = row
        return {"patches": patches, "grid": np.stack(grids).astype(np.int32)}

    def _load(self) -> Any:
        # Imported here: it takes seconds, and work on cached features needs no pixels.
        import transformers

        return getattr(transformers, _CLASS)(do_convert_rgb=False, **self.constants)


def block_order(grid: np.ndarray, count: int, merge: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of every patch, in merge-block order: block by block, raster inside each.

    Args:
      grid: int [B, 2], patches down and across.
      count: P; places past an image's patches get row and column 0.
      merge: side of a block.

    Returns:
      rows, columns: int32 [B, P].
    """
    rows = np.zeros((len(grid), count), np.int32)
    columns = np.zeros((len(grid), count), np.int32)
    for index, (down, across) in enumerate(np.asarray(grid).tolist()):
        blocks = np.indices((down, across)).reshape(2, down // merge, merge, across // merge, merge)
        flat = blocks.transpose(0, 1, 3, 2, 4).reshape(2, -1)
        rows[index, : flat.shape[1]], columns[index, : flat.shape[1]] = flat
    return rows, columns


def patch_places(inputs: Mapping[str, np.ndarray], merge: int) -> dict[str, np.ndarray]:
    """Where every patch of padded rows lies in its image.

    Returns:
      rows, columns: int32 [B, P], in merge-block order; real: bool [B, P], only where some image
      has fewer patches than others.
    """
    count = inputs["patches"].shape[1]
    rows, columns = block_order(inputs["grid"], count, merge)
    sizes = np.prod(inputs["grid"], axis=-1)
    places = {"rows": rows, "columns": columns}
    if (sizes < count).any():
        places["real"] = np.arange(count)[None, :] < sizes[:, None]
    return places


def patchify(
    pixels: Float[Array, "b h w 3"], *, patch: int, temporal: int, merge: int
) -> Float[Array, "b p v"]:
    """Normalised pictures that need no resize to rows of patches, on the device.

    The same rows that QwenImages makes: merge-block order, values of a patch in (channel, frame,
    row, column) order, every frame the same picture.
    """
    batch, height, width, channels = pixels.shape
    side = patch * merge
    blocks = pixels.reshape(
        batch, height // side, merge, patch, width // side, merge, patch, channels
    )
    rows = blocks.transpose(0, 1, 4, 2, 5, 7, 3, 6)  # [B, bh, bw, m, m, C, p, p]
    rows = jnp.repeat(rows[:, :, :, :, :, :, None], temporal, axis=6)
    return rows.reshape(batch, -1, channels * temporal * patch * patch)
