"""The GELUs, SiLU and ReLU under the names Hugging Face configs use. None is a default."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Activation = Callable[[Float[Array, "*s"]], Float[Array, "*s"]]


def gelu_exact(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """x * Phi(x) with the error function."""
    return jax.nn.gelu(x, approximate=False)


def gelu_tanh(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """The tanh approximation of GELU."""
    return jax.nn.gelu(x, approximate=True)


def quick_gelu(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """x * sigmoid(1.702 x), CLIP's activation.

    The sigmoid goes through tanh: XLA's CPU backend has a vector tanh and no vector exp of the
    same quality, and the two are the same function.
    """
    return x * (0.5 * jnp.tanh(0.851 * x) + 0.5)


def silu(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """x * sigmoid(x); through tanh for the reason given in `quick_gelu`."""
    return x * (0.5 * jnp.tanh(0.5 * x) + 0.5)


def relu(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """max(x, 0); its gradient at 0 is 0."""
    return jax.nn.relu(x)


ACTIVATIONS: dict[str, Activation] = {
    "gelu": gelu_exact,
    "gelu_pytorch_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "relu": relu,
    "silu": silu,
}
