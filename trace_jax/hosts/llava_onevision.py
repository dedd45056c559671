"""LLaVA-OneVision-1.5: the Rice vision tower, a merger, the Qwen3 decoder.

Taps: `post_merger`, [B, 256, 2560] for 448x448 at 4B (the paper's), and `pre_merger`, the tower's
patches in merge-block order [B, 1024, 1024]. transformers 5.24 has no class for it; what is
computed here is lmms-lab's modeling_llavaonevision1_5.py, but each image by itself: theirs, given
several images in one call, takes the class tokens out at the wrong places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from trace_jax.errors import FaultsError, UserError
from trace_jax.hosts import hub_config, text_decoder
from trace_jax.hosts.base import ImageInputs, Params
from trace_jax.hosts.merging import MergingConfig, MergingHost, tower_faults
from trace_jax.hosts.text_decoder import TextDecoder
from trace_jax.hosts.vision_language import ImageTokens
from trace_jax.nn.linear import Linear
from trace_jax.nn.mergers import Merger
from trace_jax.nn.norms import LayerNorm
from trace_jax.nn.rope import axial_angles
from trace_jax.nn.rotary_blocks import RotaryStackConfig, run_rotary_blocks, stacked_rotary_blocks
from trace_jax.types import Features

# What the published configuration class assumes for keys a config.json leaves out.
VISION_DEFAULTS: dict[str, Any] = {
    "depth": 24,
    "embed_dim": 1024,
    "hidden_size": 1024,
    "hidden_act": "gelu",
    "intermediate_size": 4096,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 1,
    "layer_norm_eps": 1e-5,
    "text_hidden_size": 2560,
}
TOP_DEFAULTS: dict[str, Any] = {"image_token_id": 151655, "tie_word_embeddings": False}
# The published preprocessor_config.json of the 4B checkpoints; areas in pixels.
IMAGE_DEFAULTS: dict[str, Any] = {
    "do_resize": True,
    "size": {"shortest_edge": 3136, "longest_edge": 2_560_000},
    "resample": 3,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
# The tower's rotary base is no setting of the published class.
_THETA = 10_000.0

_small_normal = jax.nn.initializers.normal(0.02)


def parse(config: Mapping[str, Any]) -> MergingConfig:
    """Sizes from a config.json of model_type "llavaonevision1_5".

    Raises:
      UserError: another model.
      FaultsError: settings that describe no model this host can be.
    """
    hub_config.require_model_type(
        config, "llavaonevision1_5", "The first LLaVA-OneVision is another architecture."
    )
    top = hub_config.top_level(config, TOP_DEFAULTS)
    vision = hub_config.section(config, "vision_config", VISION_DEFAULTS)
    if "text_config" not in config or not isinstance(config["text_config"], Mapping):
        raise UserError("config.json has no text_config")
    text = text_decoder.parse(
        config["text_config"],
        tied=bool(top["tie_word_embeddings"]),
        query_key_norm=True,
        qkv_bias=False,
        layout="plain",
    )
    width, heads = vision["embed_dim"], vision["num_heads"]
    faults = tower_faults(vision, text, width="embed_dim", out="text_hidden_size")
    if vision["hidden_size"] != width:
        faults.append(f"vision_config.hidden_size is not embed_dim {width}")
    if faults:
        raise FaultsError("config.json describes no model this host can be", faults)
    return MergingConfig(
        vision=RotaryStackConfig(
            width=width,
            hidden=vision["intermediate_size"],
            depth=vision["depth"],
            heads=heads,
            activation=vision["hidden_act"],
            eps=float(vision["layer_norm_eps"]),
            norm="layer",
            gated=False,
        ),
        text=text,
        patch=hub_config.square(vision["patch_size"], "vision_config.patch_size"),
        temporal=vision["temporal_patch_size"],
        merge=vision["spatial_merge_size"],
        image_token=top["image_token_id"],
    )


class RiceTower(nnx.Module):
    """Patches to tokens before the merger.

    A class token runs in front of every image's patches. It has no place in the grid: its rotary
    angles are learned.
    """

    def __init__(self, config: MergingConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        c, width = config.vision, config.vision.width
        self.patches = Linear(config.patch_values, width, bias=False, dtype=dtype, rngs=rngs)
        self.cls = nnx.Param(_small_normal(rngs.params(), (width,), dtype))
        self.cls_angles = nnx.Param(_small_normal(rngs.params(), (width // c.heads // 2,), dtype))
        self.pre_norm = LayerNorm(width, eps=c.eps, dtype=dtype)
        self.blocks = stacked_rotary_blocks(c, dtype=dtype, rngs=rngs)
        self.merger = Merger(
            width,
            config.text.width,
            group=config.merge**2,
            norm="layer",
            norm_after=False,
            eps=c.eps,
            dtype=dtype,
            rngs=rngs,
        )
        self.config = config

    def embed(self, patches: Float[Array, "b p v"]) -> Float[Array, "b p1 d"]:
        """First hidden state: the class token, then the patches, normalised."""
        x = self.patches(patches.astype(self.patches.kernel[...].dtype))
        first = jnp.broadcast_to(self.cls[...], (x.shape[0], 1, x.shape[-1]))
        return self.pre_norm(jnp.concatenate([first, x], axis=1))

    def angles(
        self, rows: Int[Array, "b p"], columns: Int[Array, "b p"]
    ) -> Float[Array, "b p1 half"]:
        """Rotary angles of the class token and the patches."""
        c = self.config.vision
        axial = axial_angles(rows, columns, c.width // c.heads, _THETA)
        learned = self.cls_angles[...].astype(axial.dtype)
        first = jnp.broadcast_to(learned, (axial.shape[0], 1, *learned.shape))
        return jnp.concatenate([first, axial], axis=1)

    def run(
        self,
        patches: Float[Array, "b p v"],
        rows: Int[Array, "b p"],
        columns: Int[Array, "b p"],
        real: Bool[Array, "b p"] | None,
        kept: tuple[int, ...] = (),
    ) -> tuple[Float[Array, "b p1 d"], Float[Array, "k b p1 d"]]:
        """All blocks, class token in front; also the outputs of the `kept` ones."""
        x = self.embed(patches)
        visible = None
        if real is not None:
            seen = jnp.pad(real, ((0, 0), (1, 0)), constant_values=True)
            visible = jnp.broadcast_to(seen[:, None, :], (*seen.shape, seen.shape[1]))
        return run_rotary_blocks(self.blocks, x, self.angles(rows, columns), visible, kept)


class LlavaOnevisionModel(nnx.Module):
    """Tower and decoder."""

    def __init__(self, config: MergingConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.vision = RiceTower(config, dtype=dtype, rngs=rngs)
        self.text = TextDecoder(config.text, dtype=dtype, rngs=rngs)


class LlavaOnevision(MergingHost):
    """Host family `llava_onevision`; see VisionLanguageHost and MergingHost."""

    family = "llava_onevision"
    taps = ("post_merger", "pre_merger")
    hub_id = "lmms-lab/LLaVA-OneVision-1.5-4B-Instruct"
    image_defaults = IMAGE_DEFAULTS
    model: MergingConfig

    @staticmethod
    def written_prompt(question: str, images: int) -> str:
        pictures = "<|vision_start|><|image_pad|><|vision_end|>" * images
        return (
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            f"<|im_start|>user\n{pictures}{question}<|im_end|>\n<|im_start|>assistant\n"
        )

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> MergingConfig:
        return parse(config)

    @classmethod
    def module(cls, model: MergingConfig, dtype: jnp.dtype, rngs: nnx.Rngs) -> LlavaOnevisionModel:
        return LlavaOnevisionModel(model, dtype=dtype, rngs=rngs)

    def apply_tap(self, params: Params, inputs: ImageInputs) -> Features:
        """Images to features.

        Args:
          params: as `host.params`.
          inputs: what `preprocess` gives: patches [B, P, 3*T*p*p], rows, columns [B, P] of every
            patch, grid [B, 2] of patches, and real [B, P] where some images have fewer.
        """
        tower = self._merge(params).vision
        x, _ = tower.run(*self._arrays(inputs))
        tokens = x[:, 1:]
        mask = jnp.asarray(inputs["real"]) if "real" in inputs else None
        if self.spec.tap.name == "post_merger":
            tokens = tower.merger(tokens)
            mask = None if mask is None else mask[:, :: self.model.merge**2]
        carry = {"grid": jnp.asarray(inputs["grid"]) // self.model.merge}
        return Features(tokens, mask, carry, self.spec.source)

    def image_tokens(self, model: LlavaOnevisionModel, features: Features) -> ImageTokens:
        if self.spec.tap.name == "post_merger":
            return ImageTokens(features.tokens, None)
        dtype = model.vision.patches.kernel[...].dtype
        return ImageTokens(model.vision.merger(features.tokens.astype(dtype)), None)

    def apply_blocks(self, params: Params, inputs: ImageInputs) -> Float[Array, "l b p1 d"]:
        """Output of every block of the tower, class token in front, for parity tests."""
        tower = self._merge(params).vision
        return tower.run(*self._arrays(inputs), tuple(range(self.model.vision.depth)))[1]

    def _arrays(self, inputs: ImageInputs) -> tuple[Array, Array, Array, Array | None]:
        patches, rows, columns = (jnp.asarray(inputs[k]) for k in ("patches", "rows", "columns"))
        return patches, rows, columns, jnp.asarray(inputs["real"]) if "real" in inputs else None
