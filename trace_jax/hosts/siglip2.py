"""SigLIP2, fixed resolution: the SigLIP-1 architecture (transformers' SiglipModel).

The tap `last_hidden_state` lies after the post-layernorm, [B, 196, 768] for base-patch16-224.
`resume` is the attention-pooling head, so recovered tokens reach the image embedding.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

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
from trace_jax.nn.attention import Attention
from trace_jax.nn.blocks import StackConfig, run_blocks, stacked_blocks
from trace_jax.nn.embeddings import Embedding, PatchEmbedding
from trace_jax.nn.linear import Linear, xavier_uniform
from trace_jax.nn.mlp import Mlp
from trace_jax.nn.norms import LayerNorm
from trace_jax.types import Features

# What transformers 5.24 assumes for keys a config.json leaves out.
VISION_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
TEXT_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 64,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "projection_size": None,
}


@dataclasses.dataclass(frozen=True)
class Siglip2Config:
    """Sizes of the two towers.

    Attributes:
      vision, text: geometry of the blocks.
      image_size, patch_size: pixels.
      vocabulary: rows of the token table.
      context: text positions.
      embedding: E, width of both embeddings.
    """

    vision: StackConfig
    text: StackConfig
    image_size: int
    patch_size: int
    vocabulary: int
    context: int
    embedding: int

    @property
    def tokens(self) -> int:
        """Patches an image gives."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def end_of_text(self) -> None:
        """No token is pooled: the last position is."""
        return None


def parse(config: Mapping[str, Any]) -> Siglip2Config:
    """Sizes from a config.json of model_type "siglip".

    Raises:
      UserError: another model, or sizes that fit none.
    """
    hub_config.require_model_type(
        config, "siglip", "NaFlex checkpoints (model_type siglip2) are another architecture."
    )
    vision = hub_config.section(config, "vision_config", VISION_DEFAULTS)
    text = hub_config.section(config, "text_config", TEXT_DEFAULTS)
    projection = text["projection_size"]
    embedding = text["hidden_size"] if projection is None else projection
    if embedding != vision["hidden_size"]:
        raise UserError(
            f"config.json: text embeddings are {embedding} wide (text_config.projection_size), "
            f"image embeddings {vision['hidden_size']} (vision_config.hidden_size)"
        )
    image_size = hub_config.square(vision["image_size"], "vision_config.image_size")
    patch_size = hub_config.square(vision["patch_size"], "vision_config.patch_size")
    hub_config.grid_side(image_size, patch_size)
    return Siglip2Config(
        vision=hub_config.stack(vision, causal=False, label="vision_config"),
        text=hub_config.stack(text, causal=False, label="text_config"),
        image_size=image_size,
        patch_size=patch_size,
        vocabulary=text["vocab_size"],
        context=text["max_position_embeddings"],
        embedding=embedding,
    )


