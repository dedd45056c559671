"""Scenes (kind "scenes") as a tensorflow-datasets set in ArrayRecord, without TensorFlow.

The folder it reads:

    DIR/dataset.json       {"kind": "scenes", "name": ..., "version": "1.0.0", "taxonomy": ...}, and
                           "pairs": false where layouts are not there pristine and degraded
    DIR/manifest.jsonl     one `types.SceneExample` a line; renders of one layout share `layout` and
                           a split
    DIR/images/...         the pictures that the rows' `path` names

A COCO file makes one: `bin/data from_coco FILE --images=DIR`. Boxes are COCO's: x, y, width, height
in pixels of the image as opened. `generation` (prompt fields, the intended inventory) is in `row`
alone, never among the features: it is no truth (paper A.3).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from trace_jax.data import scene_rows
from trace_jax.data.builders.folder_builder import FolderBuilder, prepare, read
from trace_jax.data.rows import Row
from trace_jax.types import SEVERITIES, SceneExample

__all__ = ["TraceScenes", "build", "read"]

_PLAIN = (
    "path", "layout", "environment", "scene_type", "severity", "width", "height", "caption",
)  # fmt: skip


class TraceScenes(FolderBuilder):
    """One data folder of kind "scenes"."""

    kinds = ("scenes",)

    def searchable(self) -> dict[str, Any]:
        text = tfds.features.Text
        return {
            "path": text(),
            "layout": text(),
            "environment": text(),
            "scene_type": text(),
            "severity": tfds.features.ClassLabel(names=list(SEVERITIES)),
            "width": tfds.features.Scalar(np.int32),
            "height": tfds.features.Scalar(np.int32),
            "caption": text(),
            "boxes": tfds.features.Sequence(
                {
                    "box": tfds.features.Tensor(shape=(4,), dtype=np.float32),
                    "object_type": text(),
                    "coco": text(),
                    "state": text(),
                    "visible": tfds.features.Scalar(np.float32),
                }
            ),
        }

    def fields(self, row: Row) -> dict[str, Any]:
        assert isinstance(row, SceneExample)
        raw = scene_rows.to_json(row)
        kept = ("box", "object_type", "coco", "state", "visible")
        boxes = [
            {
                name: box[name] if name != "box" else np.asarray(box[name], np.float32)
                for name in kept
            }
            for box in raw["boxes"]
        ]
        return {name: raw[name] for name in _PLAIN} | {"boxes": boxes}


def build(folder: str | Path, data_dir: str | Path) -> TraceScenes:
    """See folder_builder.prepare."""
    return prepare(TraceScenes, folder, data_dir)
