"""FRM for Qwen3-VL-4B before its merger (784 x 1024 at 448 x 448), the other tap of Table 9.

    bin/cache_features --host=qwen3_vl --tap=pre_merger --data=DIR
    bin/train --config=configs/qwen3vl_pre_merger.py --config.data.folder=DIR

Expect on TRACE (paper, Table 9): R@1 72.90, below the post-merger tap's 85.28.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common


def get_config() -> ConfigDict:
    """The page."""
    return common.vlm_page("qwen3vl_pre_merger", host="qwen3_vl", tap="pre_merger")
