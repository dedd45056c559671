"""FRM with the paper's loss on the nano host `clip_nano` (patch tokens, 36 x 192), M=2.

bin/cache_features --host=clip_nano
bin/train --config=configs/nano/clip_frm.py
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs.nano import siglip2_frm


def get_config() -> ConfigDict:
    """The page."""
    page = siglip2_frm.get_config()
    page.name = "clip_frm"
    page.host.name = "clip_nano"
    return page
