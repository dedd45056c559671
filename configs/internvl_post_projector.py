"""FRM for InternVL3.5-4B after its projector (256 x 2560 at 448 x 448), paper section 4.

    bin/cache_features --host=internvl --data=DIR
    bin/train --config=configs/internvl_post_projector.py --config.data.folder=DIR
    bin/eval --task=all --host=internvl --data=DIR

M=4, r=4: 314.6 M parameters, 6.6% of the host. Cost: the features of 3,000 images take 3.9 GB in
bfloat16. Expect on TRACE (paper, Table 4): R@1 59.09 -> 74.92, material micro-F1 26.10 -> 35.91,
description 27.01 -> 35.42, function 36.13 -> 40.48.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common


def get_config() -> ConfigDict:
    """The page."""
    return common.vlm_page("internvl_post_projector", host="internvl", tap="post_projector")
