"""Multi-head attention."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from trace_jax.nn.linear import Linear


def attend(
    query: Float[Array, "b q d"],
    key: Float[Array, "b k d"],
    value: Float[Array, "b k d"],
    *,
    heads: int,
    causal: bool,
) -> Float[Array, "b q d"]:
    """softmax(q k^T / sqrt(d_head)) v, heads split from the last axis and merged again.

    Args:
      query, key, value: already projected.
      heads: number of heads; divides d.
      causal: whether query i sees only keys up to i.

    Returns:
      Same shape and dtype as `query`; the softmax itself is float32.
    """
    width = query.shape[-1] // heads
    query, key, value = (
        x.reshape(*x.shape[:-1], heads, width).swapaxes(-3, -2) for x in (query, key, value)
    )  # [B, H, N, W]
    scores = jnp.einsum("bhqw,bhkw->bhqk", query * width**-0.5, key).astype(jnp.float32)
    if causal:
        below = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(below, scores, jnp.finfo(jnp.float32).min)
    # Softmax with its division after the second product: N*W divisions a head instead of N*N.
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    total = weights.sum(axis=-1, keepdims=True)
    merged = jnp.einsum("bhqk,bhkw->bhqw", weights.astype(value.dtype), value)
    merged = (merged / total).astype(value.dtype).swapaxes(-3, -2)  # [B, N, H, W]
    return merged.reshape(*merged.shape[:-2], heads * width)


def attend_grouped(
    query: Float[Array, "b n h w"],
    key: Float[Array, "b s k w"],
    value: Float[Array, "b s k w"],
    visible: Bool[Array, "b n s"] | None,
) -> Float[Array, "b n d"]:
    """Attention of heads that are split already, in groups that share a key and a value.

    Args:
      query: H heads of width W.
      key, value: K heads; K divides H.
      visible: which query may look at which key, or None: at all.

    Returns:
      [B, N, H * W] in the dtype of `value`; the softmax itself is float32.
    """
    batch, length, heads, width = query.shape
    groups = key.shape[2]
    query = query.reshape(batch, length, groups, heads // groups, width)
    scores = jnp.einsum("bnkgw,bskw->bkgns", query * width**-0.5, key).astype(jnp.float32)
    if visible is not None:
        scores = jnp.where(visible[:, None, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    return jnp.einsum("bkgns,bskw->bnkgw", weights, value).reshape(batch, length, heads * width)


class Attention(nnx.Module):
    """Attention with biased query, key, value and output projections.

    Args:
      width: model width.
      heads: number of heads.
      causal: see `attend`.
      dtype: parameter dtype.
      rngs: stream "params".
    """

    def __init__(
        self, width: int, *, heads: int, causal: bool, dtype: jnp.dtype, rngs: nnx.Rngs
    ) -> None:
        self.query = Linear(width, width, bias=True, dtype=dtype, rngs=rngs)
        self.key = Linear(width, width, bias=True, dtype=dtype, rngs=rngs)
        self.value = Linear(width, width, bias=True, dtype=dtype, rngs=rngs)
        self.out = Linear(width, width, bias=True, dtype=dtype, rngs=rngs)
        self.heads = heads
        self.causal = causal

    def __call__(
        self,
        x: Float[Array, "b q d"],
        source: Float[Array, "b k d"],
        values: Float[Array, "b k d"] | None = None,
    ) -> Float[Array, "b q d"]:
        """Queries from `x`, keys from `source` (x itself for self-attention), values from `values`
        or, where that is None, from `source` too.
        """
        query, key = self.query(x), self.key(source)
        value = self.value(source if values is None else values)
        return self.out(attend(query, key, value, heads=self.heads, causal=self.causal))
