"""The mergers of Qwen-type towers: groups of vision tokens to tokens of the decoder's width."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from trace_jax.nn.activations import gelu_exact
from trace_jax.nn.linear import Linear
from trace_jax.nn.rotary_blocks import make_norm


class Merger(nnx.Module):
    """fc2(gelu(fc1(group of normalised tokens, side by side))).

    Args:
      width, outputs: of a token before and after.
      group: tokens in a group; they follow each other.
      norm: "layer" or "rms".
      norm_after: whether the norm comes after the grouping (DeepStack) or before.
      eps: the norm's epsilon.
      dtype: parameter dtype.
      rngs: stream "params".
    """

    def __init__(
        self,
        width: int,
        outputs: int,
        *,
        group: int,
        norm: str,
        norm_after: bool,
        eps: float,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ) -> None:
        wide = width * group
        self.norm = make_norm(norm, wide if norm_after else width, eps=eps, dtype=dtype)
        self.fc1 = Linear(wide, wide, bias=True, dtype=dtype, rngs=rngs)
        self.fc2 = Linear(wide, outputs, bias=True, dtype=dtype, rngs=rngs)
        self.wide = wide
        self.norm_after = norm_after

    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b m o"]:
        if not self.norm_after:
            x = self.norm(x)
        x = x.reshape(x.shape[0], -1, self.wide)
        if self.norm_after:
            x = self.norm(x)
        return self.fc2(gelu_exact(self.fc1(x)))
