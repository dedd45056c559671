"""Trajectories (kind "objects") as a tensorflow-datasets set in ArrayRecord, without TensorFlow.

The folder it reads:

    DIR/dataset.json       {"kind": "objects", "name": ..., "version": "1.0.0", "taxonomy": ...}
    DIR/manifest.jsonl     one `types.Example` a line: a pristine row (view 0) of every identity and
                           one of each level; all rows of an identity in one split
    DIR/images/...         the pictures that the rows' `path` names, any format, any size

`bin/data check DIR` tells every fault; `build` refuses a folder whose rows or pictures cannot be
used (a missing level is no reason to).

from trace_jax.data.builders import trace_objects
builder = trace_objects.build("DIR", "OUT")            # OUT/trace_objects/<name>/<version>/
for example, picture in trace_objects.read(builder, "test"): ...
# elsewhere, without this package: tfds.builder_from_directory(...).as_data_source("test")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from trace_jax.data import rows as row_schema
from trace_jax.data.builders.folder_builder import FolderBuilder, prepare, read
from trace_jax.data.rows import Row
from trace_jax.types import SEVERITIES

__all__ = ["TraceObjects", "build", "object_features", "object_fields", "read"]

_PLAIN = ("path", "identity", "object_type", "severity", "view", "draw", "functions", "materials")


class TraceObjects(FolderBuilder):
    """One data folder of kind "objects"."""

    kinds = ("objects",)

    def searchable(self) -> dict[str, Any]:
        return object_features()

    def fields(self, row: Row) -> dict[str, Any]:
        return object_fields(row)


def object_features() -> dict[str, Any]:
    """tfds features of the searchable fields of an `Example`."""
    text = tfds.features.Text
    return {
        "path": text(),
        "identity": text(),
        "object_type": text(),
        "severity": tfds.features.ClassLabel(names=list(SEVERITIES)),
        "view": tfds.features.Scalar(np.int32),
        "draw": tfds.features.Scalar(np.int32),
        "functions": tfds.features.Sequence(text()),
        "materials": tfds.features.Sequence({"part": text(), "material": text()}),
    }


def object_fields(row: Row) -> dict[str, Any]:
    """Those fields of one row."""
    raw = row_schema.to_json(row)
    return {name: raw[name] for name in _PLAIN}


def build(folder: str | Path, data_dir: str | Path) -> TraceObjects:
    """See folder_builder.prepare."""
    return prepare(TraceObjects, folder, data_dir)
