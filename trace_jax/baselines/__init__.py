"""Controls beside FRM, by the name of their condition in reports."""

from collections.abc import Callable
from typing import Any

from trace_jax.baselines import controls

RECOVER: dict[str, Callable[..., Any]] = {
    "base": controls.identity,
    "mean_shift": controls.mean_shift,
    "mean_shift_oracle": controls.mean_shift_oracle,
    "ridge": controls.ridge,
}
"""Condition -> `(params, Features) -> Features`; the oracle takes the severities as third."""
