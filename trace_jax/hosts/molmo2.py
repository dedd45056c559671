"""Molmo2: a SigLIP-type tower over overlapping crops, attention pooling, a Qwen3-like decoder.

Tap `post_projector` (the paper's): [B, 725, 2560] for 448x448 at 4B, 196 tokens of a small copy of
the whole picture, then 529 of its tiles. Tap `pre_projector`: the same tokens after pooling,
[B, 725, 1152]. Unlike the other families the decoder adds an image's tokens to the embeddings of
their placeholders, and in prefill all image tokens, markers included, see each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from trace_jax.errors import FaultsError, UserError
from trace_jax.hosts import hub_config, text_decoder
from trace_jax.hosts.base import ImageInputs, Params
from trace_jax.hosts.molmo2_images import Molmo2Images
from trace_jax.hosts.prompts import Chat
from trace_jax.hosts.text_decoder import DecoderConfig, TextDecoder
from trace_jax.hosts.vision_language import ImageTokens, TextInputs, VisionLanguageHost
from trace_jax.nn.activations import ACTIVATIONS
from trace_jax.nn.attention import attend_grouped
from trace_jax.nn.blocks import StackConfig, run_blocks, stacked_blocks
from trace_jax.nn.embeddings import Embedding
from trace_jax.nn.linear import Linear
from trace_jax.nn.mlp import GatedMlp
from trace_jax.types import Features, TapSpec

# What transformers 5.24 assumes for keys a config.json leaves out. The published files call some
# of them otherwise, see _OLD_NAMES.
VISION_DEFAULTS: dict[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 25,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 72,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "image_size": [378, 378],
    "patch_size": 14,
    "num_position_embeddings": None,
}
ADAPTER_DEFAULTS: dict[str, Any] = {
    "vision_feature_layer": [24, 18],
    "hidden_size": 1152,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 72,
    "hidden_act": "silu",
    "intermediate_size": 18944,
    "text_hidden_size": 3584,
}
TEXT_DEFAULTS: dict[str, Any] = {
    "vocab_size": 151936,
    "additional_vocab_size": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": None,
    "rope_scaling": None,
    "rope_parameters": None,
}
# The ids of an image's words. transformers' class knows no id of <im_col> and <|image|>: the
# published files name the first, the tokenizer has the second.
TOP_DEFAULTS: dict[str, Any] = {
    "image_start_token_id": 151936,
    "image_end_token_id": 151937,
    "image_patch_id": 151938,
    "image_col_id": 151939,
    "low_res_image_start_token_id": 151940,
    "tie_word_embeddings": False,
}
OLD_NAMES: dict[str, dict[str, str]] = {
    "vision_config": {
        "image_default_input_size": "image_size",
        "image_patch_size": "patch_size",
        "image_num_pos": "num_position_embeddings",
    },
    "adapter_config": {"vit_layers": "vision_feature_layer"},
    "text_config": {"layer_norm_eps": "rms_norm_eps"},
}
# How far behind <low_res_im_start> the vocabulary has <|image|>, where the tokenizer puts it.
_IMAGE_AFTER_LOW_START = 1


@dataclasses.dataclass(frozen=True)
class Adapter:
    """Sizes of the pooling attention and the projector.

    Attributes:
      layers: blocks of the tower whose outputs are put side by side, in that order.
      width: of a pooled token.
      heads, head_width: of the pooling attention.
      hidden: inner width of the projector.
      activation: of its gate.
    """

    layers: tuple[int, ...]
    width: int
    heads: int
    head_width: int
    hidden: int
    activation: str


@dataclasses.dataclass(frozen=True)
class Molmo2Config:
    """Sizes.

    Attributes:
      vision: geometry of the tower's blocks, as many as are needed.
      adapter: see Adapter.
      text: geometry of the decoder.
      declared_depth: blocks that config.json speaks of; those past the needed ones are not run.
      crop, patch: sides in pixels.
      extra_vocabulary: rows of the token table that the output head has not, at its end.
      patch_token, column_token, start_token, low_start_token, end_token: ids of the words that
        stand for an image.
    """

    vision: StackConfig
    adapter: Adapter
    text: DecoderConfig
    declared_depth: int
    crop: int
    patch: int
    extra_vocabulary: int
    patch_token: int
    column_token: int
    start_token: int
    low_start_token: int
    end_token: int

    @property
    def patches(self) -> int:
        """Patches of a crop."""
        return hub_config.grid_side(self.crop, self.patch) ** 2

    @property
    def image_token(self) -> int:
        """Id of <|image|>, the placeholder of a whole image in a prompt."""
        return self.low_start_token + _IMAGE_AFTER_LOW_START


def parse(config: Mapping[str, Any]) -> Molmo2Config:
    """Sizes from a config.json of model_type "molmo2", published or written by transformers 5.

    Raises:
      UserError: another model.
      FaultsError: settings that describe no model this host can be.
    """
    hub_config.require_model_type(config, "molmo2", "The first Molmo is another architecture.")
    top = hub_config.top_level(config, TOP_DEFAULTS)
    vision = _section(config, "vision_config", VISION_DEFAULTS)
    adapter = _section(config, "adapter_config", ADAPTER_DEFAULTS)
    values = _section(config, "text_config", TEXT_DEFAULTS)
    text = text_decoder.parse(
        values,
        tied=bool(top["tie_word_embeddings"]),
        query_key_norm=True,
        qkv_bias=False,
        layout="plain",
    )
    tower = hub_config.stack(vision, causal=False, label="vision_config")
    crop = hub_config.square(vision["image_size"], "vision_config.image_size")
    patch = hub_config.square(vision["patch_size"], "vision_config.patch_size")
    layers = [int(n) for n in adapter["vision_feature_layer"]]
    faults = []
    if not layers or not all(-tower.depth <= n < tower.depth for n in layers):
        faults.append(f"vision_feature_layer {layers} must name blocks of {tower.depth}")
    if vision["num_position_embeddings"] not in (None, (crop // patch) ** 2):
        faults.append(
            f"{vision['num_position_embeddings']} positions for {(crop // patch) ** 2} patches"
        )
    if vision["head_dim"] * tower.heads != tower.width:
        faults.append("vision_config.head_dim times its heads is not hidden_size")
    for name, part in (("vision_config", vision), ("adapter_config", adapter)):
        if part["num_key_value_heads"] != part["num_attention_heads"]:
            faults.append(f"{name}: heads that share keys and values are not known here")
    if adapter["hidden_size"] != tower.width:
        faults.append(f"adapter_config.hidden_size is not the tower's {tower.width}")
    if adapter["text_hidden_size"] != text.width:
        faults.append(f"adapter_config.text_hidden_size is not the decoder's {text.width}")
    if adapter["hidden_act"] not in ACTIVATIONS:
        faults.append(f"adapter_config.hidden_act {adapter['hidden_act']!r} is unknown")
    if text.tied:
        faults.append("tie_word_embeddings: the output head has fewer rows than the token table")
    if faults:
        raise FaultsError("config.json describes no model this host can be", faults)
    layers = [n % tower.depth for n in layers]
    extra = values["additional_vocab_size"]
    return Molmo2Config(
        vision=dataclasses.replace(tower, depth=max(layers) + 1),
        adapter=Adapter(
            layers=tuple(layers),
            width=adapter["hidden_size"],
            heads=adapter["num_attention_heads"],
            head_width=adapter["head_dim"],
            hidden=adapter["intermediate_size"],
            activation=adapter["hidden_act"],
        ),
        text=dataclasses.replace(text, vocab=text.vocab + extra, head_rows=text.vocab),
        declared_depth=tower.depth,
        crop=crop,
        patch=patch,
        extra_vocabulary=extra,
        patch_token=top["image_patch_id"],
        column_token=top["image_col_id"],
        start_token=top["image_start_token_id"],
        low_start_token=top["low_res_image_start_token_id"],
        end_token=top["image_end_token_id"],
    )


def _section(config: Mapping[str, Any], name: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A section under its present names; published files call `vision_config` `vit_config`."""
    place = "vit_config" if name == "vision_config" and "vit_config" in config else name
    given = config[place] if place in config else None
    if not isinstance(given, Mapping):
        raise UserError(f"config.json has no {name}")
    known = OLD_NAMES[name]
    renamed = {known[key] if key in known else key: value for key, value in given.items()}
    return hub_config.section({name: renamed}, name, defaults)


