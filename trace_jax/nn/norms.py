"""Layer and root-mean-square normalisation as the PyTorch references compute them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float


def layer_norm(
    x: Float[Array, "*b d"], scale: Float[Array, " d"], bias: Float[Array, " d"], eps: float
) -> Float[Array, "*b d"]:
    """Layer normalisation over the last axis.

    Statistics are float32 whatever x is, and the variance takes two passes: E[x^2] - E[x]^2 loses
    half the digits on the large activations of late ViT blocks. Result in x's dtype.
    """
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    normal = centred * jax.lax.rsqrt(variance + eps)
    return (normal * scale.astype(jnp.float32) + bias.astype(jnp.float32)).astype(x.dtype)


class LayerNorm(nnx.Module):
    """Layer normalisation with learned scale and bias; `eps` has no default on purpose."""

    def __init__(self, width: int, *, eps: float, dtype: jnp.dtype) -> None:
        self.scale = nnx.Param(jnp.ones((width,), dtype))
        self.bias = nnx.Param(jnp.zeros((width,), dtype))
        self.eps = eps

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        return layer_norm(x, self.scale[...], self.bias[...], self.eps)


class RmsNorm(nnx.Module):
    """x over its root mean square in float32, cast back to x's dtype, then times the scale.

    That order of cast and product is transformers'; in bfloat16 another order gives other digits.
    """

    def __init__(self, width: int, *, eps: float, dtype: jnp.dtype) -> None:
        self.scale = nnx.Param(jnp.ones((width,), dtype))
        self.eps = eps

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        wide = x.astype(jnp.float32)
        mean_square = (wide * wide).mean(axis=-1, keepdims=True)
        return self.scale[...] * (wide * jax.lax.rsqrt(mean_square + self.eps)).astype(x.dtype)
