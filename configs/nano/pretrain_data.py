"""Pictures to pretrain the nano hosts on: random variants that are no identities of nano_trace.

    bin/generate --config=configs/nano/pretrain_data.py

About 12 minutes on 2 cores; 34,020 pictures of 96 px, 11,340 variants (60 of each of 189 types) in
three pristine views, with captions. No burnt object: a host that has seen fire would be another
study.
"""

from __future__ import annotations

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The page."""
    return ConfigDict(
        {
            "name": "nano_pretrain",
            "version": "1.0.0",
            "engine": "procedural",
            "kind": "objects",
            "seed": 0,
            "size": 96,
            "format": "webp",
            "quality": 90,
            "out": "runs/data/nano_pretrain",
            "subsets": {},
            "series": (
                {
                    "name": "pretrain",
                    "split": "train",
                    "count": 11340,
                    "views": (0, 1, 2),
                    "levels": (),
                },
            ),
        }
    )
