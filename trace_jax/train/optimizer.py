"""AdamW with warm-up and cosine decay, and which leaves decay."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import optax

from trace_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW; the paper names no optimizer, so every value here is ours.

    Attributes:
      lr: peak learning rate.
      warmup_steps: linear from 0 to `lr`.
      schedule: "cosine" down to `lr * final_fraction` at the last step, or "constant".
      final_fraction: of `lr`.
      weight_decay: decoupled, scaled by the learning rate; matrices only, see `decays`.
      b1, b2, eps: Adam's moments.
      clip_norm: global gradient norm at most this; 0 turns clipping off.
      no_decay: regular expressions; a leaf whose path matches one never decays.
    """

    lr: float = 1e-3
    warmup_steps: int = 50
    schedule: str = "cosine"
    final_fraction: float = 0.0
    weight_decay: float = 0.05
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    clip_norm: float = 1.0
    no_decay: tuple[str, ...] = ("bias", "scale", "alpha", "norm", "position", "cls", "logit")

    def __post_init__(self) -> None:
        if self.schedule not in ("cosine", "constant"):
            raise UserError(f"optim.schedule={self.schedule!r}: choose 'cosine' or 'constant'.")


def schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Step -> learning rate; `steps` is the length of the whole run."""
    warmup = min(config.warmup_steps, max(steps - 1, 0))
    if config.schedule == "constant":
        after = optax.constant_schedule(config.lr)
    else:
        after = optax.cosine_decay_schedule(
            config.lr, max(steps - warmup, 1), config.final_fraction
        )
    if warmup == 0:
        return after
    rise = optax.linear_schedule(config.lr / warmup, config.lr, max(warmup - 1, 1))
    return optax.join_schedules([rise, after], [warmup])


def decays(params: Any, no_decay: tuple[str, ...]) -> Any:
    """True for leaves that weight decay acts on: two axes or more and no name in `no_decay`.

    Names decide too because a bias of M stacked blocks has two axes, [M, D].
    """
    patterns = [re.compile(p) for p in no_decay]

    def one(path: Any, leaf: Any) -> bool:
        name = jax.tree_util.keystr(path).lower()
        return jnp.ndim(leaf) >= 2 and not any(p.search(name) for p in patterns)

    return jax.tree_util.tree_map_with_path(one, params)


def make(
    config: OptimizerConfig, steps: int, *, decaying: Any = None
) -> optax.GradientTransformation:
    """AdamW without clipping: the step clips, since it needs the norm by leaf anyway.

    Args:
      config: see the class.
      steps: length of the run.
      decaying: a tree like the parameters', true where weight decay acts; by default `decays`.
    """
    return optax.adamw(
        schedule(config, steps),
        b1=config.b1,
        b2=config.b2,
        eps=config.eps,
        weight_decay=config.weight_decay,
        mask=lambda params: decays(params, config.no_decay) if decaying is None else decaying,
    )
