"""FRM with the paper's loss on the nano host `qwen3_vl_nano` (9 x 192 after the merger), M=2.

bin/cache_features --host=qwen3_vl_nano --data=runs/data/nano_trace
bin/train --config=configs/nano/qwen3_vl_frm.py --config.data.folder=runs/data/nano_trace
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common


def get_config() -> ConfigDict:
    """The page."""
    page = common.frm_page("qwen3_vl_frm", host="qwen3_vl_nano", tap="post_merger", depth=2)
    page.epochs = 6
    page.evals_per_epoch = 2
    page.loop.best_metric, page.loop.best_mode = "mse", "min"
    return page
