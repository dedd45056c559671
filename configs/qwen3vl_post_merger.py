"""FRM for Qwen3-VL-4B after its merger (196 x 2560 at 448 x 448), paper section 4.

    bin/cache_features --host=qwen3_vl --data=DIR
    bin/train --config=configs/qwen3vl_post_merger.py --config.data.folder=DIR
    bin/eval --task=all --host=qwen3_vl --data=DIR

M=4, r=4: 314.6 M parameters, 7.86% of the host in the paper's count. Cost: the features of 3,000
images take 3 GB in bfloat16. Expect on TRACE (paper, Table 4): R@1 74.55 -> 85.28, material
micro-F1 36.00 -> 39.24, description 41.67 -> 45.15, function 41.02 -> 46.96.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common


def get_config() -> ConfigDict:
    """The page."""
    return common.vlm_page("qwen3vl_post_merger", host="qwen3_vl", tap="post_merger")
