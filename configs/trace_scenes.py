"""The scene-level subset, procedural: 600 layouts, each pristine and at L0-L4, 3,600 pictures.

    bin/generate --config=configs/trace_scenes.py

About 25 minutes on 2 cores at 384 x 288; the count is a matter of time, not of the world (the
paper has 21,400 scenes; `--config.series` or --scenes=N gives any number).
"""

from __future__ import annotations

from ml_collections import ConfigDict

from trace_jax.types import SEVERITIES


def get_config() -> ConfigDict:
    """The page."""
    return ConfigDict(
        {
            "name": "trace_scenes",
            "version": "1.0.0",
            "engine": "procedural",
            "kind": "scenes",
            "seed": 0,
            "width": 384,
            "height": 288,
            "format": "webp",
            "quality": 88,
            "out": "runs/data/trace_scenes",
            "series": tuple(
                {"name": s, "split": s, "count": n, "severities": SEVERITIES}
                for s, n in (("train", 480), ("val", 60), ("test", 60))
            ),
            "subsets": {},
        }
    )
