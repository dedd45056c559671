"""The tasks, by name; each says what is measured of a query and how records become rows."""

from trace_jax.tasks.base import Comparison, Scope, Task
from trace_jax.tasks.feature_recovery import FEATURE_RECOVERY
from trace_jax.tasks.records import Record
from trace_jax.tasks.retrieval import RETRIEVAL

TASKS: dict[str, Task] = {task.name: task for task in (FEATURE_RECOVERY, RETRIEVAL)}

__all__ = ["TASKS", "Comparison", "Record", "Scope", "Task"]
