"""DeepStack and tap point on Qwen3-VL-4B: five trainings, Table 9's part on this host.

    bin/ablate --config=configs/qwen3vl_taps.py --data=DIR

The streams' recoverers are those of configs/qwen3vl_deepstack.py. The paper's figures stand in the
table.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import grids, qwen3vl_post_merger


def get_config() -> ConfigDict:
    """The page."""
    return grids.qwen3_vl_taps("qwen3vl_taps", qwen3vl_post_merger.get_config(), streams=3)
