"""From results files to a page that people read; reads files only."""

from trace_jax.report.page import write

__all__ = ["write"]
