"""`qwen3_vl_frm` with our additions (see configs/common.py): for retrieval, and to spare pristine.

bin/cache_features --host=qwen3_vl_nano --data=runs/data/nano_trace
bin/train --config=configs/nano/qwen3_vl_frm_plus.py --config.data.folder=runs/data/nano_trace
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common
from configs.nano import qwen3_vl_frm


def get_config() -> ConfigDict:
    """The page."""
    page = common.add_plus(qwen3_vl_frm.get_config())
    page.name = "qwen3_vl_frm_plus"
    return page
