"""Burnt pictures that a nano vision-language host is asked about the damage of.

    bin/generate --config=configs/nano/pretrain_burnt.py

About 5 minutes on 2 cores; 9,000 pictures of 96 px, 1,500 further variants of the pretraining
stream, pristine and at L0-L4. The host never learns what they were: only their damage is asked.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs.nano import pretrain_data
from trace_jax.types import LEVELS


def get_config() -> ConfigDict:
    """The page: variants that follow those of pretrain_data."""
    config = pretrain_data.get_config()
    (pictures,) = config.series
    config.name = "nano_pretrain_burnt"
    config.out = "runs/data/nano_pretrain_burnt"
    config.series = (
        {**pictures, "first": pictures["count"], "count": 1500, "views": (0,), "levels": LEVELS},
    )
    return config
