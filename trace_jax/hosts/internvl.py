"""InternVL3.5: InternViT on square tiles, a pixel shuffle, a projector, the Qwen3 decoder.

Taps: `post_projector`, [B, 256, 2560] a tile for 448x448 at 4B (the paper's), and `pre_projector`,
the tower's patches in raster order, [B, 1024, 1024] a tile. An image of several tiles has their
tokens one tile after the other, the thumbnail's last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from trace_jax.errors import FaultsError, UserError
from trace_jax.hosts import hub_config, text_decoder
from trace_jax.hosts.base import ImageInputs, Params
from trace_jax.hosts.internvl_images import TiledImages
from trace_jax.hosts.prompts import Chat
from trace_jax.hosts.text_decoder import DecoderConfig, TextDecoder
from trace_jax.hosts.vision_language import ImageTokens, VisionLanguageHost
from trace_jax.nn.activations import ACTIVATIONS
from trace_jax.nn.blocks import Block, StackConfig, collect_blocks, run_blocks, stacked_blocks
from trace_jax.nn.embeddings import Embedding, PatchEmbedding
from trace_jax.nn.linear import Linear
from trace_jax.nn.norms import LayerNorm
from trace_jax.types import Features, TapSpec

# What transformers 5.24 assumes for keys a config.json leaves out.
VISION_DEFAULTS: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "attention_bias": False,
    "intermediate_size": 4096,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": [448, 448],
    "patch_size": [14, 14],
}
TOP_DEFAULTS: dict[str, Any] = {
    "image_token_id": 151667,
    "image_seq_length": 256,
    "downsample_ratio": 0.5,
    "projector_hidden_act": "gelu",
    "tie_word_embeddings": True,
}
# By the text section's model_type: what it assumes, and what the decoder has.
_TEXT: dict[str, dict[str, Any]] = {
    "qwen3": {"defaults": {"head_dim": 128}, "query_key_norm": True, "qkv_bias": False},
    "qwen2": {"defaults": {}, "query_key_norm": False, "qkv_bias": True},
}
_TEXT_THETA = 10_000.0
# torch's LayerNorm default, which the projector leaves as it is.
_PROJECTOR_EPS = 1e-5


@dataclasses.dataclass(frozen=True)
class InternVLConfig:
    """Sizes.

    Attributes:
      vision: geometry of the tower's blocks.
      text: geometry of the decoder.
      image_size, patch: side of a tile and of a patch in pixels.
      merge: side of the squares of patches that become one token.
      activation: of the projector.
      image_token: id of the placeholder.
    """

    vision: StackConfig
    text: DecoderConfig
    image_size: int
    patch: int
    merge: int
    activation: str
    image_token: int

    @property
    def patches(self) -> int:
        """Patches of a tile."""
        return (self.image_size // self.patch) ** 2

    @property
    def tokens(self) -> int:
        """Tokens of a tile in the decoder."""
        return self.patches // self.merge**2


def parse(config: Mapping[str, Any]) -> InternVLConfig:
    """Sizes from a config.json of model_type "internvl", transformers' own format ("-HF").

    Raises:
      UserError: another model.
      FaultsError: settings that describe no model this host can be.
    """
    hub_config.require_model_type(
        config, "internvl", "Use the weights in transformers' format, whose names end in -HF."
    )
    top = hub_config.top_level(config, TOP_DEFAULTS)
    values = hub_config.section(config, "vision_config", VISION_DEFAULTS)
    vision = dataclasses.replace(
        hub_config.stack(values, causal=False, label="vision_config"), layer_scale=True
    )
    image_size = hub_config.square(values["image_size"], "vision_config.image_size")
    patch = hub_config.square(values["patch_size"], "vision_config.patch_size")
    side = hub_config.grid_side(image_size, patch)
    merge = int(1 / top["downsample_ratio"])
    faults = []
    if not values["attention_bias"]:
        faults.append("vision_config.attention_bias is False; this tower's maps have biases")
    if top["projector_hidden_act"] not in ACTIVATIONS:
        faults.append(f"projector_hidden_act {top['projector_hidden_act']!r} is unknown")
    if merge < 1 or merge * top["downsample_ratio"] != 1 or side % merge:
        faults.append(
            f"downsample_ratio {top['downsample_ratio']!r} does not divide {side} x {side} patches"
        )
    elif (side // merge) ** 2 != top["image_seq_length"]:
        faults.append(
            f"image_seq_length is {top['image_seq_length']!r}, a tile has {(side // merge) ** 2}"
        )
    if faults:
        raise FaultsError("config.json describes no model this host can be", faults)
    return InternVLConfig(
        vision=vision,
        text=_text(config, tied=bool(top["tie_word_embeddings"])),
        image_size=image_size,
        patch=patch,
        merge=merge,
        activation=top["projector_hidden_act"],
        image_token=top["image_token_id"],
    )


def _text(config: Mapping[str, Any], *, tied: bool) -> DecoderConfig:
    section = config["text_config"] if "text_config" in config else None
    if not isinstance(section, Mapping):
        raise UserError("config.json has no text_config")
    kind = section["model_type"] if "model_type" in section else "qwen2"
    if kind not in _TEXT:
        raise UserError(
            f"config.json: text_config.model_type is {kind!r}, this host has decoders of "
            f"{', '.join(_TEXT)}"
        )
    # Before transformers 5 only the text section said whether the head is tied.
    if "tie_word_embeddings" not in config and "tie_word_embeddings" in section:
        tied = bool(section["tie_word_embeddings"])
    known = _TEXT[kind]
    return text_decoder.parse(
        {"rope_theta": _TEXT_THETA, **known["defaults"], **section},
        tied=tied,
        query_key_norm=known["query_key_norm"],
        qkv_bias=known["qkv_bias"],
        layout="plain",
    )


class VisionTower(nnx.Module):
    """InternViT: a ViT with layer scale and no final norm."""

    def __init__(self, config: InternVLConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        width = config.vision.width
        self.cls = nnx.Param(jnp.zeros((1, width), dtype))
        self.patches = PatchEmbedding(config.patch, width, bias=True, dtype=dtype, rngs=rngs)
        self.positions = Embedding(config.patches + 1, width, dtype=dtype, rngs=rngs)
        self.blocks: Block = stacked_blocks(config.vision, dtype=dtype, rngs=rngs)

    def embed(self, pixels: Float[Array, "t h w 3"]) -> Float[Array, "t n d"]:
        """First hidden state of tiles: CLS and patches, with learned positions."""
        patches = self.patches(pixels)
        cls = jnp.broadcast_to(self.cls[...], (patches.shape[0], *self.cls.shape))
        return jnp.concatenate([cls, patches], axis=1) + self.positions.table[...]

    def __call__(self, pixels: Float[Array, "t h w 3"]) -> Float[Array, "t n d"]:
        """Tiles to their patches in raster order, without CLS."""
        return run_blocks(self.blocks, self.embed(pixels))[:, 1:]


class Projector(nnx.Module):
    """fc2(activation(fc1(norm(x)))) of shuffled patches, to the decoder's width."""

    def __init__(self, config: InternVLConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        wide, out = config.vision.width * config.merge**2, config.text.width
        self.norm = LayerNorm(wide, eps=_PROJECTOR_EPS, dtype=dtype)
        self.fc1 = Linear(wide, out, bias=True, dtype=dtype, rngs=rngs)
        self.fc2 = Linear(out, out, bias=True, dtype=dtype, rngs=rngs)
        self.activation = config.activation

    def __call__(self, x: Float[Array, "*b w"]) -> Float[Array, "*b d"]:
        return self.fc2(ACTIVATIONS[self.activation](self.fc1(self.norm(x))))


def pixel_shuffle(x: Float[Array, "t p d"], merge: int) -> Float[Array, "t n w"]:
    """Squares of merge x merge patches side by side as one token each, both in raster order.

    Args:
      x: patches of square tiles in raster order.
      merge: side of a square.
    """
    tiles, count, width = x.shape
    side = int(count**0.5) // merge
    squares = x.reshape(tiles, side, merge, side, merge, width).transpose(0, 1, 3, 2, 4, 5)
    return squares.reshape(tiles, side * side, merge * merge * width)


class InternVLModel(nnx.Module):
    """Tower, projector and decoder."""

    def __init__(self, config: InternVLConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.vision = VisionTower(config, dtype=dtype, rngs=rngs)
        self.projector = Projector(config, dtype=dtype, rngs=rngs)
        self.text = TextDecoder(config.text, dtype=dtype, rngs=rngs)
        self.merge = config.merge

    def project(self, patches: Float[Array, "t p d"]) -> Float[Array, "t n d"]:
        """Tiles' patches to their tokens in the decoder."""
        return self.projector(pixel_shuffle(patches, self.merge))


class InternVL(VisionLanguageHost):
    """Host family `internvl`; see VisionLanguageHost. A grid is (tiles, tokens of a tile)."""

    family = "internvl"
    taps = ("post_projector", "pre_projector")
    hub_id = "OpenGVLab/InternVL3_5-4B-HF"
    model: InternVLConfig

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> InternVLConfig:
        return parse(config)

    @classmethod
    def module(cls, model: InternVLConfig, dtype: jnp.dtype, rngs: nnx.Rngs) -> InternVLModel:
        return InternVLModel(model, dtype=dtype, rngs=rngs)

    @classmethod
    def companions(
        cls,
        model: InternVLConfig,
        preprocessor: Mapping[str, Any] | None,
        tokenizer: Path | None,
        lower_case: bool,
    ) -> tuple[TiledImages, Chat]:
        chat = Chat(
            tokenizer,
            image_token=model.image_token,
            written=written_prompt,
            vocabulary=model.text.vocab,
            around=("<img>", "</img>"),
        )
        return TiledImages(preprocessor, image_size=model.image_size), chat

    @property
    def decoder(self) -> DecoderConfig:
        return self.model.text

    def token_counts(self, grids: np.ndarray) -> np.ndarray:
        return np.prod(np.asarray(grids, np.int64).reshape(-1, 2), axis=-1)

    def apply_tap(self, params: Params, inputs: ImageInputs) -> Features:
        """Images to features.

        Args:
          params: as `host.params`.
          inputs: what `preprocess` gives: pixel_values [B, T, S, S, 3], tiles [B] of each image,
            and real [B, T] where some have fewer.
        """
        model = self._merge(params)
        pixels = self._pixels(model, inputs)
        tokens = model.vision(pixels.reshape(-1, *pixels.shape[2:]))
        if self.spec.tap.name == "post_projector":
            tokens = model.project(tokens)
        each, width = tokens.shape[1:]
        mask = None
        if "real" in inputs:
            mask = jnp.repeat(jnp.asarray(inputs["real"]), each, axis=1)
        tiles = jnp.asarray(inputs["tiles"])
        grid = jnp.stack([tiles, jnp.full_like(tiles, self.model.tokens)], axis=-1)
        tokens = tokens.reshape(pixels.shape[0], pixels.shape[1] * each, width)
        return Features(tokens, mask, {"grid": grid}, self.spec.source)

    def image_tokens(self, model: InternVLModel, features: Features) -> ImageTokens:
        tokens = features.tokens
        if self.spec.tap.name == "pre_projector":
            tiles = tokens.reshape(-1, self.model.patches, tokens.shape[-1])
            projected = model.project(tiles.astype(model.vision.cls.dtype))
            tokens = projected.reshape(tokens.shape[0], -1, projected.shape[-1])
        return ImageTokens(tokens, None)

    def apply_blocks(self, params: Params, inputs: ImageInputs) -> Float[Array, "l t n d"]:
        """Output of every block of the tower for all tiles [B * T], CLS first, for parity tests."""
        model = self._merge(params)
        pixels = self._pixels(model, inputs)
        tower = model.vision
        return collect_blocks(tower.blocks, tower.embed(pixels.reshape(-1, *pixels.shape[2:])))

    def _pixels(self, model: InternVLModel, inputs: ImageInputs) -> Float[Array, "b t s s 3"]:
        pixels, side = jnp.asarray(inputs["pixel_values"]), self.model.image_size
        if pixels.ndim != 5 or pixels.shape[2:] != (side, side, 3):
            raise UserError(
                f"host {self.spec.name} takes pixel_values [B, T, {side}, {side}, 3] as its "
                f"preprocess makes them, got {list(pixels.shape)}"
            )
        return pixels.astype(model.vision.cls.dtype)

    def _stride(self, features: Features) -> int:
        group = self.model.merge**2 if self.spec.tap.name == "pre_projector" else 1
        return features.tokens.shape[1] // group

    def _grid(self, inputs: ImageInputs) -> np.ndarray:
        tiles = np.asarray(inputs["tiles"])
        return np.stack([tiles, np.full_like(tiles, self.model.tokens)], axis=-1)

    def _tap_spec(self, tap: str) -> TapSpec:
        width = self.model.vision.width if tap == "pre_projector" else self.model.text.width
        return TapSpec(tap, None, width)


def written_prompt(question: str, images: int) -> str:
    """The chat format of InternVL3.5, where a folder brings no template."""
    pictures = "<IMG_CONTEXT>\n" * images
    return f"<|im_start|>user\n{pictures}{question}<|im_end|>\n<|im_start|>assistant\n"
