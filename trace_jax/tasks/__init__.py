"""The tasks, by name; each says what is measured of a query and how records become rows."""

from trace_jax.tasks import detection
from trace_jax.tasks.base import Comparison, Scope, Task
from trace_jax.tasks.feature_recovery import FEATURE_RECOVERY
from trace_jax.tasks.generation import GENERATION_TASKS
from trace_jax.tasks.records import Record
from trace_jax.tasks.retrieval import RETRIEVAL

TASKS: dict[str, Task] = {task.name: task for task in (FEATURE_RECOVERY, RETRIEVAL)}

DETECTION = detection.NAME

ALL_TASKS: tuple[str, ...] = (*TASKS, *GENERATION_TASKS, DETECTION)


def of_host(*, answers: bool) -> tuple[str, ...]:
    """Tasks on single objects that a host can do: those in words only where it answers."""
    return (*TASKS, *GENERATION_TASKS) if answers else tuple(TASKS)


__all__ = [
    "ALL_TASKS",
    "DETECTION",
    "GENERATION_TASKS",
    "TASKS",
    "of_host",
    "Comparison",
    "Record",
    "Scope",
    "Task",
]
