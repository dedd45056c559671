"""Qwen3-VL: a vision tower with DeepStack, a merger, the Qwen3 decoder.

Taps: `post_merger`, [B, 196, 2560] for 448x448 at 4B (the paper's), `pre_merger`, the tower's
output in merge-block order [B, 784, 1024], and `deepstack_0`..., the streams that enter after the
decoder's first layers. Whatever the tap, the other parts ride along in `carry`.
"""

from __future__ import annotations

import copy
import dataclasses
import math
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
from trace_jax.hosts.vision_language import ImageTokens, VisionLanguageHost
from trace_jax.nn.embeddings import Embedding
from trace_jax.nn.linear import Linear
from trace_jax.nn.mergers import Merger
from trace_jax.nn.rope import axial_angles
from trace_jax.nn.rotary_blocks import RotaryStackConfig, run_rotary_blocks, stacked_rotary_blocks
from trace_jax.types import Features

# What transformers 5.24 assumes for keys a config.json leaves out.
VISION_DEFAULTS: dict[str, Any] = {
    "depth": 27,
    "hidden_size": 1152,
    "hidden_act": "gelu_pytorch_tanh",
    "intermediate_size": 4304,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 3584,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
}
TOP_DEFAULTS: dict[str, Any] = {"image_token_id": 151655, "tie_word_embeddings": False}
# Qwen/Qwen3-VL-4B-Instruct's preprocessor_config.json; areas in pixels.
IMAGE_DEFAULTS: dict[str, Any] = {
    "do_resize": True,
    "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216},
    "resample": 3,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
# The tower's epsilon and rotary base are no settings in transformers.
_EPS, _THETA = 1e-6, 10_000.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen3VLConfig(MergingConfig):
    """Sizes, those of MergingConfig and:

    Attributes:
      positions: side of the learned position grid.
      deepstack: blocks after which a stream leaves the tower.
    """

    positions: int
    deepstack: tuple[int, ...]


def parse(config: Mapping[str, Any]) -> Qwen3VLConfig:
    """Sizes from a config.json of model_type "qwen3_vl".

    Raises:
      UserError: another model.
      FaultsError: settings that describe no model this host can be.
    """
    hub_config.require_model_type(config, "qwen3_vl", "The MoE variants are another architecture.")
    top = hub_config.top_level(config, TOP_DEFAULTS)
    vision = hub_config.section(config, "vision_config", VISION_DEFAULTS)
    if "text_config" not in config or not isinstance(config["text_config"], Mapping):
        raise UserError("config.json has no text_config")
    text = text_decoder.parse(
        config["text_config"],
        tied=bool(top["tie_word_embeddings"]),
        query_key_norm=True,
        qkv_bias=False,
        layout="interleaved",
    )
    side = math.isqrt(vision["num_position_embeddings"])
    deepstack = tuple(int(n) for n in vision["deepstack_visual_indexes"])
    faults = tower_faults(vision, text, width="hidden_size", out="out_hidden_size")
    if side * side != vision["num_position_embeddings"]:
        faults.append(f"num_position_embeddings {vision['num_position_embeddings']} is no square")
    if sorted(set(deepstack)) != list(deepstack) or any(n >= vision["depth"] for n in deepstack):
        faults.append(f"deepstack_visual_indexes {list(deepstack)} must rise and stay below depth")
    if len(deepstack) > text.depth:
        faults.append(f"{len(deepstack)} deepstack streams for {text.depth} decoder layers")
    if faults:
        raise FaultsError("config.json describes no model this host can be", faults)
    return Qwen3VLConfig(
        vision=RotaryStackConfig(
            width=vision["hidden_size"],
            hidden=vision["intermediate_size"],
            depth=vision["depth"],
            heads=vision["num_heads"],
            activation=vision["hidden_act"],
            eps=_EPS,
            norm="layer",
            gated=False,
        ),
        text=text,
        patch=hub_config.square(vision["patch_size"], "vision_config.patch_size"),
        temporal=hub_config.square(
            vision["temporal_patch_size"], "vision_config.temporal_patch_size"
        ),
        merge=vision["spatial_merge_size"],
        positions=side,
        deepstack=deepstack,
        image_token=top["image_token_id"],
    )


def _stacked_mergers(config: Qwen3VLConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> Merger:
    @nnx.split_rngs(splits=len(config.deepstack))
    @nnx.vmap
    def make(rngs: nnx.Rngs) -> Merger:
        return Merger(
            config.vision.width,
            config.text.width,
            group=config.merge**2,
            norm="layer",
            norm_after=True,
            eps=_EPS,
            dtype=dtype,
            rngs=rngs,
        )

    return make(rngs)


class VisionTower(nnx.Module):
    """Patches to tokens before the merger, and the outputs of the DeepStack blocks."""

    def __init__(self, config: Qwen3VLConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        width, out = config.vision.width, config.text.width
        group = config.merge**2
        self.patches = Linear(config.patch_values, width, bias=True, dtype=dtype, rngs=rngs)
        self.positions = Embedding(config.positions**2, width, dtype=dtype, rngs=rngs)
        self.blocks = stacked_rotary_blocks(config.vision, dtype=dtype, rngs=rngs)
        self.merger = Merger(
            width, out, group=group, norm="layer", norm_after=False, eps=_EPS, dtype=dtype,
            rngs=rngs,
        )  # fmt: skip
        self.deepstack = (
            _stacked_mergers(config, dtype=dtype, rngs=rngs) if config.deepstack else None
        )
        self.config = config

    def streams(self, states: Float[Array, "k b p d"]) -> Float[Array, "k b n o"]:
        """What leaves the tower after the DeepStack blocks, each by its own merger."""
        if self.deepstack is None:
            return states
        graph, stacked = nnx.split(self.deepstack)
        return jax.vmap(lambda params, x: nnx.merge(graph, params)(x))(stacked, states)

    def embed(
        self,
        patches: Float[Array, "b p v"],
        rows: Int[Array, "b p"],
        columns: Int[Array, "b p"],
        grid: Int[Array, "b 2"],
    ) -> Float[Array, "b p d"]:
        """First hidden state: patches and interpolated learned positions."""
        x = self.patches(patches)
        return x + self.interpolated(rows, columns, grid).astype(x.dtype)

    def interpolated(
        self, rows: Int[Array, "b p"], columns: Int[Array, "b p"], grid: Int[Array, "b 2"]
    ) -> Float[Array, "b p d"]:
        """The learned grid stretched over each image, corner on corner, bilinearly."""
        side = self.config.positions
        table = self.positions.table[...]
        total = jnp.zeros((), jnp.float32)
        (top, down), (left, right) = (
            _corners(place, grid[:, axis : axis + 1], side)
            for axis, place in enumerate((rows, columns))
        )
        for row, row_weight in (top, down):
            for column, column_weight in (left, right):
                total = total + table[row * side + column] * (row_weight * column_weight)[..., None]
        return total

    def run(
        self,
        x: Float[Array, "b p d"],
        rows: Int[Array, "b p"],
        columns: Int[Array, "b p"],
        real: Bool[Array, "b p"] | None,
        kept: tuple[int, ...],
    ) -> tuple[Float[Array, "b p d"], Float[Array, "k b p d"]]:
        """All blocks; also the outputs of the `kept` ones."""
        c = self.config
        angles = axial_angles(rows, columns, c.vision.width // c.vision.heads, _THETA)
        visible = None
        if real is not None:
            size = x.shape[1]
            visible = jnp.broadcast_to(real[:, None, :], (x.shape[0], size, size))
        return run_rotary_blocks(self.blocks, x, angles, visible, kept)


def _corners(
    place: Int[Array, "b p"], size: Int[Array, "b 1"], side: int
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """The two places on one axis of the learned grid around a patch, each with its weight."""
    at = place.astype(jnp.float32) * (side - 1) / jnp.maximum(size - 1, 1)
    low = jnp.floor(at)
    first = low.astype(jnp.int32)
    share = at - low
    return (first, 1 - share), (jnp.minimum(first + 1, side - 1), share)


class Qwen3VLModel(nnx.Module):
    """Tower and decoder."""

    def __init__(self, config: Qwen3VLConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.vision = VisionTower(config, dtype=dtype, rngs=rngs)
        self.text = TextDecoder(config.text, dtype=dtype, rngs=rngs)


class Qwen3VL(MergingHost):
    """Host family `qwen3_vl`; see VisionLanguageHost and MergingHost.

    `deepstack` is what becomes of the streams: "kept", as the tap made them (of a degraded image
    they are degraded), "recovered", the same but made by recoverers of their own (`with_stream`),
    or "dropped", not added at all. Table 9 compares kept and recovered.
    """

    family = "qwen3_vl"
    taps = ("post_merger", "pre_merger", "deepstack_0", "deepstack_1", "deepstack_2")
    hub_id = "Qwen/Qwen3-VL-4B-Instruct"
    spatial = True
    image_defaults = IMAGE_DEFAULTS
    model: Qwen3VLConfig

    def __init__(self, *, deepstack: str = "kept", **given: Any) -> None:
        if deepstack not in ("kept", "recovered", "dropped"):
            raise UserError(f"deepstack={deepstack!r}: known are kept, recovered, dropped")
        self.deepstack = deepstack
        super().__init__(**given)

    @staticmethod
    def written_prompt(question: str, images: int) -> str:
        pictures = "<|vision_start|><|image_pad|><|vision_end|>" * images
        return f"<|im_start|>user\n{pictures}{question}<|im_end|>\n<|im_start|>assistant\n"

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Qwen3VLConfig:
        return parse(config)

    @classmethod
    def module(cls, model: Qwen3VLConfig, dtype: jnp.dtype, rngs: nnx.Rngs) -> Qwen3VLModel:
        return Qwen3VLModel(model, dtype=dtype, rngs=rngs)

    def apply_tap(self, params: Params, inputs: ImageInputs) -> Features:
        """Images to features.

        Args:
          params: as `host.params`.
          inputs: what `preprocess` gives: patches [B, P, 3*T*p*p], rows, columns [B, P] of every
            patch, grid [B, 2] of patches, and real [B, P] where some images have fewer.
        """
        tower = self._merge(params).vision
        pixels = jnp.asarray(inputs["patches"]).astype(tower.patches.kernel[...].dtype)
        rows, columns = jnp.asarray(inputs["rows"]), jnp.asarray(inputs["columns"])
        grid = jnp.asarray(inputs["grid"])
        real = jnp.asarray(inputs["real"]) if "real" in inputs else None
        x = tower.embed(pixels, rows, columns, grid)
        x, states = tower.run(x, rows, columns, real, self.model.deepstack)
        streams = tower.streams(states)
        whole = {
            "pre_merger": x,
            "post_merger": tower.merger(x),
            **{f"deepstack_{k}": stream for k, stream in enumerate(streams)},
        }
        place = self.spec.tap.name
        tokens = whole.pop(place)
        # The merged tokens follow from those before the merger, so only one of the two is kept.
        whole.pop("post_merger" if place == "pre_merger" else "pre_merger")
        mask = None
        if real is not None:
            mask = real if place == "pre_merger" else real[:, :: self.model.merge**2]
        carry = {**whole, "grid": grid // self.model.merge}
        return Features(tokens, mask, carry, self.spec.source)

    def image_tokens(self, model: Qwen3VLModel, features: Features) -> ImageTokens:
        parts = {**features.carry, self.spec.tap.name: features.tokens}
        if "pre_merger" in parts:
            parts["post_merger"] = model.vision.merger(
                parts["pre_merger"].astype(model.vision.patches.kernel[...].dtype)
            )
        streams = [parts[f"deepstack_{k}"] for k in range(len(self.model.deepstack))]
        if self.deepstack == "dropped" or not streams:
            return ImageTokens(parts["post_merger"], None)
        return ImageTokens(parts["post_merger"], jnp.stack(streams, axis=1))

    def apply_blocks(self, params: Params, inputs: ImageInputs) -> Float[Array, "l b p d"]:
        """Output of every block of the tower, for parity tests."""
        tower = self._merge(params).vision
        rows, columns = jnp.asarray(inputs["rows"]), jnp.asarray(inputs["columns"])
        real = jnp.asarray(inputs["real"]) if "real" in inputs else None
        x = tower.embed(jnp.asarray(inputs["patches"]), rows, columns, jnp.asarray(inputs["grid"]))
        return tower.run(x, rows, columns, real, tuple(range(self.model.vision.depth)))[1]

    def with_deepstack(self, deepstack: str) -> Qwen3VL:
        """The same host with another treatment of the streams; see the class."""
        other = copy.copy(self)
        other.deepstack = deepstack
        # The verbs close over the treatment: compiled anew.
        VisionLanguageHost.compile(other)
        return other

    def stream(self, features: Features, number: int) -> Features:
        """A DeepStack stream of these features as features of its own tap, for its recoverer."""
        name = f"deepstack_{number}"
        source = dataclasses.replace(features.source, tap=name)
        return Features(features.carry[name], self._stream_mask(features), None, source)

    def with_stream(self, features: Features, number: int, stream: Features) -> Features:
        """The features with one DeepStack stream exchanged."""
        carry = {**features.carry, f"deepstack_{number}": stream.tokens}
        return features.replace(carry=carry)

    def _stream_mask(self, features: Features) -> Array | None:
        if features.mask is None or self.spec.tap.name != "pre_merger":
            return features.mask
        return features.mask[:, :: self.model.merge**2]
