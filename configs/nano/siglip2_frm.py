"""FRM with the paper's loss on the nano host `siglip2_nano` (36 x 192), M=2, 0.9 M parameters.

bin/cache_features --host=siglip2_nano
bin/train --config=configs/nano/siglip2_frm.py [--config.seed=1 --workdir=runs/train/seed1]
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common


def get_config() -> ConfigDict:
    """The page."""
    page = common.frm_page("siglip2_frm", host="siglip2_nano", tap="last_hidden_state", depth=2)
    page.epochs = 6
    page.evals_per_epoch = 2
    # The paper's loss is judged by what it minimises; frm_plus, which adds a term for it, by R@1.
    page.loop.best_metric, page.loop.best_mode = "mse", "min"
    return page
