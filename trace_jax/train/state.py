"""What a run carries from step to step."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything that decides the steps to come, besides data and configuration.

    Attributes:
      step: int32 scalar, steps done; random keys are folded from it.
      params: float32 master parameters, any pytree of arrays.
      opt_state: optax state.
    """

    step: jax.Array
    params: Any
    opt_state: Any


def create(params: Any, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step; traceable, so `jax.eval_shape` gives its shapes.

    Parameters become jax arrays of their own (float64 inputs become float32), because the step
    donates the state and a caller's arrays must stay alive.
    """
    params = jax.tree.map(lambda x: jnp.array(x, copy=True), params)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def named_leaves(tree: Any) -> dict[str, Any]:
    """Leaves by path, e.g. {"params/blocks/attn/kernel": array}, in tree order."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
