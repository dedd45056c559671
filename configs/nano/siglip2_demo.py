"""What `bin/demo` trains on the spot: siglip2_frm on the training identities that ship, briefly.

bin/cache_features
bin/train --config=configs/nano/siglip2_demo.py

The `frm` and `frm_plus` that ship were trained by configs/nano/siglip2_frm.py and
siglip2_frm_plus.py on nine times as many identities; this one shows the same job at once.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs.nano import siglip2_frm


def get_config() -> ConfigDict:
    """The page."""
    page = siglip2_frm.get_config()
    page.name = "siglip2_demo"
    page.epochs = 4
    page.evals_per_epoch = 1
    page.loop.patience = 0
    return page
