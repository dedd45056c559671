"""The Feature Recovery Module: model, losses, capacity budget, storage."""

from trace_jax.frm import budget
from trace_jax.frm.loss import LOSSES, LossConfig, recovery_loss
from trace_jax.frm.model import FRMConfig, apply, init, num_params, recover_tokens
from trace_jax.frm.store import Description, Recoverer, describe, load, save

__all__ = [
    "LOSSES",
    "Description",
    "FRMConfig",
    "LossConfig",
    "Recoverer",
    "apply",
    "budget",
    "describe",
    "init",
    "load",
    "num_params",
    "recover_tokens",
    "recovery_loss",
    "save",
]
