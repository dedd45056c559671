"""FRM for InternVL3.5-4B before its projector (1024 x 1024 at 448 x 448), the other tap of Table 9.

    bin/cache_features --host=internvl --tap=pre_projector --data=DIR
    bin/train --config=configs/internvl_pre_projector.py --config.data.folder=DIR

M=4, r=4: 50.3 M parameters, 1.1% of the host. Cost: the features of 3,000 images take 6.3 GB in
bfloat16. Expect on TRACE (paper, Table 9): R@1 63.84, below the post-projector tap's 74.92.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common


def get_config() -> ConfigDict:
    """The page."""
    return common.vlm_page("internvl_pre_projector", host="internvl", tap="pre_projector")
