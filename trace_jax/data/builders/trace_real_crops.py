"""Crops of real post-fire photographs (kind "crops") as a tensorflow-datasets set in ArrayRecord.

The folder is laid out as one of objects. Severity is approximate, the identity is known, and the
pristine reference may be missing (paper section 3: 500 crops).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trace_jax.data.builders.folder_builder import FolderBuilder, prepare, read
from trace_jax.data.builders.trace_objects import object_features, object_fields
from trace_jax.data.rows import Row

__all__ = ["TraceRealCrops", "build", "read"]


class TraceRealCrops(FolderBuilder):
    """One data folder of kind "crops"."""

    kinds = ("crops",)

    def searchable(self) -> dict[str, Any]:
        return object_features()

    def fields(self, row: Row) -> dict[str, Any]:
        return object_fields(row)


def build(folder: str | Path, data_dir: str | Path) -> TraceRealCrops:
    """See folder_builder.prepare."""
    return prepare(TraceRealCrops, folder, data_dir)
