"""The tasks, by name; each says what is measured of a query and how records become rows."""

from trace_jax.tasks.base import Comparison, Scope, Task
from trace_jax.tasks.feature_recovery import FEATURE_RECOVERY
from trace_jax.tasks.generation import GENERATION_TASKS
from trace_jax.tasks.records import Record
from trace_jax.tasks.retrieval import RETRIEVAL

TASKS: dict[str, Task] = {task.name: task for task in (FEATURE_RECOVERY, RETRIEVAL)}

ALL_TASKS: tuple[str, ...] = (*TASKS, *GENERATION_TASKS)


def of_host(*, answers: bool) -> tuple[str, ...]:
    """Names of the tasks that a host can do: those in words only where it answers."""
    return ALL_TASKS if answers else tuple(TASKS)


__all__ = [
    "ALL_TASKS",
    "GENERATION_TASKS",
    "TASKS",
    "of_host",
    "Comparison",
    "Record",
    "Scope",
    "Task",
]
