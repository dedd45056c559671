"""What FRM training minimises: the recovery loss, and an optional term the paper does not have."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from trace_jax.errors import UserError
from trace_jax.frm import FRMConfig, LossConfig, recover_tokens, recovery_loss
from trace_jax.train.step import LossFn


@dataclasses.dataclass(frozen=True)
class ContrastConfig:
    """InfoNCE on pooled tokens, our addition (condition "frm_plus"); off by default.

    Attributes:
      weight: of the term in the loss; 0 leaves it out.
      temperature: of the cosines.
    """

    weight: float = 0.0
    temperature: float = 0.07

    def __post_init__(self) -> None:
        if self.weight < 0 or self.temperature <= 0:
            raise UserError("contrast: weight must not be negative, temperature must be positive.")


def frm_loss(frm: FRMConfig, loss: LossConfig, contrast: ContrastConfig) -> LossFn:
    """The loss function of FRM training for `train.loop.fit`.

    It sees features only. Its batch: "degraded" and "pristine" [B, ..., N, D], optionally "mask"
    [B, ..., N], and "identity" [B] where the contrastive term is on. Terms logged: those of
    `frm.recovery_loss` and, where on, "loss_contrast" and "contrast_r_at_1" within the batch.
    """

    def loss_fn(
        params: Any, batch: Mapping[str, Array], rng: Array
    ) -> tuple[Array, Mapping[str, Array]]:
        del rng  # FRM has no dropout: the paper names none
        mask = batch.get("mask")
        recovered = recover_tokens(params, batch["degraded"], mask, frm)
        total, terms = recovery_loss(recovered, batch["pristine"], mask, loss)
        terms = dict(terms)
        if contrast.weight > 0:
            identity = batch["identity"]
            pooled = [
                _pool(tokens, mask).reshape(identity.shape[0], -1)
                for tokens in (recovered, batch["pristine"].astype(jnp.float32))
            ]
            value, hits = info_nce(pooled[0], pooled[1], identity, contrast.temperature)
            terms["loss_contrast"] = contrast.weight * value
            terms["contrast_r_at_1"] = hits
            total = total + terms["loss_contrast"]
        return total, terms

    return loss_fn


def info_nce(
    queries: Float[Array, "b d"],
    targets: Float[Array, "b d"],
    identity: Int[Array, " b"],
    temperature: float,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Cross-entropy of each query's own target among the batch's targets, cosine / temperature.

    Targets of the query's identity in other rows are no negatives: they are left out.

    Returns:
      The mean loss, and the share of queries whose own target is strictly the nearest.
    """
    logits = _unit(queries) @ _unit(targets).T / temperature  # [B, B]
    own = jnp.eye(identity.shape[0], dtype=bool)
    logits = jnp.where((identity[:, None] == identity[None, :]) & ~own, -jnp.inf, logits)
    right = jnp.diagonal(logits)
    value = jnp.mean(jax.nn.logsumexp(logits, axis=1) - right)
    best_other = jnp.max(jnp.where(own, -jnp.inf, logits), axis=1)
    return value, jnp.mean((right > best_other).astype(jnp.float32))


def _pool(tokens: Float[Array, "*b n d"], mask: Bool[Array, "*b n"] | None) -> Array:
    if mask is None:
        return jnp.mean(tokens, axis=-2)
    kept = jnp.where(mask[..., None], tokens, 0.0)
    return jnp.sum(kept, axis=-2) / jnp.maximum(jnp.sum(mask, axis=-1), 1)[..., None]


def _unit(x: Float[Array, "b d"]) -> Float[Array, "b d"]:
    return x * jax.lax.rsqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + 1e-12)