class PoolingHead(nnx.Module):
    """A learned probe attends to all tokens; then a residual MLP. [B, N, D] -> [B, D]."""

    def __init__(self, config: StackConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.probe = nnx.Param(xavier_uniform(rngs.params(), (1, config.width), dtype))
        self.attention = Attention(
            config.width, heads=config.heads, causal=False, dtype=dtype, rngs=rngs
        )
        self.norm = LayerNorm(config.width, eps=config.eps, dtype=dtype)
        self.mlp = Mlp(
            config.width, config.hidden, activation=config.activation, dtype=dtype, rngs=rngs
        )

    def __call__(self, tokens: Float[Array, "b n d"]) -> Float[Array, "b d"]:
        probe = jnp.broadcast_to(self.probe[...], (tokens.shape[0], 1, tokens.shape[-1]))
        x = self.attention(probe, tokens)[:, 0]
        return x + self.mlp(self.norm(x))


class VisionTower(nnx.Module):
    """Patches, positions, blocks, post-norm; the head is kept apart, behind the tap."""

    def __init__(self, config: Siglip2Config, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        stack = config.vision
        self.patches = PatchEmbedding(
            config.patch_size, stack.width, bias=True, dtype=dtype, rngs=rngs
        )
        self.positions = Embedding(config.tokens, stack.width, dtype=dtype, rngs=rngs)
        self.blocks = stacked_blocks(stack, dtype=dtype, rngs=rngs)
        self.post_norm = LayerNorm(stack.width, eps=stack.eps, dtype=dtype)
        self.head = PoolingHead(stack, dtype=dtype, rngs=rngs)

    def embed(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b n d"]:
        return self.patches(pixels) + self.positions.table[...]

    def encode(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b n d"]:
        return self.post_norm(run_blocks(self.blocks, self.embed(pixels)))


class TextTower(nnx.Module):
    """Tokens, positions, blocks without mask, post-norm, a linear head on the last position."""

    def __init__(self, config: Siglip2Config, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        stack = config.text
        self.tokens = Embedding(config.vocabulary, stack.width, dtype=dtype, rngs=rngs)
        self.positions = Embedding(config.context, stack.width, dtype=dtype, rngs=rngs)
        self.blocks = stacked_blocks(stack, dtype=dtype, rngs=rngs)
        self.post_norm = LayerNorm(stack.width, eps=stack.eps, dtype=dtype)
        self.head = Linear(stack.width, config.embedding, bias=True, dtype=dtype, rngs=rngs)

    def embed(self, ids: Int[Array, "t l"]) -> Float[Array, "t l d"]:
        return self.tokens(ids) + self.positions.table[...][: ids.shape[1]]

    def __call__(self, ids: Int[Array, "t l"]) -> Float[Array, "t e"]:
        x = run_blocks(self.blocks, self.embed(ids))
        # The last position, which is a pad for all but the longest texts: so it was trained.
        return self.head(self.post_norm(x[:, -1]))


class Siglip2Model(nnx.Module):
    """Both towers, the logit scale and bias. Scale starts at log 10, bias at -10 (SigLIP)."""

    def __init__(self, config: Siglip2Config, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.vision = VisionTower(config, dtype=dtype, rngs=rngs)
        self.text = TextTower(config, dtype=dtype, rngs=rngs)
        self.logit_scale = nnx.Param(jnp.full((1,), math.log(10.0), dtype))
        self.logit_bias = nnx.Param(jnp.full((1,), -10.0, dtype))


class Siglip2(EncoderHost):
    """See the module's docstring and EncoderHost."""

    family = "siglip2"
    taps = ("last_hidden_state",)
    hub_id = "google/siglip2-base-patch16-224"
    model: Siglip2Config

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Siglip2Config:
        return parse(config)

    @classmethod
    def module(cls, model: Siglip2Config, dtype: jnp.dtype, rngs: nnx.Rngs) -> Siglip2Model:
        return Siglip2Model(model, dtype=dtype, rngs=rngs)

    def apply_tap(self, params: Params, inputs: ImageInputs) -> Features:
        model = self._merge(params)
        tokens = model.vision.encode(self._pixels(model.logit_scale.dtype, inputs))
        return Features(tokens, source=self.spec.source)

    def apply_resume(self, params: Params, features: Features) -> EncoderOutput:
        self._check_source(features)
        model = self._merge(params)
        return _finish(model, features.tokens.astype(model.logit_scale.dtype))

    def apply_forward(self, params: Params, inputs: ImageInputs) -> EncoderOutput:
        model = self._merge(params)
        vision = model.vision
        hidden = vision.embed(self._pixels(model.logit_scale.dtype, inputs))
        hidden = vision.post_norm(run_blocks(vision.blocks, hidden))
        return sealed(lambda hidden: _finish(model, hidden), hidden)

    def apply_text(self, params: Params, inputs: TextInputs) -> Float[Array, "t e"]:
        return self._merge(params).text(jnp.asarray(inputs["input_ids"]))

    def apply_logits(
        self, params: Params, images: Float[Array, "b e"], texts: Float[Array, "t e"]
    ) -> Float[Array, "b t"]:
        model = self._merge(params)
        cosines = unit(images) @ unit(texts).T
        return cosines * jnp.exp(model.logit_scale[...]) + model.logit_bias[...]


def _finish(model: Siglip2Model, hidden: Float[Array, "b n d"]) -> EncoderOutput:
    return EncoderOutput(hidden.mean(axis=1), model.vision.head(hidden))
