"""Nano TRACE: identities of the procedural world, pristine and at L0-L4, 96 px.

    bin/generate --config=configs/nano/data.py                     # all, into runs/data/nano_trace
    bin/generate --config=configs/nano/data.py --subset=shipped    # what the package carries

All: 3,000 train, 150 val and 250 test identities of 77 types, 20,800 pictures, about 35 MB, 10 to
15 minutes on 2 cores. Shipped: the first 385 train identities (five of each type) and all of val
and test, 5,110 pictures, under 10 MB. An identity's pictures are the same in both.
"""

from __future__ import annotations

from ml_collections import ConfigDict

_LEVELS = ("L0", "L1", "L2", "L3", "L4")


def get_config() -> ConfigDict:
    """The page."""
    return ConfigDict(
        {
            "name": "nano_trace_full",
            "version": "1.0.0",
            "engine": "procedural",
            "kind": "objects",
            "seed": 0,
            "size": 96,
            "format": "webp",
            "quality": 85,
            "out": "runs/data/nano_trace",
            # `views` are pristine views: 1 is the honest ceiling of retrieval.
            "series": tuple(
                {
                    "name": split,
                    "split": split,
                    "count": count,
                    "views": views,
                    "levels": _LEVELS,
                    "draws": 1,
                }
                for split, count, views in (
                    ("train", 3000, (0,)),
                    ("val", 150, (0, 1)),
                    ("test", 250, (0, 1)),
                )
            ),
            "subsets": {
                "shipped": {
                    "name": "nano_trace",
                    "out": "trace_jax/assets/nano_trace",
                    "counts": {"train": 385, "val": 150, "test": 250},
                },
            },
        }
    )
