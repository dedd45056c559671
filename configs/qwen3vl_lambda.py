"""The weight of the cosine term, on Qwen3-VL-4B after its merger (paper, section 5.3 ii).

    bin/ablate --config=configs/qwen3vl_lambda.py --data=DIR

Expect on TRACE (paper): R@1 best at 0.1, within 1.16 points over 0.01, 0.1 and 0.5; the lowest
cosine distance at 0.5.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import grids, qwen3vl_post_merger


def get_config() -> ConfigDict:
    """The page."""
    return grids.weights(
        "qwen3vl_lambda",
        qwen3vl_post_merger.get_config(),
        ("feature_recovery/cosine", "description/identity_accuracy", "retrieval/r_at_1"),
    )
