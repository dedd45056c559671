"""Recovery losses between recovered and pristine tokens (paper sections 4 and 5.3).

All are sums over real tokens divided by their count, so padding never dilutes them. `mse` is per
element, 1/(BND) as in the paper.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from trace_jax.errors import UserError

Tokens = Float[Array, "*b n d"]
Mask = Bool[Array, "*b n"] | None


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """Which recovery loss.

    Attributes:
      name: a key of LOSSES. "mse_cos" is the paper's; the others are its ablations.
      cos_weight: lambda of the cosine term (0.1 in the paper).
      huber_delta: where "huber_cos" turns from square to linear (not in the paper's text).
      norm_eps: of the affine-free layer norm in "ln_mse".
    """

    name: str = "mse_cos"
    cos_weight: float = 0.1
    huber_delta: float = 1.0
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.name not in LOSSES:
            raise UserError(f"loss.name={self.name!r}: choose one of {sorted(LOSSES)}.")


def mse(recovered: Tokens, pristine: Tokens, mask: Mask) -> Float[Array, ""]:
    """Mean squared error per element of real tokens."""
    return _mean(jnp.mean(jnp.square(recovered - pristine), axis=-1), mask)


def cosine(recovered: Tokens, pristine: Tokens, mask: Mask) -> Float[Array, ""]:
    """Mean cosine similarity of real tokens."""
    dot = jnp.sum(recovered * pristine, axis=-1)
    # The square root of a product of sums: finite gradients at a zero token.
    squares = jnp.sum(jnp.square(recovered), axis=-1) * jnp.sum(jnp.square(pristine), axis=-1)
    return _mean(dot * jax.lax.rsqrt(squares + 1e-12), mask)


def huber(recovered: Tokens, pristine: Tokens, mask: Mask, delta: float) -> Float[Array, ""]:
    """Mean Huber loss per element: half the square below `delta`, linear beyond."""
    gap = jnp.abs(recovered - pristine)
    inner = jnp.minimum(gap, delta)
    return _mean(jnp.mean(inner * (gap - 0.5 * inner), axis=-1), mask)


def normalised_mse(recovered: Tokens, pristine: Tokens, mask: Mask, eps: float) -> Float[Array, ""]:
    """MSE after each token is brought to mean 0 and variance 1."""
    return mse(_standardise(recovered, eps), _standardise(pristine, eps), mask)


def _mse_cos(r: Tokens, p: Tokens, mask: Mask, config: LossConfig) -> dict[str, Array]:
    return {"mse": mse(r, p, mask), "cos": config.cos_weight * (1.0 - cosine(r, p, mask))}


def _mse(r: Tokens, p: Tokens, mask: Mask, config: LossConfig) -> dict[str, Array]:
    return {"mse": mse(r, p, mask)}


def _ln_mse(r: Tokens, p: Tokens, mask: Mask, config: LossConfig) -> dict[str, Array]:
    return {"ln_mse": normalised_mse(r, p, mask, config.norm_eps)}


def _huber_cos(r: Tokens, p: Tokens, mask: Mask, config: LossConfig) -> dict[str, Array]:
    return {
        "huber": huber(r, p, mask, config.huber_delta),
        "cos": config.cos_weight * (1.0 - cosine(r, p, mask)),
    }


LOSSES: dict[str, Callable[[Tokens, Tokens, Mask, LossConfig], dict[str, Array]]] = {
    "mse_cos": _mse_cos,
    "mse": _mse,
    "ln_mse": _ln_mse,
    "huber_cos": _huber_cos,
}
"""Name -> summands of the loss, weighted."""


def recovery_loss(
    recovered: Tokens, pristine: Tokens, mask: Mask, config: LossConfig
) -> tuple[Float[Array, ""], Mapping[str, Float[Array, ""]]]:
    """The named loss in float32.

    Args:
      recovered, pristine: tokens of equal shape, any leading axes.
      mask: true where a token is real; None where all are.
      config: which loss.

    Returns:
      The loss, and the terms to log: every summand as "loss_<term>" (they add up to the loss),
      and whatever the loss, "mse" per element and mean "cosine".
    """
    recovered, pristine = recovered.astype(jnp.float32), pristine.astype(jnp.float32)
    if mask is not None:
        recovered = jnp.where(mask[..., None], recovered, 0.0)
        pristine = jnp.where(mask[..., None], pristine, 0.0)
    summands = LOSSES[config.name](recovered, pristine, mask, config)
    terms = {f"loss_{name}": value for name, value in summands.items()}
    terms["mse"] = mse(recovered, pristine, mask)
    terms["cosine"] = cosine(recovered, pristine, mask)
    return sum(summands.values(), jnp.zeros(())), terms


def _mean(by_token: Float[Array, "*b n"], mask: Mask) -> Float[Array, ""]:
    if mask is None:
        return jnp.mean(by_token)
    real = mask.astype(by_token.dtype)
    return jnp.sum(by_token * real) / jnp.maximum(jnp.sum(real), 1.0)


def _standardise(tokens: Tokens, eps: float) -> Tokens:
    centred = tokens - tokens.mean(axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + eps)
