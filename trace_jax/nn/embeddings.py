"""What turns pixels and token ids into the first hidden state."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from trace_jax.nn.linear import affine, xavier_uniform

_small_normal = jax.nn.initializers.normal(0.02)


class PatchEmbedding(nnx.Module):
    """A convolution whose stride equals its kernel, as one product over flattened patches.

    Patches are in raster order, values inside a patch in (row, column, channel) order. There is no
    padding: rows and columns that do not fill a patch are refused at construction of the host.

    Args:
      patch: side of a patch in pixels.
      width: D.
      bias: whether the convolution has one (SigLIP yes, CLIP no).
      dtype: parameter dtype.
      rngs: stream "params".
    """

    def __init__(
        self, patch: int, width: int, *, bias: bool, dtype: jnp.dtype, rngs: nnx.Rngs
    ) -> None:
        self.kernel = nnx.Param(xavier_uniform(rngs.params(), (patch * patch * 3, width), dtype))
        self.bias = nnx.Param(jnp.zeros((width,), dtype)) if bias else None
        self.patch = patch

    def __call__(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b n d"]:
        batch, height, width, channels = pixels.shape
        p = self.patch
        grid = pixels.reshape(batch, height // p, p, width // p, p, channels)
        patches = grid.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, p * p * channels)
        return affine(patches, self.kernel[...], None if self.bias is None else self.bias[...])


class Embedding(nnx.Module):
    """A table of `rows` learned vectors of `width`: token embeddings, absolute positions."""

    def __init__(self, rows: int, width: int, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.table = nnx.Param(_small_normal(rngs.params(), (rows, width), dtype))

    def __call__(self, ids: Int[Array, "*s"]) -> Float[Array, "*s d"]:
        return self.table[...][ids]
