"""FRM for CLIP ViT-L/14 at its last hidden state without CLS (256 x 1024), Appendix D.2.

    bin/cache_features --host=clip --data=DIR
    bin/train --config=configs/clip_l14.py --config.data.folder=DIR

M is what a 10% overhead allows: 3 blocks, 37.7 M parameters, 8.8% of the host; the paper's M for
VLMs is `--config.frm.depth=4`, 50.3 M. Cost: the features of 3,000 images take 1.6 GB in bfloat16;
a step of 16 pairs is 0.9 TFLOP. Expect on TRACE (paper, section 5.1): MSE 30.3% below the frozen
host's.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common

HOST_PARAMS = 427_616_513
"""All of openai/clip-vit-large-patch14, both towers: P_host counts the whole host."""


def get_config() -> ConfigDict:
    """The page."""
    return common.encoder_page("clip_l14", host="clip", dim=1024, host_params=HOST_PARAMS)
