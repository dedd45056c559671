"""Greedy decoding with a key-value cache: one compiled loop, or a layer at a time.

The compiled loop is the way everywhere but for a model of billions of parameters in bfloat16 on a
CPU: there XLA keeps float32 copies of scanned weights, over three times the model, and a layer
compiled once and called in turn needs only its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from trace_jax.hosts.text_decoder import Cache, DecoderLayer, TextDecoder


@dataclasses.dataclass(frozen=True)
class GreedySettings:
    """What greedy decoding is compiled for.

    Attributes:
      max_new_tokens: the most tokens an answer has.
      stop: token ids that end an answer.
      pad: what stands after an answer's end.
      repetition_penalty: 1 is pure greedy decoding, the paper's protocol. Else transformers' rule:
        logits of tokens that the prompt or the answer already has are divided by it where
        positive, multiplied where negative.
    """

    max_new_tokens: int
    stop: tuple[int, ...]
    pad: int
    repetition_penalty: float = 1.0


class Prompt(NamedTuple):
    """Left-padded prompts after prefill.

    Attributes:
      last: [B, D], last layer's output at the last real token, before the final norm.
      keys, values: [depth, B, N, kv_heads, head_width].
      real: [B, N], false on padding.
      next_position: [B], the position of the first new token (all three axes).
      ids: [B, N] token ids; padding anything.
    """

    last: Float[Array, "b d"]
    keys: Float[Array, "l b n k w"]
    values: Float[Array, "l b n k w"]
    real: Bool[Array, "b n"]
    next_position: Int[Array, " b"]
    ids: Int[Array, "b n"]


class _State(NamedTuple):
    number: Array  # of tokens chosen so far
    token: Array  # [B], the newest
    done: Array  # [B]
    out: Array  # [B, max_new_tokens]
    cache: Cache
    seen: Array  # [B, V] with a penalty, else [B, 0]


def greedy(
    decoder: TextDecoder,
    prompt: Prompt,
    settings: GreedySettings,
    embed: Callable[[Int[Array, "b 1"]], Float[Array, "b 1 d"]],
) -> Int[Array, "b t"]:
    """Answers, each ended by a stop token (kept) or by the limit, then padding.

    Args:
      decoder: the host's.
      prompt: see Prompt.
      settings: static.
      embed: token ids to embeddings.
    """
    start = _begin(decoder, prompt, settings)
    length = prompt.real.shape[1]

    def go_on(state: _State) -> Array:
        return (state.number < settings.max_new_tokens) & ~state.done.all()

    def step(state: _State) -> _State:
        positions = prompt.next_position + state.number - 1
        x, cache = decoder.step(
            embed(state.token[:, None]),
            jnp.broadcast_to(positions[None, :, None], (3, positions.shape[0], 1)),
            state.cache,
            length + state.number - 1,
        )
        return _choose(decoder.logits(x[:, 0]), state, cache, settings)

    return jax.lax.while_loop(go_on, step, start).out


def greedy_by_layer(
    decoder: TextDecoder,
    prompt: Prompt,
    settings: GreedySettings,
    embed: Callable[[Int[Array, "b 1"]], Float[Array, "b 1 d"]],
) -> Int[Array, "b t"]:
    """The same answers, every layer a call of its own; not to be jitted."""
    state = _begin(decoder, prompt, settings)
    length = prompt.real.shape[1]
    graph, stacked = nnx.split(decoder.layers)
    keys, values = list(state.cache.keys), list(state.cache.values)
    filled = state.cache.filled
    while int(state.number) < settings.max_new_tokens and not bool(state.done.all()):
        slot = length + state.number - 1
        positions = prompt.next_position + state.number - 1
        angles = decoder.angles(
            jnp.broadcast_to(positions[None, :, None], (3, positions.shape[0], 1))
        )
        filled = filled.at[:, slot].set(True)
        x = embed(state.token[:, None])
        for number in range(decoder.config.depth):
            x, keys[number], values[number] = _layer_step(
                graph, stacked, number, x, angles, filled[:, None], keys[number], values[number],
                slot,
            )  # fmt: skip
        state = _choose(decoder.logits(x[:, 0]), state, state.cache, settings)
    return state.out


def prefill_by_layer(
    decoder: TextDecoder,
    x: Float[Array, "b n d"],
    positions: Int[Array, "3 b n"],
    visible: Bool[Array, "b n n"],
    streams: Float[Array, "k b n d"] | None = None,
) -> tuple[Float[Array, "b n d"], Float[Array, "l b n k w"], Float[Array, "l b n k w"]]:
    """TextDecoder.prefill, every layer a call of its own; not to be jitted."""
    angles = decoder.angles(positions)
    graph, stacked = nnx.split(decoder.layers)
    keys, values = [], []
    for number in range(decoder.config.depth):
        x, key, value = _layer_prefill(graph, stacked, number, x, angles, visible)
        if streams is not None and number < streams.shape[0]:
            x = x + streams[number]
        keys.append(key)
        values.append(value)
    return x, jnp.stack(keys), jnp.stack(values)


def unpadded(tokens: np.ndarray, settings: GreedySettings) -> list[list[int]]:
    """Rows of `greedy`'s answers without what stands after their end; a stop token is kept."""
    rows = []
    for row in np.asarray(tokens).tolist():
        ends = [i for i, token in enumerate(row) if token in settings.stop]
        rows.append(row[: ends[0] + 1] if ends else row)
    return rows


