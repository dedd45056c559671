"""Qwen2.5-VL: a vision tower with windowed attention, a merger, the Qwen2 decoder.

Tap: `post_merger`, [B, 256, 2048] for 448x448 at 3B (the paper's), raster order over the grid of
merge blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from trace_jax.errors import FaultsError
from trace_jax.hosts import hub_config, text_decoder
from trace_jax.hosts.base import ImageInputs, Params
from trace_jax.hosts.merging import MergingConfig, MergingHost, tower_faults
from trace_jax.hosts.preprocess import CLIP_DEFAULTS
from trace_jax.hosts.text_decoder import TextDecoder
from trace_jax.hosts.vision_language import ImageTokens
from trace_jax.nn.linear import Linear
from trace_jax.nn.mergers import Merger
from trace_jax.nn.rope import axial_angles
from trace_jax.nn.rotary_blocks import (
    RotaryStackConfig,
    Windows,
    run_rotary_blocks,
    stacked_rotary_blocks,
)
from trace_jax.types import Features

# What transformers 5.24 assumes for keys a config.json leaves out.
VISION_DEFAULTS: dict[str, Any] = {
    "depth": 32,
    "hidden_size": 3584,
    "hidden_act": "silu",
    "intermediate_size": 3420,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 112,
    "out_hidden_size": 3584,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
TEXT_DEFAULTS: dict[str, Any] = {"rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0}
TOP_DEFAULTS: dict[str, Any] = {"image_token_id": 151655, "tie_word_embeddings": False}
# Qwen/Qwen2.5-VL-3B-Instruct's preprocessor_config.json; areas in pixels.
IMAGE_DEFAULTS: dict[str, Any] = {
    "do_resize": True,
    "size": {"shortest_edge": 3_136, "longest_edge": 12_845_056},
    "resample": 3,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": CLIP_DEFAULTS["image_mean"],
    "image_std": CLIP_DEFAULTS["image_std"],
}
# The tower's epsilon and rotary base are no settings in transformers.
_EPS, _THETA = 1e-6, 10_000.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen25VLConfig(MergingConfig):
    """Sizes, those of MergingConfig and:

    Attributes:
      window: side of a window in merge blocks.
      whole: numbers of the blocks that attend over the whole image.
    """

    window: int
    whole: tuple[int, ...]


def parse(config: Mapping[str, Any]) -> Qwen25VLConfig:
    """Sizes from a config.json of model_type "qwen2_5_vl".

    Published files write the decoder's settings at the top level, transformers 5 in `text_config`.

    Raises:
      UserError: another model.
      FaultsError: settings that describe no model this host can be.
    """
    hub_config.require_model_type(config, "qwen2_5_vl", "Qwen2-VL is another architecture.")
    top = hub_config.top_level(config, TOP_DEFAULTS)
    vision = hub_config.section(config, "vision_config", VISION_DEFAULTS)
    nested = config["text_config"] if "text_config" in config else None
    given = nested if isinstance(nested, Mapping) else config
    # Before transformers 5 the flag stood in the text section.
    tied = any("tie_word_embeddings" in s and s["tie_word_embeddings"] for s in (top, given))
    text = text_decoder.parse(
        {**TEXT_DEFAULTS, **given},
        tied=tied,
        query_key_norm=False,
        qkv_bias=True,
        layout="sectioned",
    )
    patch = hub_config.square(vision["patch_size"], "vision_config.patch_size")
    merge, whole = vision["spatial_merge_size"], tuple(vision["fullatt_block_indexes"])
    window = vision["window_size"] // (merge * patch)
    faults = tower_faults(vision, text, width="hidden_size", out="out_hidden_size")
    if text.head_width != text.width // text.heads:
        faults.append(
            f"text_config.head_dim is {text.head_width}, this decoder's heads are hidden_size / "
            f"num_attention_heads = {text.width // text.heads} wide"
        )
    if window < 1:
        faults.append(
            f"vision_config.window_size {vision['window_size']} holds no merge block of "
            f"{merge * patch} pixels"
        )
    if any(number not in range(vision["depth"]) for number in whole):
        faults.append(f"fullatt_block_indexes {list(whole)} must lie below depth")
    if faults:
        raise FaultsError("config.json describes no model this host can be", faults)
    return Qwen25VLConfig(
        vision=RotaryStackConfig(
            width=vision["hidden_size"],
            hidden=vision["intermediate_size"],
            depth=vision["depth"],
            heads=vision["num_heads"],
            activation=vision["hidden_act"],
            eps=_EPS,
            norm="rms",
            gated=True,
        ),
        text=text,
        patch=patch,
        temporal=hub_config.square(
            vision["temporal_patch_size"], "vision_config.temporal_patch_size"
        ),
        merge=merge,
        window=window,
        whole=whole,
        image_token=top["image_token_id"],
    )


class VisionTower(nnx.Module):
    """Patches to tokens of the decoder's width."""

    def __init__(self, config: Qwen25VLConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        width = config.vision.width
        self.patches = Linear(config.patch_values, width, bias=False, dtype=dtype, rngs=rngs)
        self.blocks = stacked_rotary_blocks(config.vision, dtype=dtype, rngs=rngs)
        self.merger = Merger(
            width,
            config.text.width,
            group=config.merge**2,
            norm="rms",
            norm_after=False,
            eps=_EPS,
            dtype=dtype,
            rngs=rngs,
        )
        self.config = config

    def run(
        self, inputs: ImageInputs, kept: tuple[int, ...] = ()
    ) -> tuple[Float[Array, "b s d"], Float[Array, "k b s d"]]:
        """All blocks, tokens laid out window by window; also the outputs of the `kept` ones.

        Args:
          inputs: see Qwen25VL.apply_tap.
          kept: numbers of blocks.
        """
        c = self.config
        group = c.merge**2
        order = jnp.asarray(inputs["order"])
        patches = jnp.asarray(inputs["patches"]).astype(self.patches.kernel[...].dtype)
        x = by_windows(self.patches(patches), order, group)
        rows, columns = (
            by_windows(jnp.asarray(inputs[key])[..., None], order, group)[..., 0]
            for key in ("rows", "columns")
        )
        angles = axial_angles(rows, columns, c.vision.width // c.vision.heads, _THETA)
        size = c.window**2 * group
        whole, inside = None, None
        if "filled" in inputs:
            filled = jnp.repeat(jnp.asarray(inputs["filled"]), group, axis=1)
            whole, inside = _onto(filled), _onto(filled.reshape(-1, size))
        windows = Windows(size, inside, c.whole)
        return run_rotary_blocks(self.blocks, x, angles, whole, kept, windows)


def by_windows(
    x: Float[Array, "b p d"], order: Int[Array, "b s"], group: int
) -> Float[Array, "b sg d"]:
    """Tokens in merge-block order to their places in windows; `group` tokens of a block follow
    each other. Empty places hold the first block.
    """
    blocks = x.reshape(x.shape[0], -1, group * x.shape[-1])
    taken = jnp.take_along_axis(blocks, jnp.maximum(order, 0)[..., None], axis=1)
    return taken.reshape(x.shape[0], -1, x.shape[-1])


def _onto(real: Bool[Array, "b n"]) -> Bool[Array, "b n n"]:
    """Everything looks at what is real."""
    return jnp.broadcast_to(real[:, None, :], (*real.shape, real.shape[1]))


class Qwen25VLModel(nnx.Module):
    """Tower and decoder."""

    def __init__(self, config: Qwen25VLConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.vision = VisionTower(config, dtype=dtype, rngs=rngs)
        self.text = TextDecoder(config.text, dtype=dtype, rngs=rngs)


class Qwen25VL(MergingHost):
    """Host family `qwen2_5_vl`; see VisionLanguageHost.

    The checkpoint's generation_config asks for a repetition penalty of 1.05, which transformers'
    `generate` applies to greedy decoding too. `generate` here is plain greedy, the paper's
    protocol, unless `repetition_penalty=None` asks for the checkpoint's own.
    """

    family = "qwen2_5_vl"
    taps = ("post_merger",)
    hub_id = "Qwen/Qwen2.5-VL-3B-Instruct"
    image_defaults = IMAGE_DEFAULTS
    spatial = True
    model: Qwen25VLConfig

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Qwen25VLConfig:
        return parse(config)

    @classmethod
    def module(cls, model: Qwen25VLConfig, dtype: jnp.dtype, rngs: nnx.Rngs) -> Qwen25VLModel:
        return Qwen25VLModel(model, dtype=dtype, rngs=rngs)

    @staticmethod
    def written_prompt(question: str, images: int) -> str:
        """The chat format of Qwen2.5-VL-Instruct, where a folder brings no template."""
        pictures = "<|vision_start|><|image_pad|><|vision_end|>" * images
        return (
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            f"<|im_start|>user\n{pictures}{question}<|im_end|>\n<|im_start|>assistant\n"
        )

    def apply_tap(self, params: Params, inputs: ImageInputs) -> Features:
        """Images to features.

        Args:
          params: as `host.params`.
          inputs: what `preprocess` gives: patches [B, P, 3*T*p*p], rows, columns [B, P] of every
            patch, grid [B, 2] of patches, real [B, P] where some images have fewer, and the
            windows: see `window_order`.
        """
        tower = self._merge(params).vision
        x, _ = tower.run(inputs)
        back = jnp.asarray(inputs["back"])
        tokens = jnp.take_along_axis(tower.merger(x), back[..., None], axis=1)
        mask = None
        if "real" in inputs:
            mask = jnp.asarray(inputs["real"])[:, :: self.model.merge**2]
        carry = {"grid": jnp.asarray(inputs["grid"]) // self.model.merge}
        return Features(tokens, mask, carry, self.spec.source)

    def image_tokens(self, model: Qwen25VLModel, features: Features) -> ImageTokens:
        return ImageTokens(features.tokens, None)

    def apply_blocks(self, params: Params, inputs: ImageInputs) -> Float[Array, "l b p d"]:
        """Output of every block of the tower in merge-block order, for parity tests."""
        tower = self._merge(params).vision
        states = tower.run(inputs, tuple(range(self.model.vision.depth)))[1]
        back = jnp.asarray(inputs["back"])[None, ..., None]
        blocks = states.reshape(*states.shape[:2], -1, self.model.merge**2 * states.shape[-1])
        ordered = jnp.take_along_axis(blocks, back, axis=2)
        return ordered.reshape(*states.shape[:2], -1, states.shape[-1])

    def preprocess(self, images: Any) -> dict[str, np.ndarray]:
        """PIL images to patches with their places and windows; see `window_order`."""
        inputs = super().preprocess(images)
        return {**inputs, **window_order(self._grid(inputs), self.model.window)}


def window_order(grid: np.ndarray, side: int) -> dict[str, np.ndarray]:
    """Where the merge blocks of images stand in windows of `side` x `side` blocks.

    Windows follow each other row by row, and so do the blocks of a window, as in transformers'
    `get_vision_window_index`. Windows that the image's border cuts keep their full size here.

    Args:
      grid: int [B, 2], merge blocks down and across.
      side: of a window, in merge blocks.

    Returns:
      order: int32 [B, S], which block stands in each place, or -1: none.
      back: int32 [B, N], the place of each block; 0 past an image's blocks.
      filled: bool [B, S], order >= 0; only where some place is empty.
    """
    orders = []
    for down, across in np.asarray(grid).tolist():
        blocks = np.arange(down * across, dtype=np.int32).reshape(down, across)
        blocks = np.pad(blocks, ((0, -down % side), (0, -across % side)), constant_values=-1)
        high, wide = (n // side for n in blocks.shape)
        orders.append(blocks.reshape(high, side, wide, side).transpose(0, 2, 1, 3).reshape(-1))
    counts = np.prod(np.asarray(grid, np.int64).reshape(-1, 2), axis=-1)
    order = np.full((len(orders), max(map(len, orders), default=0)), -1, np.int32)
    back = np.zeros((len(orders), counts.max(initial=0)), np.int32)
    for index, row in enumerate(orders):
        order[index, : len(row)] = row
        places = np.flatnonzero(row >= 0)
        back[index, row[places]] = places
    windows = {"order": order, "back": back}
    return windows if (order >= 0).all() else {**windows, "filled": order >= 0}
