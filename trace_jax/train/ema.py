"""A moving average of the parameters, kept beside the optimizer's state and evaluated beside them.

Reference: RF-DETR 1.4.1 (ModelEma): updated after every step, with a decay that rises from zero.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from trace_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class EmaConfig:
    """How slowly the average follows.

    Attributes:
      decay: share of the old average that is kept in the long run.
      ramp: after n updates the share is decay * (1 - exp(-n / ramp)); 0 keeps `decay` throughout.
    """

    decay: float = 0.993
    ramp: float = 100.0

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1 or self.ramp < 0:
            raise UserError("ema: decay must lie between 0 and 1, ramp must not be negative.")


class AveragedState(NamedTuple):
    """State of `averaged`.

    Attributes:
      inner: of the wrapped optimizer.
      done: int32 scalar, updates so far.
      average: like the parameters.
    """

    inner: Any
    done: jax.Array
    average: Any


def decay_at(count: jax.Array, config: EmaConfig) -> jax.Array:
    """The share kept by the count-th update; the first is 1."""
    if config.ramp == 0:
        return jnp.float32(config.decay)
    return config.decay * -jnp.expm1(-count.astype(jnp.float32) / config.ramp)


def averaged(
    optimizer: optax.GradientTransformation, config: EmaConfig
) -> optax.GradientTransformation:
    """The optimizer, with an average of the parameters it makes; updates stay what they are."""

    def init(params: Any) -> AveragedState:
        average = jax.tree.map(lambda x: jnp.array(x, copy=True), params)
        return AveragedState(optimizer.init(params), jnp.zeros((), jnp.int32), average)

    def update(updates: Any, state: AveragedState, params: Any = None) -> tuple[Any, AveragedState]:
        updates, inner = optimizer.update(updates, state.inner, params)
        count = state.done + 1
        keep = decay_at(count, config)
        average = jax.tree.map(
            lambda old, new: (keep * old + (1 - keep) * new).astype(old.dtype),
            state.average,
            optax.apply_updates(params, updates),
        )
        return updates, AveragedState(inner, count, average)

    return optax.GradientTransformation(init, update)


def average_of(opt_state: Any) -> Any | None:
    """The average in the state of an `averaged` optimizer, None of any other."""
    return opt_state.average if isinstance(opt_state, AveragedState) else None
