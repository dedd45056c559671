"""Crops of real post-fire photographs (kind "crops") as a tensorflow-datasets set in ArrayRecord.

The folder it reads (paper section 3: 500 crops):

    DIR/dataset.json       {"kind": "crops", "name": ..., "version": "1.0.0", "taxonomy": ...}
    DIR/manifest.jsonl     one `types.Example` a line, split "test": a crop with its class, identity
                           and approximate severity; a pristine row (view 0) only where there is a
                           picture of that very object before the fire. A crop of an object that is
                           in TRACE carries TRACE's identity
    DIR/images/...         the pictures that the rows' `path` names

`metrics` stay empty: nobody measured a real fire. runs/real_crops.py evaluates such a folder.
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
