"""The causal text decoder that the vision-language hosts share: Qwen3 and its relatives.

Layers are equal, their parameters stacked and run by a scan. Prefill and decoding are two uses of
one layer: prefill attends within the prompt and yields the keys and values, decoding attends to the
cache that holds them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from trace_jax.errors import FaultsError
from trace_jax.nn.activations import ACTIVATIONS
from trace_jax.nn.attention import attend_grouped
from trace_jax.nn.blocks import unroll
from trace_jax.nn.embeddings import Embedding
from trace_jax.nn.linear import Linear
from trace_jax.nn.mlp import GatedMlp
from trace_jax.nn.norms import RmsNorm
from trace_jax.nn.rope import rotate, text_angles


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Geometry of a decoder.

    Attributes:
      vocab: rows of the embedding table.
      width: hidden size D.
      hidden: inner width of the gated MLP.
      depth: layers.
      heads, kv_heads: query heads, and the key-value heads that groups of them share.
      head_width: width of a head; heads * head_width need not be D.
      eps: RMSNorm epsilon.
      activation: of the gate, a key of nn.activations.ACTIVATIONS.
      query_key_norm: whether queries and keys are normalised per head before they are turned.
      qkv_bias: whether the query, key and value maps have biases.
      tied: whether the output head is the embedding table.
      theta: base of the rotary frequencies.
      sections, layout: see nn.rope.section_axes.
      head_rows: rows of an untied output head; the vocabulary's where not given (Molmo2's table
        has rows for special tokens that its head cannot produce).
    """

    vocab: int
    width: int
    hidden: int
    depth: int
    heads: int
    kv_heads: int
    head_width: int
    eps: float
    activation: str
    query_key_norm: bool
    qkv_bias: bool
    tied: bool
    theta: float
    sections: tuple[int, ...]
    layout: str
    head_rows: int | None = None


class Cache(NamedTuple):
    """Keys (turned) and values of every layer.

    Attributes:
      keys, values: [depth, B, slots, kv_heads, head_width].
      filled: [B, slots], which slots a query may look at.
    """

    keys: Float[Array, "l b s k w"]
    values: Float[Array, "l b s k w"]
    filled: Bool[Array, "b s"]


