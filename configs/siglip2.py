"""FRM for SigLIP2-base at its last hidden state (196 x 768), paper section 4 and Appendix D.2.

    bin/cache_features --host=siglip2 --data=DIR
    bin/train --config=configs/siglip2.py --config.data.folder=DIR

M is what a 10% overhead allows: 5 blocks, 35.4 M parameters, 9.4% of the host; the paper's M for
VLMs is `--config.frm.depth=4`, 28.3 M. Cost: the features of 3,000 images take 0.9 GB in bfloat16;
a step of 16 pairs is 0.7 TFLOP. Expect on TRACE (paper, section 5.1): MSE 43.4% below the frozen
host's.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common

HOST_PARAMS = 375_187_970
"""All of google/siglip2-base-patch16-224, both towers: P_host counts the whole host."""


def get_config() -> ConfigDict:
    """The page."""
    return common.encoder_page("siglip2", host="siglip2", dim=768, host_params=HOST_PARAMS)
