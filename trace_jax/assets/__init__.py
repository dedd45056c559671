"""The embedded default: a small data set, hosts and recovery modules that ship with the package.

Each was made by a command that the README or its config page names; nothing came from elsewhere.
"""

from __future__ import annotations

from pathlib import Path

from trace_jax.errors import UserError

FOLDER = Path(__file__).resolve().parent


def folder(*names: str) -> Path:
    """The folder of one asset, e.g. folder("siglip2_nano") or folder("frm", "siglip2_nano", "frm").

    Raises:
      UserError: this installation lacks it.
    """
    path = FOLDER.joinpath(*names)
    if not path.is_dir():
        raise UserError(
            f"{path}: this asset is missing from the installation. "
            "Clone the repository whole, or give your own with --data / --weights / --frm."
        )
    return path
