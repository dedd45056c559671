"""DeepStack and tap point on the nano host `qwen3_vl_nano`: Table 9 in small.

bin/ablate --config=configs/nano/qwen3_vl_taps.py
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import grids
from configs.nano import qwen3_vl_frm


def get_config() -> ConfigDict:
    """The page."""
    return grids.qwen3_vl_taps("qwen3_vl_nano_taps", qwen3_vl_frm.get_config(), streams=1)
