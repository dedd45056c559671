"""Nano TRACE: identities of the procedural world, pristine and at L0-L4, 96 px.

    bin/generate --config=configs/nano/data.py                     # all, into runs/data/nano_trace
    bin/generate --config=configs/nano/data.py --subset=shipped    # what the package carries

All: 3,402 train identities (18 of each of 189 types), 189 val and 300 test ones, 23,835 pictures,
about 40 MB, 8 minutes on 2 cores. Shipped: the first 378 train identities (two of each type) and
all of val and test, 5,691 pictures, under 11 MB. An identity's pictures are the same in both.
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
                    ("train", 3402, (0,)),
                    ("val", 189, (0, 1)),
                    ("test", 300, (0, 1)),
                )
            ),
            "subsets": {
                "shipped": {
                    "name": "nano_trace",
                    "out": "trace_jax/assets/nano_trace",
                    "counts": {"train": 378, "val": 189, "test": 300},
                },
            },
        }
    )
