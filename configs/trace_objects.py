"""The object-level subset at full size, procedural: 499 identities, 189 types, 2,994 pictures.

    bin/generate --config=configs/trace_objects.py

The paper's numbers (section 3): each identity pristine and at L0-L4, split 80/10/10 by identity,
399 / 50 / 50. At 128 px under two minutes of CPU time, shared by all cores; sizes 64-448.
"""

from __future__ import annotations

import dataclasses

from ml_collections import ConfigDict

from trace_jax.runs.generate import inventory_series
from trace_jax.types import LEVELS


def get_config() -> ConfigDict:
    """The page."""
    series = inventory_series(499, 0, views=(0,), levels=LEVELS, draws=1)
    return ConfigDict(
        {
            "name": "trace_objects",
            "version": "1.0.0",
            "engine": "procedural",
            "kind": "objects",
            "seed": 0,
            "size": 128,
            "format": "webp",
            "quality": 90,
            "out": "runs/data/trace_objects",
            "series": tuple(dataclasses.asdict(one) for one in series),
            "subsets": {},
        }
    )
