"""The perceptrons of a transformer block: two layers, or gated."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from trace_jax.nn.activations import ACTIVATIONS
from trace_jax.nn.linear import Linear


class Mlp(nnx.Module):
    """fc2(activation(fc1(x))), both with bias.

    Args:
      width, hidden: outer and inner widths.
      activation: a key of ACTIVATIONS.
      dtype: parameter dtype.
      rngs: stream "params".
    """

    def __init__(
        self, width: int, hidden: int, *, activation: str, dtype: jnp.dtype, rngs: nnx.Rngs
    ) -> None:
        self.fc1 = Linear(width, hidden, bias=True, dtype=dtype, rngs=rngs)
        self.fc2 = Linear(hidden, width, bias=True, dtype=dtype, rngs=rngs)
        self.activation = activation

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        return self.fc2(ACTIVATIONS[self.activation](self.fc1(x)))


class GatedMlp(nnx.Module):
    """down(activation(gate(x)) * up(x)): SwiGLU where the activation is "silu".

    Args:
      width, hidden: outer and inner widths.
      activation: a key of ACTIVATIONS.
      bias: whether the three maps have one.
      dtype: parameter dtype.
      rngs: stream "params".
      outputs: width of what comes out; `width` where not given.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        activation: str,
        bias: bool,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
        outputs: int | None = None,
    ) -> None:
        self.gate = Linear(width, hidden, bias=bias, dtype=dtype, rngs=rngs)
        self.up = Linear(width, hidden, bias=bias, dtype=dtype, rngs=rngs)
        self.down = Linear(hidden, outputs or width, bias=bias, dtype=dtype, rngs=rngs)
        self.activation = activation

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b o"]:
        return self.down(ACTIVATIONS[self.activation](self.gate(x)) * self.up(x))
