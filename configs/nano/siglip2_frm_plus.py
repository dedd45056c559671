"""`frm_plus` on `siglip2_nano`: siglip2_frm and the additions that common.add_plus names.

bin/cache_features --host=siglip2_nano
bin/train --config=configs/nano/siglip2_frm_plus.py
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common
from configs.nano import siglip2_frm


def get_config() -> ConfigDict:
    """The page."""
    page = common.add_plus(siglip2_frm.get_config())
    page.name = "siglip2_frm_plus"
    return page