class CropTower(nnx.Module):
    """Crops to features of their patches: outputs of several blocks side by side."""

    def __init__(self, config: Molmo2Config, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        width = config.vision.width
        self.patches = Linear(3 * config.patch**2, width, bias=True, dtype=dtype, rngs=rngs)
        self.positions = Embedding(config.patches, width, dtype=dtype, rngs=rngs)
        self.blocks = stacked_blocks(config.vision, dtype=dtype, rngs=rngs)
        self.layers = config.adapter.layers

    def embed(self, crops: Float[Array, "c p v"]) -> Float[Array, "c p d"]:
        """First hidden state."""
        x = self.patches(crops.astype(self.patches.kernel[...].dtype))
        return x + self.positions.table[...]

    def __call__(self, crops: Float[Array, "c p v"]) -> Float[Array, "c p f"]:
        """Each crop by itself; F is the width times the number of `layers`."""
        graph, stacked = nnx.split(self.blocks)
        x, done, states = self.embed(crops), 0, {}
        for layer in sorted(set(self.layers)):
            part = jax.tree.map(lambda leaf, a=done, b=layer + 1: leaf[a:b], stacked)
            x = run_blocks(nnx.merge(graph, part), x)
            done, states[layer] = layer + 1, x
        return jnp.concatenate([states[layer] for layer in self.layers], axis=-1)


class Pooling(nnx.Module):
    """Groups of patches to tokens: the mean of a group asks, its patches answer."""

    def __init__(self, config: Molmo2Config, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        c = config.adapter
        inputs, inner = config.vision.width * len(c.layers), c.heads * c.head_width
        self.query = Linear(inputs, inner, bias=True, dtype=dtype, rngs=rngs)
        self.key = Linear(inputs, inner, bias=True, dtype=dtype, rngs=rngs)
        self.value = Linear(inputs, inner, bias=True, dtype=dtype, rngs=rngs)
        self.out = Linear(inner, c.width, bias=True, dtype=dtype, rngs=rngs)
        self.heads = c.heads

    def __call__(
        self, features: Float[Array, "b q f"], places: Int[Array, "b n k"]
    ) -> Float[Array, "b n d"]:
        """Pools.

        Args:
          features: of all patches of an image's crops.
          places: which of them make each token; -1 for none. Tokens of none give some numbers.
        """
        batch, count, size = places.shape
        there = places >= 0
        flat = jnp.maximum(places, 0).reshape(batch, count * size, 1)
        group = jnp.take_along_axis(features, flat, axis=1).reshape(batch, count, size, -1)
        group = group * there[..., None].astype(group.dtype)
        number = jnp.maximum(there.sum(axis=-1, keepdims=True), 1).astype(group.dtype)
        mean = group.sum(axis=2) / number
        query = self.query(mean).reshape(batch * count, 1, self.heads, -1)
        key, value = (
            linear(group).reshape(batch * count, size, self.heads, -1)
            for linear in (self.key, self.value)
        )
        pooled = attend_grouped(query, key, value, there.reshape(batch * count, 1, size))
        return self.out(pooled.reshape(batch, count, -1))


class Molmo2Model(nnx.Module):
    """Tower, pooling, projector and decoder."""

    def __init__(self, config: Molmo2Config, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        c = config.adapter
        self.vision = CropTower(config, dtype=dtype, rngs=rngs)
        self.pooling = Pooling(config, dtype=dtype, rngs=rngs)
        self.projector = GatedMlp(
            c.width,
            c.hidden,
            activation=c.activation,
            bias=False,
            dtype=dtype,
            rngs=rngs,
            outputs=config.text.width,
        )
        self.text = TextDecoder(config.text, dtype=dtype, rngs=rngs)


class Molmo2Chat(Chat):
    """Molmo2's words around a question: images come before the user's turn, and every prompt
    begins with the token that also ends an answer.
    """

    def text(self, question: str, images: int) -> str:
        words = super().text(question, images)
        # The published template leaves the first token to the processor.
        first = self.tokenizer.bos_token or self.tokenizer.eos_token
        return words if words.startswith(first) else first + words


class Molmo2(VisionLanguageHost):
    """Host family `molmo2`; see VisionLanguageHost. In ready ids an image is one <|image|>."""

    family = "molmo2"
    taps = ("post_projector", "pre_projector")
    hub_id = "allenai/Molmo2-4B"
    added = True
    model: Molmo2Config

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Molmo2Config:
        return parse(config)

    @classmethod
    def module(cls, model: Molmo2Config, dtype: jnp.dtype, rngs: nnx.Rngs) -> Molmo2Model:
        return Molmo2Model(model, dtype=dtype, rngs=rngs)

    @classmethod
    def companions(
        cls,
        model: Molmo2Config,
        preprocessor: Mapping[str, Any] | None,
        tokenizer: Path | None,
        lower_case: bool,
    ) -> tuple[Molmo2Images, Molmo2Chat]:
        images = Molmo2Images(preprocessor, crop=model.crop, patch=model.patch)
        chat = Molmo2Chat(
            tokenizer,
            image_token=model.image_token,
            written=written_prompt,
            vocabulary=model.text.vocab,
        )
        return images, chat

    @property
    def decoder(self) -> DecoderConfig:
        return self.model.text

    def token_counts(self, grids: np.ndarray) -> np.ndarray:
        """Of grids [images, 4]: rows and columns of the small copy, and of the tiles."""
        grids = np.asarray(grids, np.int64).reshape(-1, 4)
        return grids[:, 0] * grids[:, 1] + grids[:, 2] * grids[:, 3]

    @property
    def patch_token(self) -> int:
        return self.model.patch_token

    def image_words(self, grid: np.ndarray) -> np.ndarray:
        """The words that stand for an image: the small copy's tokens, then the tiles' row by row,
        a mark after each row. As the published processor_config.json has it, the small copy's rows
        have no such marks.
        """
        c = self.model
        low_down, low_across, down, across = (int(n) for n in grid)
        row = [c.patch_token] * across + [c.column_token]
        small = [c.patch_token] * (low_down * low_across)
        return np.asarray(
            [c.low_start_token, *small, c.end_token, c.start_token, *row * down, c.end_token],
            np.int32,
        )

    def together(self, text: TextInputs) -> Bool[Array, "b l"]:
        """Image tokens and their markers, of all images of a prompt alike."""
        c = self.model
        words = (c.patch_token, c.column_token, c.start_token, c.low_start_token, c.end_token)
        return jnp.isin(jnp.asarray(text["ids"]), jnp.asarray(words)) & jnp.asarray(text["real"])

    def apply_tap(self, params: Params, inputs: ImageInputs) -> Features:
        """Images to features.

        Args:
          params: as `host.params`.
          inputs: what `preprocess` gives, see Molmo2Images.
        """
        model = self._merge(params)
        crops, places = jnp.asarray(inputs["crops"]), jnp.asarray(inputs["pooling"])
        batch, count = crops.shape[:2]
        features = model.vision(crops.reshape(-1, *crops.shape[2:]))
        features = features.reshape(batch, count * crops.shape[2], -1)
        tokens = model.pooling(features, places)
        if self.spec.tap.name == "post_projector":
            tokens = model.projector(tokens)
        mask = jnp.asarray(inputs["real"]) if "real" in inputs else None
        return Features(tokens, mask, {"grid": jnp.asarray(inputs["grid"])}, self.spec.source)

    def image_tokens(self, model: Molmo2Model, features: Features) -> ImageTokens:
        if self.spec.tap.name == "post_projector":
            return ImageTokens(features.tokens, None)
        dtype = model.pooling.out.kernel[...].dtype
        return ImageTokens(model.projector(features.tokens.astype(dtype)), None)

    def _grid(self, inputs: ImageInputs) -> np.ndarray:
        return np.asarray(inputs["grid"])

    def _tap_spec(self, tap: str) -> TapSpec:
        after = tap == "post_projector"
        return TapSpec(tap, None, self.model.text.width if after else self.model.adapter.width)


def written_prompt(question: str, images: int) -> str:
    """The chat format of Molmo2, where a folder brings no template."""
    if images == 1:
        pictures = "<|image|>"
    else:
        pictures = "".join(f"Image {number + 1}<|image|>" for number in range(images))
    return f"{pictures}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
