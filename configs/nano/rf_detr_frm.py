"""FRM on the nano detector `rf_detr_nano`: one module for the maps of all four stages, M=1.

    bin/cache_features --host=rf_detr_nano --data=runs/data/nano_scenes
    bin/train --config=configs/nano/rf_detr_frm.py --config.data.folder=runs/data/nano_scenes

Pairs are renders of one layout before and after the fire. The loss is per stage, averaged: all
stages have equally many tokens.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common


def get_config() -> ConfigDict:
    """The page."""
    page = common.frm_page("rf_detr_frm", host="rf_detr_nano", tap="backbone", depth=1)
    page.epochs = 20
    page.data.batch_size = page.data.val_batch_size = 16
    page.loop.best_metric, page.loop.best_mode = "mse", "min"
    return page
