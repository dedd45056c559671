"""FRM for LLaVA-OneVision-1.5-4B after its merger (256 x 2560 at 448 x 448), paper section 4.

    bin/cache_features --host=llava_onevision --data=DIR
    bin/train --config=configs/llava_onevision_post_merger.py --config.data.folder=DIR
    bin/eval --task=all --host=llava_onevision --data=DIR

M=4, 8 heads, r=4: 314.6 M parameters, 6.6% of the host. Cost: the features of 3,000 images take
3.9 GB in bfloat16. Expect on TRACE (paper, Table 4): R@1 83.97 -> 86.09, material micro-F1
22.31 -> 26.89, description 35.48 -> 39.34, function 39.76 -> 43.07.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common


def get_config() -> ConfigDict:
    """The page."""
    return common.vlm_page("llava_onevision_post_merger", host="llava_onevision", tap="post_merger")
