"""Start-up of `jax.distributed` from flags or the environment."""

from __future__ import annotations

import os

import jax

from trace_jax.errors import UserError

_NAMES = {
    "coordinator": "JAX_COORDINATOR_ADDRESS",
    "num_processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}


def start(
    coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> None:
    """Joins this process to the others; call it before anything else touches jax.

    Arguments that are None are read from JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
    JAX_PROCESS_ID. Where none of the three is given this is a run of one process and nothing
    happens. On CPUs the collectives are gloo's.

    Args:
      coordinator: host:port of process 0.
      num_processes: how many there are.
      process_id: which one this is, from 0.

    Raises:
      UserError: some are given and others not, one is no number, or the coordinator is not found.
    """
    values = {
        name: str(given) if given is not None else os.environ.get(_NAMES[name], "")
        for name, given in zip(_NAMES, (coordinator, num_processes, process_id), strict=True)
    }
    missing = [f"--{name} (or {_NAMES[name]})" for name, value in values.items() if not value]
    if len(missing) == len(values):
        return
    if missing:
        raise UserError(f"several processes: {', '.join(missing)} must be given too.")
    try:
        count, number = int(values["num_processes"]), int(values["process_id"])
    except ValueError as error:
        raise UserError(f"several processes: {error}.") from error
    if not 0 <= number < count:
        raise UserError(f"several processes: process_id {number} is not in 0..{count - 1}.")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(values["coordinator"], count, number)
    except RuntimeError as error:
        raise UserError(
            f"several processes: could not join {values['coordinator']} ({error}). Start process "
            "0 there first and see that its port can be reached."
        ) from error
