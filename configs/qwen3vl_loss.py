"""Which recovery loss, on Qwen3-VL-4B after its merger: four trainings (paper, section 5.3 i).

    bin/ablate --config=configs/qwen3vl_loss.py --data=DIR

Expect on TRACE (paper): LN-MSE below no FRM in R@1, MSE + cosine best, Huber + cosine close to it.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import grids, qwen3vl_post_merger


def get_config() -> ConfigDict:
    """The page."""
    return grids.losses(
        "qwen3vl_loss",
        qwen3vl_post_merger.get_config(),
        ("feature_recovery/cosine", "description/identity_accuracy", "retrieval/r_at_1"),
    )
