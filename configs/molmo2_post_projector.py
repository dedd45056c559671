"""FRM for Molmo2-4B after its projector (725 x 2560 at 448 x 448), paper section 4.

    bin/cache_features --host=molmo2 --data=DIR
    bin/train --config=configs/molmo2_post_projector.py --config.data.folder=DIR
    bin/eval --task=all --host=molmo2 --data=DIR

M=4, 8 heads, r=4: 314.6 M parameters, 6.5% of the host. The stock processor makes 196 tokens of a
small copy of a picture and 529 of its tiles; FRM sees them as one sequence. Cost: the features of
3,000 images take 11 GB in bfloat16. Expect on TRACE (paper, Table 4): R@1 85.06 -> 90.00, material
micro-F1 23.56 -> 27.52, description 33.80 -> 38.13, function 42.64 -> 47.95.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common


def get_config() -> ConfigDict:
    """The page."""
    return common.vlm_page("molmo2_post_projector", host="molmo2", tap="post_projector")
