"""Vision blocks whose queries and keys are turned by rotary positions, stacked and scanned."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from trace_jax.nn.attention import attend_grouped
from trace_jax.nn.blocks import unroll
from trace_jax.nn.linear import Linear
from trace_jax.nn.mlp import GatedMlp, Mlp
from trace_jax.nn.norms import LayerNorm, RmsNorm
from trace_jax.nn.rope import rotate


@dataclasses.dataclass(frozen=True)
class RotaryStackConfig:
    """Geometry of a stack of blocks.

    Attributes:
      width, hidden, depth, heads, activation, eps: as in nn.blocks.StackConfig.
      norm: "layer" or "rms".
      gated: whether the MLP is gated (three maps) or plain (two); its maps have biases.
    """

    width: int
    hidden: int
    depth: int
    heads: int
    activation: str
    eps: float
    norm: str
    gated: bool


def make_norm(kind: str, width: int, *, eps: float, dtype: jnp.dtype) -> LayerNorm | RmsNorm:
    """A LayerNorm for "layer", an RMSNorm for "rms"."""
    return (LayerNorm if kind == "layer" else RmsNorm)(width, eps=eps, dtype=dtype)


class RotaryAttention(nnx.Module):
    """Self-attention with biased maps; turned in float32, as the references do."""

    def __init__(self, width: int, *, heads: int, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.query = Linear(width, width, bias=True, dtype=dtype, rngs=rngs)
        self.key = Linear(width, width, bias=True, dtype=dtype, rngs=rngs)
        self.value = Linear(width, width, bias=True, dtype=dtype, rngs=rngs)
        self.out = Linear(width, width, bias=True, dtype=dtype, rngs=rngs)
        self.heads = heads

    def __call__(
        self,
        x: Float[Array, "b n d"],
        angles: Float[Array, "b n half"],
        visible: Bool[Array, "b n n"] | None,
    ) -> Float[Array, "b n d"]:
        query, key, value = (
            linear(x).reshape(*x.shape[:-1], self.heads, -1)
            for linear in (self.query, self.key, self.value)
        )
        wide = jnp.dtype("float32")
        query, key = rotate(query, angles, wide), rotate(key, angles, wide)
        return self.out(attend_grouped(query, key, value, visible))


class RotaryBlock(nnx.Module):
    """x + attention(norm1(x)), then x + mlp(norm2(x))."""

    def __init__(self, config: RotaryStackConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        c = config
        self.norm1 = make_norm(c.norm, c.width, eps=c.eps, dtype=dtype)
        self.attention = RotaryAttention(c.width, heads=c.heads, dtype=dtype, rngs=rngs)
        self.norm2 = make_norm(c.norm, c.width, eps=c.eps, dtype=dtype)
        self.mlp = (
            GatedMlp(c.width, c.hidden, activation=c.activation, bias=True, dtype=dtype, rngs=rngs)
            if c.gated
            else Mlp(c.width, c.hidden, activation=c.activation, dtype=dtype, rngs=rngs)
        )

    def __call__(
        self,
        x: Float[Array, "b n d"],
        angles: Float[Array, "b n half"],
        visible: Bool[Array, "b n n"] | None,
    ) -> Float[Array, "b n d"]:
        x = x + self.attention(self.norm1(x), angles, visible)
        return x + self.mlp(self.norm2(x))


def stacked_rotary_blocks(
    config: RotaryStackConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs
) -> RotaryBlock:
    """One block whose every parameter has a leading axis of `config.depth`."""

    @nnx.split_rngs(splits=config.depth)
    @nnx.vmap
    def make(rngs: nnx.Rngs) -> RotaryBlock:
        return RotaryBlock(config, dtype=dtype, rngs=rngs)

    return make(rngs)


class Windows(NamedTuple):
    """How most blocks of a windowed tower attend: among neighbours that follow each other.

    Attributes:
      size: tokens of a window; N is a multiple of it.
      visible: which token may look at which in each window [B * N / size, size, size], or None.
      whole: numbers of the blocks that attend over all N instead.
    """

    size: int
    visible: Bool[Array, "w s s"] | None
    whole: tuple[int, ...]


def run_rotary_blocks(
    blocks: RotaryBlock,
    x: Float[Array, "b n d"],
    angles: Float[Array, "b n half"],
    visible: Bool[Array, "b n n"] | None,
    kept: Sequence[int] = (),
    windows: Windows | None = None,
) -> tuple[Float[Array, "b n d"], Float[Array, "k b n d"]]:
    """Applies stacked blocks in order.

    Args:
      blocks: see `stacked_rotary_blocks`.
      x: tokens.
      angles: see nn.rope.axial_angles.
      visible: which token may look at which, or None.
      kept: numbers of blocks whose output is wanted besides.
      windows: see Windows, or None: every block attends over all tokens.

    Returns:
      The last block's output, and the outputs of the `kept` blocks in that order.
    """
    graphdef, stacked = nnx.split(blocks)
    depth = jax.tree.leaves(stacked)[0].shape[0]
    # One place a wanted output, and one more where all the others go: a scan that stacked every
    # block's output would hold depth of them.
    places = [kept.index(number) if number in kept else len(kept) for number in range(depth)]
    store = jnp.zeros((len(kept) + 1, *x.shape), x.dtype) if kept else jnp.zeros((0, *x.shape))

    whole = [windows is None or number in windows.whole for number in range(depth)]

    def over_all(params: Any, x: Array) -> Array:
        return nnx.merge(graphdef, params)(x, angles, visible)

    def in_windows(windows: Windows, params: Any, x: Array) -> Array:
        split = lambda y: y.reshape(-1, windows.size, y.shape[-1])  # noqa: E731
        inside = nnx.merge(graphdef, params)(split(x), split(angles), windows.visible)
        return inside.reshape(x.shape)

    def step(carry: tuple[Array, Array], given: tuple[Any, Array, Array]) -> tuple[Any, None]:
        x, store = carry
        params, place, everywhere = given
        if windows is None:
            x = over_all(params, x)
        else:
            inside = functools.partial(in_windows, windows)
            x = jax.lax.cond(everywhere, over_all, inside, params, x)
        if kept:
            store = jax.lax.dynamic_update_index_in_dim(store, x, place, axis=0)
        return (x, store), None

    (x, store), _ = jax.lax.scan(
        step, (x, store), (stacked, jnp.asarray(places), jnp.asarray(whole)), unroll=unroll(depth)
    )
    return x, store[: len(kept)].astype(x.dtype)
