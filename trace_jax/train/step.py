"""One jitted training step: gradient, clipping, update, and the figures to watch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding

from trace_jax.train import sharding
from trace_jax.train.state import TrainState, named_leaves

LossFn = Callable[[Any, Mapping[str, Any], jax.Array], tuple[jax.Array, Mapping[str, jax.Array]]]
"""(params, batch, rng) -> (loss, terms); all scalars, means over the global batch."""


def make_step(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    learning_rate: optax.Schedule,
    *,
    clip_norm: float,
    seed: int,
    mesh: Mesh,
    state_shardings: TrainState,
    batch_shardings: Mapping[str, NamedSharding],
) -> Callable[[TrainState, Mapping[str, jax.Array], Any], tuple[TrainState, dict[str, Any]]]:
    """A function (state, batch, constants) -> (state, figures); the old state is donated.

    `constants` is a dict of pytrees that join the batch on its way to the loss: a frozen host's
    parameters, say, which are arguments and never closed over.

    Figures: "terms" (dict of scalars: the loss, its terms, "grad_norm", "lr") and "leaves"
    [number of parameter leaves], squared gradient norms in tree order, for the finite check.
    The step's random key is fold_in(key(seed), step): nothing random is carried.
    """

    def step(
        state: TrainState, batch: Mapping[str, jax.Array], constants: Mapping[str, Any]
    ) -> tuple[TrainState, dict]:
        batch = {**batch, **constants}
        rng = jax.random.fold_in(jax.random.key(seed), state.step)
        (loss, terms), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params, batch, rng)
        squares = jnp.stack(
            [jnp.sum(jnp.square(g.astype(jnp.float32))) for g in jax.tree.leaves(grads)]
        )
        norm = jnp.sqrt(jnp.sum(squares))
        if clip_norm > 0:
            shrink = jnp.minimum(1.0, clip_norm / (norm + 1e-12))
            grads = jax.tree.map(lambda g: g * shrink.astype(g.dtype), grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        figures = {
            "terms": {
                "loss": loss,
                **terms,
                "grad_norm": norm,
                "lr": learning_rate(state.step),
            },
            "leaves": squares,
        }
        return TrainState(state.step + 1, params, opt_state), figures

    whole = sharding.replicated(mesh)
    return jax.jit(
        step,
        in_shardings=(state_shardings, dict(batch_shardings), whole),
        out_shardings=(state_shardings, whole),
        donate_argnums=0,
        compiler_options=_compiler_options(mesh),
    )


def _compiler_options(mesh: Mesh) -> dict[str, Any] | None:
    # jaxlib 0.10 hands CPU products to YNNPACK, which is slower than Eigen at a step's shapes:
    # 77 against 92 GFLOP/s a core forward, 85 against 102 for the gradient of the input.
    if mesh.devices.flat[0].platform != "cpu":
        return None
    return {"xla_cpu_experimental_ynn_fusion_type": ""}


def find_faults(
    figures: Mapping[str, Any], params: Any, batch: Mapping[str, Any] | None
) -> list[str]:
    """Names what is not finite in one step's fetched figures; empty when all is well.

    Args:
      figures: numpy values of `make_step`'s figures.
      params: a tree with the parameters' structure, for the names of leaves.
      batch: that step's host arrays, searched only once something is wrong, or None.
    """
    faults = [
        f"term {name!r} is {float(value)}"
        for name, value in figures["terms"].items()
        if not np.isfinite(value)
    ]
    bad = np.flatnonzero(~np.isfinite(figures["leaves"]))
    if bad.size:
        names = list(named_leaves(params))
        more = f" (and {bad.size - 1} of {len(names)} leaves more)" if bad.size > 1 else ""
        faults.append(f"first gradient leaf not finite: {names[bad[0]]}{more}")
    if faults and batch is not None:
        for name, array in batch.items():
            array = np.asarray(array)
            if array.dtype.kind not in "biu" and not np.isfinite(array.astype(np.float32)).all():
                faults.append(f"input {name!r} already holds values that are not finite")
    return faults


def first_bad_leaf(tree: Any) -> str | None:
    """Path of the first array that is not all finite, or None."""
    leaves = named_leaves(tree)
    flags = np.asarray(jax.jit(_all_finite)(list(leaves.values())))
    return next((name for name, fine in zip(leaves, flags, strict=True) if not fine), None)


def _all_finite(leaves: list[jax.Array]) -> jax.Array:
    fine = [
        jnp.all(jnp.isfinite(x)) if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.array(True)
        for x in leaves
    ]
    return jnp.stack(fine)
