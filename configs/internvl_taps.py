"""The tap point on InternVL3.5-4B: two trainings, Table 9's part on this host.

    bin/ablate --config=configs/internvl_taps.py --data=DIR

The paper's figures stand in the table.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import grids, internvl_post_projector


def get_config() -> ConfigDict:
    """The page."""
    return grids.internvl_taps("internvl_taps", internvl_post_projector.get_config())
