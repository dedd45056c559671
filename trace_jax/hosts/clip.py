"""CLIP with a ViT tower (transformers' CLIPModel), e.g. ViT-L/14.

The tap `last_hidden_state` is the last block's output without the CLS token, before any norm:
[B, 256, 1024] for ViT-L/14. CLIP's projected image embedding is made from the CLS token alone and
nothing comes after the last block that could mix tokens, so the tapped patch tokens never reach
it: whatever a recoverer does to them, `output.embedding` stays as it was (CLS travels in `carry`).
What recovery changes is `output.pooled`, the mean of the patch tokens, which the paper's retrieval
compares.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from trace_jax.errors import UserError
from trace_jax.hosts import hub_config
from trace_jax.hosts.base import (
    EncoderHost,
    EncoderOutput,
    ImageInputs,
    Params,
    TextInputs,
    sealed,
    unit,
)
from trace_jax.nn.blocks import StackConfig, run_blocks, stacked_blocks
from trace_jax.nn.embeddings import Embedding, PatchEmbedding
from trace_jax.nn.linear import Linear
from trace_jax.nn.norms import LayerNorm
from trace_jax.types import Features

# What transformers 5.24 assumes for keys a config.json leaves out.
VISION_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
TEXT_DEFAULTS: dict[str, Any] = {
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "eos_token_id": 49407,
}
TOP_DEFAULTS: dict[str, Any] = {"projection_dim": 512, "logit_scale_init_value": 2.6592}

# Configs written before transformers 4.31 carry this wrong id; with it the text is pooled at the
# largest token id, which in CLIP's vocabulary is the end of text.
_LEGACY_EOS = 2


@dataclasses.dataclass(frozen=True)
class ClipConfig:
    """Sizes of the two towers.

    Attributes:
      vision, text: geometry of the blocks.
      image_size, patch_size: pixels.
      vocabulary: rows of the token table.
      context: text positions.
      end_of_text: token whose first position is pooled, or None: pool at the largest id.
      embedding: E, width of both embeddings.
      logit_scale: where the logit scale starts (its log).
    """

    vision: StackConfig
    text: StackConfig
    image_size: int
    patch_size: int
    vocabulary: int
    context: int
    end_of_text: int | None
    embedding: int
    logit_scale: float

    @property
    def tokens(self) -> int:
        """Patches an image gives, CLS not counted."""
        return (self.image_size // self.patch_size) ** 2


def parse(config: Mapping[str, Any]) -> ClipConfig:
    """Sizes from a config.json of model_type "clip".

    Raises:
      UserError: another model, or sizes that fit none.
    """
    hub_config.require_model_type(config, "clip", "Only CLIP models with a ViT tower fit.")
    vision = hub_config.section(config, "vision_config", VISION_DEFAULTS)
    text = hub_config.section(config, "text_config", TEXT_DEFAULTS)
    top = hub_config.top_level(config, TOP_DEFAULTS)
    end = text["eos_token_id"]
    if not isinstance(end, int):
        raise UserError(f"config.json: text_config.eos_token_id is {end!r}, not one token id")
    image_size = hub_config.square(vision["image_size"], "vision_config.image_size")
    patch_size = hub_config.square(vision["patch_size"], "vision_config.patch_size")
    hub_config.grid_side(image_size, patch_size)
    return ClipConfig(
        vision=hub_config.stack(vision, causal=False, label="vision_config"),
        text=hub_config.stack(text, causal=True, label="text_config"),
        image_size=image_size,
        patch_size=patch_size,
        vocabulary=text["vocab_size"],
        context=text["max_position_embeddings"],
        end_of_text=None if end == _LEGACY_EOS else end,
        embedding=top["projection_dim"],
        logit_scale=float(top["logit_scale_init_value"]),
    )


class VisionTower(nnx.Module):
    """CLS and patches, positions, pre-norm, blocks; post-norm for the CLS is behind the tap."""

    def __init__(self, config: ClipConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        stack = config.vision
        self.patches = PatchEmbedding(
            config.patch_size, stack.width, bias=False, dtype=dtype, rngs=rngs
        )
        self.cls = nnx.Param(
            stack.width**-0.5 * jax.random.normal(rngs.params(), (stack.width,), dtype)
        )
        self.positions = Embedding(1 + config.tokens, stack.width, dtype=dtype, rngs=rngs)
        self.pre_norm = LayerNorm(stack.width, eps=stack.eps, dtype=dtype)
        self.blocks = stacked_blocks(stack, dtype=dtype, rngs=rngs)
        self.post_norm = LayerNorm(stack.width, eps=stack.eps, dtype=dtype)

    def embed(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b n d"]:
        patches = self.patches(pixels)
        cls = jnp.broadcast_to(self.cls[...], (patches.shape[0], 1, patches.shape[-1]))
        x = jnp.concatenate([cls, patches], axis=1) + self.positions.table[...]
        return self.pre_norm(x)


class TextTower(nnx.Module):
    """Tokens, positions, causal blocks, post-norm at the end-of-text position."""

    def __init__(self, config: ClipConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        stack = config.text
        self.tokens = Embedding(config.vocabulary, stack.width, dtype=dtype, rngs=rngs)
        self.positions = Embedding(config.context, stack.width, dtype=dtype, rngs=rngs)
        self.blocks = stacked_blocks(stack, dtype=dtype, rngs=rngs)
        self.post_norm = LayerNorm(stack.width, eps=stack.eps, dtype=dtype)
        self.end_of_text = config.end_of_text

    def embed(self, ids: Int[Array, "t l"]) -> Float[Array, "t l d"]:
        return self.tokens(ids) + self.positions.table[...][: ids.shape[1]]

    def __call__(self, ids: Int[Array, "t l"]) -> Float[Array, "t d"]:
        x = run_blocks(self.blocks, self.embed(ids))
        marks = ids if self.end_of_text is None else ids == self.end_of_text
        last = jnp.take_along_axis(x, jnp.argmax(marks, axis=1)[:, None, None], axis=1)
        return self.post_norm(last[:, 0])


class ClipModel(nnx.Module):
    """Both towers, their projections and the logit scale."""

    def __init__(self, config: ClipConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.vision = VisionTower(config, dtype=dtype, rngs=rngs)
        self.text = TextTower(config, dtype=dtype, rngs=rngs)
        self.vision_projection = Linear(
            config.vision.width, config.embedding, bias=False, dtype=dtype, rngs=rngs
        )
        self.text_projection = Linear(
            config.text.width, config.embedding, bias=False, dtype=dtype, rngs=rngs
        )
        self.logit_scale = nnx.Param(jnp.full((), config.logit_scale, dtype))


class Clip(EncoderHost):
    """See the module's docstring and EncoderHost."""

    family = "clip"
    taps = ("last_hidden_state",)
    hub_id = "openai/clip-vit-large-patch14"
    model: ClipConfig

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> ClipConfig:
        return parse(config)

    @classmethod
    def module(cls, model: ClipConfig, dtype: jnp.dtype, rngs: nnx.Rngs) -> ClipModel:
        return ClipModel(model, dtype=dtype, rngs=rngs)

    def apply_tap(self, params: Params, inputs: ImageInputs) -> Features:
        """See EncoderHost. `carry` is the CLS token, [B, D]."""
        model = self._merge(params)
        hidden = run_blocks(
            model.vision.blocks, model.vision.embed(self._pixels(model.logit_scale.dtype, inputs))
        )
        return Features(hidden[:, 1:], carry=hidden[:, 0], source=self.spec.source)

    def apply_resume(self, params: Params, features: Features) -> EncoderOutput:
        self._check_source(features)
        if features.carry is None:
            raise UserError(
                "CLIP's embedding is made from the CLS token, and these features have no carry "
                "(a cache keeps tokens only). Take them from host.tap, or pool tokens directly."
            )
        model = self._merge(params)
        dtype = model.logit_scale.dtype
        return _finish(model, features.tokens.astype(dtype), features.carry.astype(dtype))

    def apply_forward(self, params: Params, inputs: ImageInputs) -> EncoderOutput:
        model = self._merge(params)
        vision = model.vision
        hidden = vision.embed(self._pixels(model.logit_scale.dtype, inputs))
        hidden = run_blocks(vision.blocks, hidden)
        return sealed(
            lambda patches, cls: _finish(model, patches, cls), hidden[:, 1:], hidden[:, 0]
        )

    def apply_text(self, params: Params, inputs: TextInputs) -> Float[Array, "t e"]:
        model = self._merge(params)
        return model.text_projection(model.text(jnp.asarray(inputs["input_ids"])))

    def apply_logits(
        self, params: Params, images: Float[Array, "b e"], texts: Float[Array, "t e"]
    ) -> Float[Array, "b t"]:
        model = self._merge(params)
        return (unit(images) @ unit(texts).T) * jnp.exp(model.logit_scale[...])


def _finish(
    model: ClipModel, patches: Float[Array, "b n d"], cls: Float[Array, "b d"]
) -> EncoderOutput:
    embedding = model.vision_projection(model.vision.post_norm(cls))
    return EncoderOutput(patches.mean(axis=1), embedding)