def _layer(graph: Any, stacked: Any, number: Array) -> DecoderLayer:
    pick = lambda leaf: jax.lax.dynamic_index_in_dim(leaf, number, keepdims=False)  # noqa: E731
    return nnx.merge(graph, jax.tree.map(pick, stacked))


@jax.jit(static_argnums=0)
def _layer_prefill(
    graph: Any, stacked: Any, number: Array, x: Array, angles: Array, visible: Array
) -> tuple[Array, Array, Array]:
    return _layer(graph, stacked, number).prefill(x, angles, visible)


@jax.jit(static_argnums=0, donate_argnums=(6, 7))
def _layer_step(
    graph: Any,
    stacked: Any,
    number: Array,
    x: Array,
    angles: Array,
    visible: Array,
    keys: Array,
    values: Array,
    slot: Array,
) -> tuple[Array, Array, Array]:
    x, key, value = _layer(graph, stacked, number).step(x, angles, visible, keys, values, slot)
    keys = jax.lax.dynamic_update_slice_in_dim(keys, key, slot, axis=1)
    values = jax.lax.dynamic_update_slice_in_dim(values, value, slot, axis=1)
    return x, keys, values


def _begin(decoder: TextDecoder, prompt: Prompt, settings: GreedySettings) -> _State:
    """The state after the first token, which prefill has already paid for."""
    room = ((0, 0), (0, 0), (0, settings.max_new_tokens), (0, 0), (0, 0))
    cache = Cache(
        jnp.pad(prompt.keys, room),
        jnp.pad(prompt.values, room),
        jnp.pad(prompt.real, ((0, 0), (0, settings.max_new_tokens))),
    )
    logits = decoder.logits(prompt.last)
    batch, vocab = logits.shape
    seen = jnp.zeros((batch, vocab if settings.repetition_penalty != 1.0 else 0), bool)
    if settings.repetition_penalty != 1.0:
        rows = jnp.arange(batch)[:, None]
        seen = seen.at[rows, jnp.where(prompt.real, prompt.ids, vocab)].set(True, mode="drop")
    empty = _State(
        number=jnp.zeros((), jnp.int32),
        token=jnp.full((batch,), settings.pad, jnp.int32),
        done=jnp.zeros((batch,), bool),
        out=jnp.full((batch, settings.max_new_tokens), settings.pad, jnp.int32),
        cache=cache,
        seen=seen,
    )
    return _choose(logits, empty, cache, settings)


def _choose(
    logits: Float[Array, "b v"], state: _State, cache: Cache, settings: GreedySettings
) -> _State:
    if settings.repetition_penalty != 1.0:
        penalty = settings.repetition_penalty
        damped = jnp.where(logits > 0, logits / penalty, logits * penalty)
        logits = jnp.where(state.seen, damped, logits)
    token = jnp.where(state.done, settings.pad, jnp.argmax(logits, axis=-1).astype(jnp.int32))
    seen = state.seen
    if settings.repetition_penalty != 1.0:
        seen = seen.at[jnp.arange(token.shape[0]), token].set(True)
    stops = jnp.isin(token, jnp.asarray(settings.stop, jnp.int32))
    return _State(
        number=state.number + 1,
        token=token,
        done=state.done | stops,
        out=jax.lax.dynamic_update_slice_in_dim(state.out, token[:, None], state.number, axis=1),
        cache=cache,
        seen=seen,
    )
