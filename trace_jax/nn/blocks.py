"""The pre-norm transformer block and the stack of equal blocks run by a scan."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from trace_jax.nn.attention import Attention
from trace_jax.nn.mlp import Mlp
from trace_jax.nn.norms import LayerNorm

# Stacks up to this depth are unrolled inside the scan: the backward pass of a rolled one copies
# every saved activation, which made a training step of the nano hosts (6 blocks of width 192) 1.4
# to 2 times slower on a CPU. Deep stacks stay rolled: one compiled body.
_UNROLLED_DEPTH = 6


@dataclasses.dataclass(frozen=True)
class StackConfig:
    """Geometry of a stack of blocks.

    Attributes:
      width: D.
      hidden: inner width of the MLP.
      depth: number of blocks.
      heads: attention heads.
      activation: a key of nn.activations.ACTIVATIONS.
      eps: LayerNorm epsilon.
      causal: whether attention is causal.
    """

    width: int
    hidden: int
    depth: int
    heads: int
    activation: str
    eps: float
    causal: bool


class Block(nnx.Module):
    """x + attention(norm1(x)), then x + mlp(norm2(x))."""

    def __init__(self, config: StackConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.norm1 = LayerNorm(config.width, eps=config.eps, dtype=dtype)
        self.attention = Attention(
            config.width, heads=config.heads, causal=config.causal, dtype=dtype, rngs=rngs
        )
        self.norm2 = LayerNorm(config.width, eps=config.eps, dtype=dtype)
        self.mlp = Mlp(
            config.width, config.hidden, activation=config.activation, dtype=dtype, rngs=rngs
        )

    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        normal = self.norm1(x)
        x = x + self.attention(normal, normal)
        return x + self.mlp(self.norm2(x))


def stacked_blocks(config: StackConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> Block:
    """One Block whose every parameter has a leading axis of `config.depth`."""

    @nnx.split_rngs(splits=config.depth)
    @nnx.vmap
    def make(rngs: nnx.Rngs) -> Block:
        return Block(config, dtype=dtype, rngs=rngs)

    return make(rngs)


def run_blocks(blocks: Block, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
    """Applies stacked blocks in order: one compiled body whatever the depth."""
    return _scan(blocks, x, collect=False)[0]


def collect_blocks(blocks: Block, x: Float[Array, "b n d"]) -> Float[Array, "l b n d"]:
    """What every one of the stacked blocks puts out, for parity tests block by block."""
    return _scan(blocks, x, collect=True)[1]


def unroll(depth: int) -> int:
    """How far a scan over `depth` blocks is unrolled; see _UNROLLED_DEPTH."""
    return depth if depth <= _UNROLLED_DEPTH else 1


def _scan(blocks: Block, x: Array, *, collect: bool) -> tuple[Array, Any]:
    graphdef, stacked = nnx.split(blocks)

    def step(x: Array, params: nnx.State) -> tuple[Array, Any]:
        x = nnx.merge(graphdef, params)(x)
        return x, x if collect else None

    depth = jax.tree.leaves(stacked)[0].shape[0]
    return jax.lax.scan(step, x, stacked, unroll=unroll(depth))
