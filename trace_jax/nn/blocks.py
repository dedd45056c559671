"""The pre-norm transformer block and the stack of equal blocks run by a scan."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
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
      layer_scale: whether each branch is scaled channel by channel before it is added (DINOv2).
    """

    width: int
    hidden: int
    depth: int
    heads: int
    activation: str
    eps: float
    causal: bool
    layer_scale: bool = False


class LayerScale(nnx.Module):
    """A learned factor for each channel (CaiT, arXiv 2103.17239); it starts at 1."""

    def __init__(self, width: int, *, dtype: jnp.dtype) -> None:
        self.scale = nnx.Param(jnp.ones((width,), dtype))

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        return x * self.scale[...]


class Block(nnx.Module):
    """x + attention(norm1(x)), then x + mlp(norm2(x)); branches may be scaled."""

    def __init__(self, config: StackConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.norm1 = LayerNorm(config.width, eps=config.eps, dtype=dtype)
        self.attention = Attention(
            config.width, heads=config.heads, causal=config.causal, dtype=dtype, rngs=rngs
        )
        self.norm2 = LayerNorm(config.width, eps=config.eps, dtype=dtype)
        self.mlp = Mlp(
            config.width, config.hidden, activation=config.activation, dtype=dtype, rngs=rngs
        )
        scaled = config.layer_scale
        self.scale1 = LayerScale(config.width, dtype=dtype) if scaled else None
        self.scale2 = LayerScale(config.width, dtype=dtype) if scaled else None

    def __call__(self, x: Float[Array, "b n d"], joined: int = 1) -> Float[Array, "b n d"]:
        """One block.

        Args:
          x: sequences.
          joined: that many neighbours on the batch axis attend as one sequence; divides B.
        """
        normal = self.norm1(x).reshape(-1, joined * x.shape[1], x.shape[2])
        change = self.attention(normal, normal).reshape(x.shape)
        x = x + (change if self.scale1 is None else self.scale1(change))
        change = self.mlp(self.norm2(x))
        return x + (change if self.scale2 is None else self.scale2(change))


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


def run_joined(
    blocks: Block, x: Float[Array, "b n d"], joined: Sequence[int]
) -> list[Float[Array, "b n d"]]:
    """What the first len(joined) of the stacked blocks put out, each with its own `joined`."""
    graphdef, stacked = nnx.split(blocks)
    states = []
    for number, count in enumerate(joined):
        block = nnx.merge(graphdef, jax.tree.map(operator.itemgetter(number), stacked))
        x = block(x, count)
        states.append(x)
    return states


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
