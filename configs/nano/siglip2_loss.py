"""Which recovery loss, on the nano host `siglip2_nano` and the data that ships.

    bin/ablate --config=configs/nano/siglip2_loss.py

Four trainings of half a minute each on 2 cores, of two identities a type: a rehearsal of
configs/qwen3vl_loss.py, not its result.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import grids
from configs.nano import siglip2_demo


def get_config() -> ConfigDict:
    """The page."""
    return grids.losses(
        "siglip2_nano_loss",
        siglip2_demo.get_config(),
        ("feature_recovery/mse", "feature_recovery/cosine", "retrieval/r_at_1"),
    )
