"""Images to overlapping crops and pooling indices, for Molmo2; numpy only.

transformers' processor of this family needs torchvision, so the work is done here: a picture is
stretched onto a canvas of tiles, the canvas is cut into crops that overlap, and a small copy of the
whole picture goes in front. Every 2x2 patches of the canvas, and of the small copy, are one token.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from PIL import Image

from trace_jax.errors import FaultsError
from trace_jax.hosts.preprocess import IGNORED, check_images
from trace_jax.hosts.qwen_images import PAPER_SIZE
from trace_jax.images import to_rgb

# allenai/Molmo2-4B's preprocessor_config.json, completed by transformers' class defaults.
DEFAULTS: dict[str, Any] = {
    "do_resize": True,
    "size": {"height": 378, "width": 378},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "max_crops": 8,
    "overlap_margins": [4, 4],
    "patch_size": 14,
    "pooling_size": [2, 2],
}
_ONLY = {"do_resize": True, "resample": 2, "do_rescale": True, "do_normalize": True}
_BOOKKEEPING = {"auto_map": "the class is named by the host"}


class Molmo2Images:
    """Molmo2's way from PIL images to crops.

    Args:
      config: contents of preprocessor_config.json, or None: the published constants.
      crop: side of a crop in pixels that the weights take; the file must agree.
      patch: side of a patch in pixels, likewise.
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
        crop: int,
        patch: int,
        image_size: int | None = None,
    ) -> None:
        given = dict({} if config is None else config)
        wanted = {"size": {"height": crop, "width": crop}, "patch_size": patch}
        # The published margins are for crops of 27 patches; weights of another size that come
        # without a file get margins that leave at least half of a crop.
        margin = min(DEFAULTS["overlap_margins"][0], max(0, crop // patch - 1) // 4)
        wanted_margins = {"overlap_margins": [margin, margin]}
        faults = [
            f"{key!r} = {given[key]!r} is a setting this host does not know"
            for key in sorted(set(given) - set(DEFAULTS) - set(IGNORED) - set(_BOOKKEEPING))
        ]
        values = {**DEFAULTS, **wanted_margins, **wanted}
        values.update({k: v for k, v in given.items() if k in DEFAULTS and v is not None})
        faults += [
            f"{key} is {values[key]!r}, must be {want!r}"
            for key, want in {**wanted, **_ONLY}.items()
            if values[key] != want
        ]
        values["overlap_margins"] = [int(n) for n in values["overlap_margins"]]
        values["pooling_size"] = [int(n) for n in values["pooling_size"]]
        if min(values["overlap_margins"]) < 0 or sum(values["overlap_margins"]) >= crop // patch:
            faults.append(f"overlap_margins {values['overlap_margins']} leave nothing of a crop")
        if faults:
            raise FaultsError(
                "preprocessor_config.json does not fit this host",
                faults,
                "Use the file that belongs to the weights.",
            )
        self.constants = values
        self.crop = crop
        self.patch = patch
        self.image_size = image_size

    @property
    def description(self) -> dict[str, Any]:
        return {
            "processor": "trace_jax.hosts.molmo2_images",
            "image_rule": "trace_jax.images.to_rgb",
            "image_size": self.image_size,
            **self.constants,
        }

    @property
    def hub_config(self) -> dict[str, Any]:
        return {
            "image_processor_type": "Molmo2ImageProcessor",
            "do_convert_rgb": True,
            **self.constants,
        }

    @property
    def default_size(self) -> int:
        """Side of the squares that runs bring every picture to, so that all give as many tokens:
        the paper's.
        """
        return PAPER_SIZE

    def fixed(self, side: int) -> Molmo2Images:
        """The same, with every picture first brought to `side` x `side`."""
        other = copy.copy(self)
        other.image_size = side
        return other

    def tiles(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of crops for a picture: the least enlargement of it that some tiling
        needs, else, where the picture is larger than all of them, the tiling that shrinks it least.

        Of equally good tilings the one with fewer crops, then with fewer rows. In float32, as the
        reference chooses.
        """
        most = self.constants["max_crops"]
        sides = range(1, most + 1)
        tilings = [(r, c) for r, c in itertools.product(sides, sides) if r * c <= most]
        tilings.sort(key=lambda tiling: (tiling[0] * tiling[1], tiling[0]))
        margin = sum(self.constants["overlap_margins"]) * self.patch
        pixels = np.asarray(tilings, np.float32) * np.float32(self._window * self.patch)
        inner = np.asarray([height - margin, width - margin], np.float32)
        # A side no longer than the margins gives scales below zero, or infinite: they count too.
        with np.errstate(divide="ignore"):
            scales = (pixels / inner).min(axis=-1)
        if (scales < 1).all():
            return tilings[int(scales.argmax())]
        return tilings[int(np.where(scales < 1, np.float32(10e9), scales).argmin())]

    def grid(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Tokens of a picture: rows and columns of the small copy, rows and columns of the canvas.

        Every count of tokens and every placeholder follows from this.
        """
        down, across = self._canvas_patches(*self.tiles(height, width))
        side = self.crop // self.patch
        pool_down, pool_across = self.constants["pooling_size"]
        return (
            -(-side // pool_down),
            -(-side // pool_across),
            -(-down // pool_down),
            -(-across // pool_across),
        )

    def __call__(self, images: Sequence[Image.Image]) -> dict[str, np.ndarray]:
        """Any PIL images to crops; images with fewer crops and tokens are padded at the end.

        Returns:
          crops: float32 [B, C, P, p * p * 3], the small copy first; values of a patch in (row,
            column, channel) order.
          pooling: int32 [B, N, K], which of an image's C * P patches make each token, -1 for none:
            first the small copy's tokens, then the canvas's.
          grid: int32 [B, 4], see `grid`.
          real: bool [B, N], only where some image has fewer tokens than others.

        Raises:
          UserError: no list of PIL images.
        """
        check_images(images)
        pictures = [self._sized(to_rgb(image)) for image in images]
        grids = [self.grid(picture.height, picture.width) for picture in pictures]
        crops = [self._crops(np.asarray(picture)) for picture in pictures]
        pooling = [self._pooling(picture.height, picture.width) for picture in pictures]
        per_crop = (self.crop // self.patch) ** 2
        values = self.patch**2 * 3
        out: dict[str, np.ndarray] = {
            "crops": np.zeros(
                (len(images), max(map(len, crops), default=0), per_crop, values), np.float32
            ),
            "pooling": np.full(
                (
                    len(images),
                    max(map(len, pooling), default=0),
                    int(np.prod(self.constants["pooling_size"])),
                ),
                -1,
                np.int32,
            ),
            "grid": np.asarray(grids, np.int32).reshape(-1, 4),
        }
        for index in range(len(images)):
            out["crops"][index, : len(crops[index])] = crops[index]
            out["pooling"][index, : len(pooling[index])] = pooling[index]
        counts = np.asarray([len(rows) for rows in pooling])
        length = out["pooling"].shape[1]
        if (counts < length).any():
            out["real"] = np.arange(length)[None, :] < counts[:, None]
        return out

    @property
    def _window(self) -> int:
        """Patches from one crop to the next."""
        return self.crop // self.patch - sum(self.constants["overlap_margins"])

    def _canvas_patches(self, rows: int, columns: int) -> tuple[int, int]:
        margin = sum(self.constants["overlap_margins"])
        return rows * self._window + margin, columns * self._window + margin

    def _sized(self, picture: Image.Image) -> Image.Image:
        if self.image_size is None:
            return picture
        return picture.resize((self.image_size, self.image_size), Image.Resampling.BICUBIC)

    def _crops(self, picture: np.ndarray) -> Float[np.ndarray, "c p v"]:
        rows, columns = self.tiles(*picture.shape[:2])
        down, across = self._canvas_patches(rows, columns)
        canvas = self._stretched(picture, down * self.patch, across * self.patch)
        step = self._window * self.patch
        views = [self._stretched(picture, self.crop, self.crop)]
        views += [
            canvas[top : top + self.crop, left : left + self.crop]
            for top in range(0, rows * step, step)
            for left in range(0, columns * step, step)
        ]
        side = self.crop // self.patch
        blocks = np.stack(views).reshape(len(views), side, self.patch, side, self.patch, 3)
        return blocks.transpose(0, 1, 3, 2, 4, 5).reshape(len(views), side * side, -1)

    def _stretched(self, picture: np.ndarray, height: int, width: int) -> np.ndarray:
        """Resized, rounded to bytes as the reference does, normalised."""
        pixels = np.clip(np.rint(bilinear(picture, height, width)), 0, 255)
        scale = np.float32(self.constants["rescale_factor"])
        mean, std = (np.asarray(self.constants[k], np.float32) for k in ("image_mean", "image_std"))
        return (pixels - mean / scale) / (std / scale)

    def _pooling(self, height: int, width: int) -> Int[np.ndarray, "n k"]:
        """Patches of each token. Where crops overlap, a place of the canvas belongs to the crop
        that has it farther from its edge.
        """
        rows, columns = self.tiles(height, width)
        side = self.crop // self.patch
        small = np.arange(side * side).reshape(side, side)
        numbers = side * side + np.arange(rows * columns * side * side)
        places = numbers.reshape(rows, columns, side, side)
        left, right = self.constants["overlap_margins"]

        def kept(number: int, count: int) -> slice:
            return slice(left if number else 0, side - (right if number < count - 1 else 0))

        canvas = np.block(
            [
                [places[r, c][kept(r, rows), kept(c, columns)] for c in range(columns)]
                for r in range(rows)
            ]
        )
        pool = tuple(self.constants["pooling_size"])
        return np.concatenate([pooled_places(small, pool), pooled_places(canvas, pool)])


def bilinear(picture: np.ndarray, height: int, width: int) -> Float[np.ndarray, "h w c"]:
    """A picture resized in float32, centres aligned, without antialiasing: of four neighbours.

    Bit for bit torch's `interpolate(mode="bilinear", align_corners=False)` on a CPU with fused
    multiply-adds; Pillow's bilinear filter averages over more pixels when it shrinks.

    Args:
      picture: [H, W, C], any numeric dtype.
      height, width: of the result.
    """
    top, bottom, down = _neighbours(picture.shape[0], height)
    left, right, across = _neighbours(picture.shape[1], width)
    upper, lower = (
        _mixed(picture[rows][:, left], picture[rows][:, right], across[None, :, None])
        for rows in (top, bottom)
    )
    return _mixed(upper, lower, down[:, None, None])


def _mixed(first: np.ndarray, second: np.ndarray, share: np.ndarray) -> np.ndarray:
    """first * (1 - share) + second * share in float32: the second product is rounded by itself, the
    first together with the sum, as in torch's fused multiply-add.
    """
    part = second.astype(np.float32) * share
    return (first.astype(np.float64) * (np.float32(1) - share) + part).astype(np.float32)


def _neighbours(old: int, new: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each place of the new axis its two old neighbours and the second one's weight."""
    scale = np.float32(old) / np.float32(new)
    # One rounding for product and sum, as torch's fused multiply-add has it.
    at = (np.float64(scale) * (np.arange(new) + 0.5) - 0.5).astype(np.float32)
    at = np.maximum(at, np.float32(0))
    first = np.minimum(at.astype(np.int64), old - 1)
    share = np.clip(at - first.astype(np.float32), 0, 1).astype(np.float32)
    return first, np.minimum(first + 1, old - 1), share


def pooled_places(places: Int[np.ndarray, "h w"], pool: tuple[int, int]) -> np.ndarray:
    """A grid of places in groups of `pool`, raster order: int32 [n, pool[0] * pool[1]].

    Sides that do not divide are padded with -1, the odd one at the bottom and on the right.
    """
    pads = [(-size % step) for size, step in zip(places.shape, pool, strict=True)]
    places = np.pad(places, [(n // 2, n - n // 2) for n in pads], constant_values=-1)
    down, across = (size // step for size, step in zip(places.shape, pool, strict=True))
    groups = places.reshape(down, pool[0], across, pool[1]).transpose(0, 2, 1, 3)
    return groups.reshape(down * across, -1).astype(np.int32)
