"""The two-layer perceptron of a transformer block."""

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
