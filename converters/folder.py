"""Where a host's weights lie: an asset of the package, a local folder, or the Hugging Face hub."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from converters.tensors import INDEX, SINGLE
from trace_jax.errors import UserError
from trace_jax.files import read_json
from trace_jax.hosts import lookup
from trace_jax.hosts.text import TOKENIZER_FILES

CONFIG = "config.json"
PREPROCESSOR = "preprocessor_config.json"
# transformers 5 may write the image processor's settings here instead.
PROCESSOR = "processor_config.json"

_HUB_FILES = [CONFIG, PREPROCESSOR, PROCESSOR, SINGLE, INDEX, "model-*.safetensors"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_ASSETS = Path(__file__).resolve().parent.parent / "trace_jax" / "assets"


def locate(name: str, weights: str | os.PathLike[str] | None) -> Path:
    """The local folder of a host's weights; fetches it when `weights` is a hub id.

    Args:
      name: registered host name.
      weights: a folder, a hub id "owner/name", or None: the host's asset or published hub id.

    Raises:
      UserError: no such folder, no such repository, or no network.
    """
    entry = lookup(name)
    if weights is None:
        if entry.asset is None:
            return _fetch(name, entry.family.hub_id)
        folder = _ASSETS / entry.asset
        if not (folder / CONFIG).is_file():
            raise UserError(
                f"{folder}: the weights of {name}, part of the package, are missing. "
                f"Check the installation, or point --weights at a folder that holds them."
            )
        return folder
    folder = Path(weights).expanduser()
    if folder.is_dir():
        if not (folder / CONFIG).is_file():
            raise UserError(
                f"{folder}: has no {CONFIG}. Point --weights at a folder in Hugging Face layout "
                f"({CONFIG}, {SINGLE})."
            )
        return folder
    if folder.is_file():
        raise UserError(f"{folder}: is a file; --weights takes the folder it lies in.")
    if _HUB_ID.fullmatch(str(weights)):
        return _fetch(name, str(weights))
    raise UserError(f"{folder}: no such folder. --weights takes a folder or a hub id owner/name.")


def preprocessor_config(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """The image processor's settings and the file they come from, or (None, "")."""
    if (folder / PREPROCESSOR).is_file():
        return read_json(folder / PREPROCESSOR), PREPROCESSOR
    if (folder / PROCESSOR).is_file():
        nested = read_json(folder / PROCESSOR)
        if "image_processor" in nested:
            return nested["image_processor"], PROCESSOR
    return None, ""


def _fetch(name: str, hub_id: str) -> Path:
    # Imported here: a local folder needs none of it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=[*_HUB_FILES, *TOKENIZER_FILES]))
    except RepositoryNotFoundError as error:
        raise UserError(
            f"{hub_id}: no folder of that name, and the Hugging Face hub knows no such repository "
            "(or it is private). "
            "Check --weights."
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise UserError(
            f"{hub_id}: no folder of that name, and the weights of {name} could not be fetched "
            f"from the Hugging Face hub ({type(error).__name__}) nor found in its local cache. "
            "Without network, point --weights=DIR at a folder that holds them, or use "
            "--host=siglip2_nano, whose weights come with the package."
        ) from error
