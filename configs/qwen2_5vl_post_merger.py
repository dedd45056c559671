"""FRM for Qwen2.5-VL-3B after its merger (256 x 2048 at 448 x 448), paper section 4.

    bin/cache_features --host=qwen2_5_vl --data=DIR
    bin/train --config=configs/qwen2_5vl_post_merger.py --config.data.folder=DIR
    bin/eval --task=all --host=qwen2_5_vl --data=DIR

M=4, r=4: 201.3 M parameters, 5.4% of the host. Cost: the features of 3,000 images take 3.1 GB in
bfloat16. Expect on TRACE (paper, Table 4): R@1 60.20 -> 72.03, material micro-F1 30.50 -> 36.78,
description 40.50 -> 44.00, function 38.11 -> 43.62.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common


def get_config() -> ConfigDict:
    """The page."""
    return common.vlm_page("qwen2_5vl_post_merger", host="qwen2_5_vl", tap="post_merger")