class DecoderAttention(nnx.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: DecoderConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        inner = config.heads * config.head_width
        shared = config.kv_heads * config.head_width
        bias = config.qkv_bias
        self.query = Linear(config.width, inner, bias=bias, dtype=dtype, rngs=rngs)
        self.key = Linear(config.width, shared, bias=bias, dtype=dtype, rngs=rngs)
        self.value = Linear(config.width, shared, bias=bias, dtype=dtype, rngs=rngs)
        self.out = Linear(inner, config.width, bias=False, dtype=dtype, rngs=rngs)
        normed, eps = config.query_key_norm, config.eps
        self.query_norm = RmsNorm(config.head_width, eps=eps, dtype=dtype) if normed else None
        self.key_norm = RmsNorm(config.head_width, eps=eps, dtype=dtype) if normed else None
        self.head_width = config.head_width

    def project(
        self, x: Float[Array, "b n d"], angles: Float[Array, "b n half"]
    ) -> tuple[Float[Array, "b n h w"], Float[Array, "b n k w"], Float[Array, "b n k w"]]:
        """Queries and keys, normalised and turned, and values, split into heads."""
        query, key, value = (
            linear(x).reshape(*x.shape[:-1], -1, self.head_width)
            for linear in (self.query, self.key, self.value)
        )
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        return rotate(query, angles, x.dtype), rotate(key, angles, x.dtype), value

    def attend(
        self,
        query: Float[Array, "b n h w"],
        key: Float[Array, "b s k w"],
        value: Float[Array, "b s k w"],
        visible: Bool[Array, "b n s"],
    ) -> Float[Array, "b n d"]:
        """What each query finds among the visible keys, through the output map."""
        return self.out(attend_grouped(query, key, value, visible))


class DecoderLayer(nnx.Module):
    """x + attention(norm1(x)), then x + mlp(norm2(x)), with RMSNorm and a gated MLP."""

    def __init__(self, config: DecoderConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.norm1 = RmsNorm(config.width, eps=config.eps, dtype=dtype)
        self.attention = DecoderAttention(config, dtype=dtype, rngs=rngs)
        self.norm2 = RmsNorm(config.width, eps=config.eps, dtype=dtype)
        self.mlp = GatedMlp(
            config.width,
            config.hidden,
            activation=config.activation,
            bias=False,
            dtype=dtype,
            rngs=rngs,
        )

    def prefill(
        self,
        x: Float[Array, "b n d"],
        angles: Float[Array, "b n half"],
        visible: Bool[Array, "b n n"],
    ) -> tuple[Float[Array, "b n d"], Float[Array, "b n k w"], Float[Array, "b n k w"]]:
        """The layer over a whole prompt, and its keys and values."""
        query, key, value = self.attention.project(self.norm1(x), angles)
        x = x + self.attention.attend(query, key, value, visible)
        return x + self.mlp(self.norm2(x)), key, value

    def step(
        self,
        x: Float[Array, "b 1 d"],
        angles: Float[Array, "b 1 half"],
        visible: Bool[Array, "b 1 s"],
        keys: Float[Array, "b s k w"],
        values: Float[Array, "b s k w"],
        slot: Int[Array, ""],
    ) -> tuple[Float[Array, "b 1 d"], Float[Array, "b 1 k w"], Float[Array, "b 1 k w"]]:
        """The layer over one new token, whose own key and value belong into `slot`."""
        query, key, value = self.attention.project(self.norm1(x), angles)
        keys = jax.lax.dynamic_update_slice_in_dim(keys, key, slot, axis=1)
        values = jax.lax.dynamic_update_slice_in_dim(values, value, slot, axis=1)
        x = x + self.attention.attend(query, keys, values, visible)
        return x + self.mlp(self.norm2(x)), key, value


class TextDecoder(nnx.Module):
    """Token table, stacked layers, final norm, output head."""

    def __init__(self, config: DecoderConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=config.depth)
        @nnx.vmap
        def layers(rngs: nnx.Rngs) -> DecoderLayer:
            return DecoderLayer(config, dtype=dtype, rngs=rngs)

        self.tokens = Embedding(config.vocab, config.width, dtype=dtype, rngs=rngs)
        self.layers = layers(rngs)
        self.norm = RmsNorm(config.width, eps=config.eps, dtype=dtype)
        rows = config.head_rows or config.vocab
        self.head = (
            None if config.tied else Linear(config.width, rows, bias=False, dtype=dtype, rngs=rngs)
        )
        self.config = config

    def angles(self, positions: Int[Array, "3 b n"]) -> Float[Array, "b n half"]:
        """Rotary angles at positions (time, row, column)."""
        c = self.config
        return text_angles(positions, c.head_width, c.theta, c.sections, c.layout)

    def logits(self, x: Float[Array, "*b d"]) -> Float[Array, "*b v"]:
        """Final norm and output head; float32, as greedy decoding compares them."""
        x = self.norm(x)
        if self.head is not None:
            return self.head(x).astype(jnp.float32)
        flat = x.reshape(-1, x.shape[-1])
        rows = jax.lax.dot_general(flat, self.tokens.table[...], (((1,), (1,)), ((), ())))
        return rows.reshape(*x.shape[:-1], -1).astype(jnp.float32)

    def prefill(
        self,
        x: Float[Array, "b n d"],
        positions: Int[Array, "3 b n"],
        visible: Bool[Array, "b n n"],
        streams: Float[Array, "k b n d"] | None = None,
    ) -> tuple[Float[Array, "b n d"], Float[Array, "l b n k w"], Float[Array, "l b n k w"]]:
        """All layers over embedded prompts.

        Args:
          x: embeddings, image features already in their places.
          positions: see `angles`.
          visible: [b, i, j] whether token i may look at token j, see `causal`.
          streams: what is added after layer 0, 1, ... (Qwen3-VL's DeepStack), zero off the image.

        Returns:
          Last layer's output before the final norm, and every layer's keys and values.
        """
        angles = self.angles(positions)
        graph, stacked = nnx.split(self.layers)

        def body(x: Array, given: tuple[Any, Array]) -> tuple[Array, tuple[Array, Array]]:
            params, number = given
            x, key, value = nnx.merge(graph, params).prefill(x, angles, visible)
            return _add_stream(x, streams, number), (key, value)

        depth = self.config.depth
        x, (keys, values) = jax.lax.scan(
            body, x, (stacked, jnp.arange(depth)), unroll=unroll(depth)
        )
        return x, keys, values

    def step(
        self, x: Float[Array, "b 1 d"], positions: Int[Array, "3 b 1"], cache: Cache, slot: Array
    ) -> tuple[Float[Array, "b 1 d"], Cache]:
        """All layers over one new token each.

        Args:
          x: embeddings of the new tokens.
          positions: see `angles`.
          cache: of everything before.
          slot: where the new keys and values go.

        Returns:
          Last layer's output before the final norm, and the longer cache.
        """
        angles = self.angles(positions)
        filled = jax.lax.dynamic_update_slice_in_dim(
            cache.filled, jnp.ones((x.shape[0], 1), bool), slot, axis=1
        )
        graph, stacked = nnx.split(self.layers)

        # The cache rides in the carry, where XLA updates it in place.
        def body(
            carry: tuple[Array, Array, Array], given: tuple[Any, Array]
        ) -> tuple[tuple[Array, Array, Array], None]:
            x, keys, values = carry
            params, number = given
            layer: DecoderLayer = nnx.merge(graph, params)
            x, key, value = layer.step(
                x,
                angles,
                filled[:, None],
                jax.lax.dynamic_index_in_dim(keys, number, keepdims=False),
                jax.lax.dynamic_index_in_dim(values, number, keepdims=False),
                slot,
            )
            start = (number, 0, slot, 0, 0)
            keys = jax.lax.dynamic_update_slice(keys, key[None], start)
            values = jax.lax.dynamic_update_slice(values, value[None], start)
            return (x, keys, values), None

        carry, _ = jax.lax.scan(
            body, (x, cache.keys, cache.values), (stacked, jnp.arange(self.config.depth))
        )
        x, keys, values = carry
        return x, Cache(keys, values, filled)


def causal(
    real: Bool[Array, "b n"], together: Bool[Array, "b n"] | None = None
) -> Bool[Array, "b n n"]:
    """Which tokens of a left-padded prompt may look at which.

    Args:
      real: false on padding.
      together: tokens that all see each other besides (Molmo2's image tokens).

    Returns:
      [b, i, j]. Padding sees itself, so that its softmax is of something.
    """
    length = real.shape[1]
    seen = jnp.tril(jnp.ones((length, length), bool))[None]
    if together is not None:
        seen = seen | (together[:, :, None] & together[:, None, :])
    return (seen & real[:, None, :]) | jnp.eye(length, dtype=bool)[None]


def _add_stream(x: Array, streams: Array | None, number: Array) -> Array:
    if streams is None:
        return x
    count = streams.shape[0]
    stream = jax.lax.dynamic_index_in_dim(streams, jnp.minimum(number, count - 1), keepdims=False)
    return jnp.where(number < count, x + stream, x)


# transformers' class defaults that a config.json may leave out.
_DEFAULTS: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "head_dim": None,
    "rope_theta": None,
    "rope_parameters": None,
    "rope_scaling": None,
}
_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads",
)  # fmt: skip


