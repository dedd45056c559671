"""A tiny random host of every registered family, with pictures and prompts for it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from PIL import Image
from support import detectors, encoders, molmo2, rice, vision_language

from trace_jax import hosts
from trace_jax.hosts import base


@dataclasses.dataclass(frozen=True)
class Tiny:
    """What makes a host of a family.

    Attributes:
      config: in the form of config.json.
      image: id of an image's placeholder; None where the family answers no questions.
      preprocessor: in the form of preprocessor_config.json, or None.
    """

    config: Mapping[str, Any]
    image: int | None = None
    preprocessor: Mapping[str, Any] | None = None


_SMALL = {"min_pixels": 28 * 28, "max_pixels": 112 * 112}
TINY = {
    "clip": Tiny(encoders.CONFIGS["clip"]),
    "siglip2": Tiny(encoders.CONFIGS["siglip2"]),
    "rf_detr": Tiny(
        {
            **detectors.TINY,
            "model_type": "rf_detr",
            "id2label": {str(k): f"thing {k}" for k in range(5)},
        }
    ),
    "qwen3_vl": Tiny(vision_language.QWEN3, vision_language.IMAGE, _SMALL),
    "qwen2_5_vl": Tiny(vision_language.QWEN2_5, vision_language.IMAGE, _SMALL),
    "internvl": Tiny(vision_language.INTERNVL, vision_language.IMAGE),
    "llava_onevision": Tiny(rice.CONFIG, rice.IMAGE, _SMALL),
    "molmo2": Tiny(molmo2.CONFIG | {"image_col_id": molmo2.COLUMN}, molmo2.IMAGE, molmo2.PROCESSOR),
}
SIZES = ((60, 60), (90, 47), (33, 100), (75, 75))


def families() -> list[str]:
    """Names of all registered families."""
    return sorted({entry.family.family for entry in hosts.HOSTS.values()})


@functools.cache
def build(name: str, tap: str | None = None, dtype: str = "float32", seed: int = 0) -> hosts.Host:
    """A random host, every parameter away from 0 and 1 so that none of them hides a fault."""
    tiny = TINY[name]
    config = {"model_type": name, **tiny.config}
    family = hosts.lookup(name).family
    rng = np.random.default_rng(seed)

    def draw(path: Any, leaf: Any) -> jax.Array:
        centre = 1.0 if path[-1].key == "scale" else 0.0
        values = rng.normal(centre, 0.2, leaf.shape).astype(np.float32)
        return jax.numpy.asarray(values.astype(leaf.dtype))

    shapes = base.abstract_params(family, family.parse(config), dtype)
    params = jax.tree_util.tree_map_with_path(draw, shapes)
    return hosts.bind(
        name, config, params, hosts.UNHASHED, preprocessor=tiny.preprocessor, tokenizer=None,
        tap=tap,
    )  # fmt: skip


def pictures(count: int) -> list[Image.Image]:
    """Different pictures of different sizes."""
    return [vision_language.picture(*SIZES[k % len(SIZES)], seed=k) for k in range(count)]


def prompts(name: str, lengths: Sequence[int], images: Sequence[int]) -> list[list[int]]:
    """Random token ids, the images' placeholders in front."""
    rng = np.random.default_rng(7)
    return [
        [TINY[name].image] * count + rng.integers(1, 80, length).tolist()
        for length, count in zip(lengths, images, strict=True)
    ]
