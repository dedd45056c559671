"""FRM for RF-DETR-Medium: one module for the maps of stages 3, 6, 9 and 12 (paper, section 4).

    bin/cache_features --host=rf_detr --data=SCENES
    bin/train --config=configs/rfdetr_medium.py --config.data.folder=SCENES
    bin/eval --task=detection --host=rf_detr --data=SCENES

M=1, r=4: 1.77 M parameters, 5.25% of the host. Pairs are pristine and burnt renders of one layout;
released scenes have none (see the README on paired scenes). Cost: 4 MB of features a picture in
bfloat16; `--config.data.features=online` keeps none. For the fine-tuned host give its weights:
`--config.host.weights=FOLDER`. Expect on TRACE (paper, Table 2): 30.8% above the frozen host's mAP,
pristine scenes within 0.001.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common


def get_config() -> ConfigDict:
    """The page."""
    page = common.frm_page("rfdetr_medium", host="rf_detr", tap="backbone", depth=1)
    page.data.batch_size = page.data.val_batch_size = 16
    page.optim.lr = 3e-4
    page.loop.best_metric, page.loop.best_mode = "mse", "min"
    page.loop.patience = 8
    return page
