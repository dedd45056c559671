"""The weight of the cosine term, on the nano host `siglip2_nano` and the data that ships.

    bin/ablate --config=configs/nano/siglip2_lambda.py

Three trainings of half a minute each on 2 cores; see siglip2_loss.py.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import grids
from configs.nano import siglip2_demo


def get_config() -> ConfigDict:
    """The page."""
    return grids.weights(
        "siglip2_nano_lambda",
        siglip2_demo.get_config(),
        ("feature_recovery/mse", "feature_recovery/cosine", "retrieval/r_at_1"),
    )
