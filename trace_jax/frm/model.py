"""The Feature Recovery Module: a residual map from degraded to pristine tokens (paper section 4).

    u_hat = u + a_attn * MSA(LN(u))
    u     = u_hat + a_mlp * MLP(LN(u_hat))        M blocks, a_* learned per channel

There is no positional embedding: the paper names none, and a host's tokens already carry theirs.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from trace_jax.errors import FaultsError
from trace_jax.nn.activations import ACTIVATIONS
from trace_jax.nn.linear import Linear, affine
from trace_jax.nn.norms import LayerNorm
from trace_jax.types import Features

Params = Any
"""Nested dict of arrays; every leaf under "blocks" has a leading axis of `depth`."""


_UNROLLED = 8
"""Blocks up to which the stack is unrolled when compiled."""


@dataclasses.dataclass(frozen=True)
class FRMConfig:
    """Geometry of one FRM.

    Attributes:
      dim: D, the host's token width at the tap.
      depth: M, blocks.
      num_heads: attention heads (8 in the paper, D.1); divides `dim`.
      mlp_ratio: r, hidden width of the MLP over `dim`.
      alpha_init: start of every branch scale. Small, so that FRM starts near identity; the paper
        leaves the value open (1e-2 and 1e-5 recover alike on the nano host, 1 harms L0).
      activation: a key of nn.activations.ACTIVATIONS; exact "gelu" costs a tenth of a step more.
      norm_eps: of both layer norms.
      compute_dtype: "float32" or "bfloat16", of the products; the residual stream, norms and
        softmax stay float32, as do the stored parameters.
    """

    dim: int
    depth: int
    num_heads: int = 8
    mlp_ratio: int = 4
    alpha_init: float = 1e-2
    activation: str = "gelu_pytorch_tanh"
    norm_eps: float = 1e-6
    compute_dtype: str = "float32"

    def __post_init__(self) -> None:
        faults = []
        if min(self.dim, self.depth, self.num_heads, self.mlp_ratio) < 1:
            faults.append("dim, depth, num_heads and mlp_ratio: at least 1")
        elif self.dim % self.num_heads:
            faults.append(f"num_heads={self.num_heads} does not divide dim={self.dim}")
        if self.activation not in ACTIVATIONS:
            faults.append(f"activation={self.activation!r}: one of {sorted(ACTIVATIONS)}")
        if self.compute_dtype not in ("float32", "bfloat16"):
            faults.append(f"compute_dtype={self.compute_dtype!r}: 'float32' or 'bfloat16'")
        if faults:
            raise FaultsError("FRM configuration", faults)


class Block(nnx.Module):
    """One pre-norm block on flat tokens.

    Args:
      config: geometry.
      rngs: stream "params".
    """

    def __init__(self, config: FRMConfig, *, rngs: nnx.Rngs) -> None:
        dim, dtype = config.dim, jnp.dtype("float32")
        linear = functools.partial(Linear, bias=True, dtype=dtype, rngs=rngs)
        self.attn_norm = LayerNorm(dim, eps=config.norm_eps, dtype=dtype)
        self.qkv = linear(dim, 3 * dim)
        self.out = linear(dim, dim)
        self.attn_alpha = nnx.Param(jnp.full((dim,), config.alpha_init, dtype))
        self.mlp_norm = LayerNorm(dim, eps=config.norm_eps, dtype=dtype)
        self.up = linear(dim, config.mlp_ratio * dim)
        self.down = linear(config.mlp_ratio * dim, dim)
        self.mlp_alpha = nnx.Param(jnp.full((dim,), config.alpha_init, dtype))
        self.config = config

    def __call__(
        self, tokens: Float[Array, "b n d"], mask: Bool[Array, "b n"] | None
    ) -> Float[Array, "b n d"]:
        dtype = jnp.dtype(self.config.compute_dtype)
        shape = tokens.shape
        u = tokens.reshape(-1, shape[-1])  # [B*N, D]
        inner = _affine(self.attn_norm(u), self.qkv, dtype).reshape(*shape[:-1], -1)
        inner = attend(inner, mask, self.config.num_heads).reshape(u.shape)
        u = u + self.attn_alpha[...] * _affine(inner, self.out, dtype).astype(u.dtype)
        inner = ACTIVATIONS[self.config.activation](_affine(self.mlp_norm(u), self.up, dtype))
        u = u + self.mlp_alpha[...] * _affine(inner, self.down, dtype).astype(u.dtype)
        return u.reshape(shape)


class FRM(nnx.Module):
    """M stacked blocks; parameters only, run by `apply`."""

    def __init__(self, config: FRMConfig, *, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=config.depth)
        @nnx.vmap
        def make(rngs: nnx.Rngs) -> Block:
            return Block(config, rngs=rngs)

        self.blocks = make(rngs)

    def __call__(
        self, tokens: Float[Array, "b n d"], mask: Bool[Array, "b n"] | None
    ) -> Float[Array, "b n d"]:
        graphdef, stacked = nnx.split(self.blocks)

        def step(u: Array, params: nnx.State) -> tuple[Array, None]:
            return nnx.merge(graphdef, params)(u, mask), None

        # Unrolled, a shallow stack saves the loop's copies of weights and gradients (8% of a step
        # on a CPU); a deep one would take long to compile.
        depth = self.blocks.attn_alpha[...].shape[0]
        return jax.lax.scan(step, tokens, stacked, unroll=depth <= _UNROLLED)[0]


def attend(
    qkv: Float[Array, "b n c"], mask: Bool[Array, "b n"] | None, heads: int
) -> Float[Array, "b n d"]:
    """Self-attention from fused projections, c = 3 d; no token attends to a masked one."""
    batch, count, width = qkv.shape
    query, key, value = jnp.moveaxis(
        qkv.reshape(batch, count, 3, heads, width // (3 * heads)), (2, 3), (0, 2)
    )  # [B, H, N, W]
    scores = jnp.einsum("bhqw,bhkw->bhqk", query * query.shape[-1] ** -0.5, key)
    scores = scores.astype(jnp.float32)
    if mask is not None:
        scores = jnp.where(mask[:, None, None, :], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    merged = jnp.einsum("bhqk,bhkw->bhqw", weights, value).swapaxes(1, 2)  # [B, N, H, W]
    return merged.reshape(batch, count, width // 3)


def init(key: PRNGKeyArray, config: FRMConfig) -> Params:
    """Fresh float32 parameters: Xavier kernels, zero biases, `alpha_init` branch scales."""
    return _init(key, config)


@functools.partial(jax.jit, static_argnums=1)
def _init(key: PRNGKeyArray, config: FRMConfig) -> Params:
    return nnx.to_pure_dict(nnx.state(FRM(config, rngs=nnx.Rngs(params=key))))


def abstract_params(config: FRMConfig) -> Params:
    """The tree of ShapeDtypeStruct that `init` would fill."""
    return jax.eval_shape(lambda: init(jax.random.key(0), config))


def num_params(*, dim: int, depth: int, mlp_ratio: int) -> int:
    """All parameters of an FRM, without making one: M(4+2r)D^2 plus biases, norms and scales."""
    shapes = abstract_params(FRMConfig(dim, depth, num_heads=1, mlp_ratio=mlp_ratio))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def recover_tokens(
    params: Params,
    tokens: Float[Array, "*b n d"],
    mask: Bool[Array, "*b n"] | None,
    config: FRMConfig,
) -> Float[Array, "*b n d"]:
    """FRM on bare tokens, in float32; masked tokens neither act nor change.

    Args:
      params: from `init` or `store.load`.
      tokens: any leading axes, each image apart; N may be 1 or more.
      mask: true where a token is real; None where all are.
      config: geometry of `params`.

    Returns:
      The recovered tokens, float32, in the input's shape.

    Raises:
      ValueError: the tokens' width is not `config.dim`.
    """
    if tokens.shape[-1] != config.dim:
        raise ValueError(f"tokens are {tokens.shape[-1]} wide, this FRM takes {config.dim}")
    shape = tokens.shape
    u = tokens.astype(jnp.float32).reshape(-1, *shape[-2:])  # [B, N, D]
    if mask is None:
        return nnx.merge(_graph(config), params)(u, None).reshape(shape)
    flat = mask.reshape(-1, shape[-2])  # [B, N]
    # Zeros first: whatever a masked slot holds, even NaN, must not reach a sum.
    clean = jnp.where(flat[..., None], u, 0.0)
    recovered = nnx.merge(_graph(config), params)(clean, flat)
    return jnp.where(flat[..., None], recovered, u).reshape(shape)


def apply(params: Params, features: Features, config: FRMConfig) -> Features:
    """FRM as a recover function: `tokens` change and keep their dtype, the rest is passed on."""
    tokens = recover_tokens(params, features.tokens, features.mask, config)
    return features.replace(tokens=tokens.astype(features.tokens.dtype))


def _affine(x: Float[Array, "t i"], layer: Linear, dtype: jnp.dtype) -> Float[Array, "t o"]:
    assert layer.bias is not None
    return affine(x.astype(dtype), layer.kernel[...].astype(dtype), layer.bias[...].astype(dtype))


@functools.cache
def _graph(config: FRMConfig) -> nnx.GraphDef:
    return nnx.split(nnx.eval_shape(lambda: FRM(config, rngs=nnx.Rngs(params=0))))[0]
