"""Nano scenes: squares of 192 px for the nano detector, each layout pristine and at L0-L4.

    bin/generate --config=configs/nano/scenes_data.py                      # pairs, 5,400 pictures
    bin/generate --config=configs/nano/scenes_data.py --subset=pretrain    # 4,000 before any fire
    bin/generate --config=configs/nano/scenes_data.py --subset=shipped     # what the package has

Pairs: 600 train, 100 val and 200 test layouts, about 10 minutes on 2 cores. Pretrain: layouts of
identities of their own, none burnt: a detector that has seen fire would be another study; about
6 minutes. Shipped: the first layouts of the pairs, the same pictures.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from trace_jax.types import PRISTINE, SEVERITIES


def get_config() -> ConfigDict:
    """The page."""
    return ConfigDict(
        {
            "name": "nano_scenes_full",
            "version": "1.0.0",
            "engine": "procedural",
            "kind": "scenes",
            "seed": 0,
            "width": 192,
            "height": 192,
            "format": "webp",
            "quality": 85,
            "out": "runs/data/nano_scenes",
            "series": tuple(
                {"name": name, "split": split, "count": count, "severities": severities}
                for name, split, count, severities in (
                    ("train", "train", 600, SEVERITIES),
                    ("val", "val", 100, SEVERITIES),
                    ("test", "test", 200, SEVERITIES),
                    ("pretrain", "train", 0, (PRISTINE,)),
                )
            ),
            "subsets": {
                "pretrain": {
                    "name": "nano_scenes_pretrain",
                    "out": "runs/data/nano_scenes_pretrain",
                    "counts": {"train": 0, "val": 0, "test": 0, "pretrain": 4000},
                },
                "shipped": {
                    "name": "nano_scenes",
                    "out": "trace_jax/assets/nano_scenes",
                    "counts": {"train": 60, "val": 40, "test": 120, "pretrain": 0},
                },
            },
        }
    )