def parse(
    text: Mapping[str, Any], *, tied: bool, query_key_norm: bool, qkv_bias: bool, layout: str
) -> DecoderConfig:
    """A decoder's geometry from a config's text section.

    Args:
      text: the section; rotary settings in the old form (rope_theta, rope_scaling) or the new
        (rope_parameters).
      tied, query_key_norm, qkv_bias, layout: what the family fixes, see DecoderConfig.

    Raises:
      FaultsError: missing or impossible settings.
    """
    values = {key: text[key] if key in text else default for key, default in _DEFAULTS.items()}
    faults = [
        f"text_config.{key} is {text[key] if key in text else None!r}, not a positive integer"
        for key in _SIZES
        if key not in text or not isinstance(text[key], int) or text[key] < 1
    ]
    if values["hidden_act"] not in ACTIVATIONS:
        faults.append(f"text_config.hidden_act is {values['hidden_act']!r}, unknown")
    rope = {**(values["rope_scaling"] or {}), **(values["rope_parameters"] or {})}
    theta = rope["rope_theta"] if "rope_theta" in rope else values["rope_theta"]
    if not isinstance(theta, int | float) or theta <= 0:
        faults.append(f"text_config.rope_theta is {theta!r}, not a positive number")
    kinds = {rope[key] for key in ("rope_type", "type") if key in rope}
    if kinds - {"default", "mrope", None}:
        faults.append(
            f"text_config's rope_type is {sorted(map(str, kinds))}, only default is known"
        )
    sections = tuple(rope["mrope_section"]) if "mrope_section" in rope else ()
    if not faults:
        heads, shared = text["num_attention_heads"], text["num_key_value_heads"]
        head_width = values["head_dim"] or text["hidden_size"] // heads
        if heads % shared:
            faults.append(f"{heads} query heads cannot share {shared} key-value heads evenly")
        if layout != "plain" and sum(sections) != head_width // 2:
            faults.append(
                f"text_config's mrope_section is {list(sections)}, must have three numbers that "
                f"sum to {head_width // 2}"
            )
    if faults:
        raise FaultsError("config.json describes no text decoder this host can be", faults)
    return DecoderConfig(
        vocab=text["vocab_size"],
        width=text["hidden_size"],
        hidden=text["intermediate_size"],
        depth=text["num_hidden_layers"],
        heads=heads,
        kv_heads=shared,
        head_width=head_width,
        eps=float(values["rms_norm_eps"]),
        activation=values["hidden_act"],
        query_key_norm=query_key_norm,
        qkv_bias=qkv_bias,
        tied=tied,
        theta=float(theta),
        sections=() if layout == "plain" else sections,
        layout=layout,
    )
