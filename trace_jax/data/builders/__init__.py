"""Builders of tensorflow-datasets sets, by kind of data folder.

Importing a builder imports tensorflow-datasets, so the table holds names of modules.
"""

from __future__ import annotations

import importlib
from types import ModuleType

BUILDERS: dict[str, str] = {
    "objects": "trace_objects",
    "scenes": "trace_scenes",
    "crops": "trace_real_crops",
}


def builder(kind: str) -> ModuleType:
    """The module for a kind, with `build` and `read`."""
    return importlib.import_module(f"{__name__}.{BUILDERS[kind]}")
