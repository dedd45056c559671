"""Fitting the controls on a cache's training pairs, and keeping them in a folder.

controls.json           what they were fitted on, SHA-256 of the rest
controls.safetensors    arrays by control, e.g. "ridge/kernel"
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from trace_jax import files
from trace_jax.baselines import controls
from trace_jax.data.feature_cache import FeatureCache
from trace_jax.data.pairs import PairSet, pairs
from trace_jax.errors import FaultsError, UserError
from trace_jax.types import FeatureSource

SCHEMA = 1
NAMES = ("mean_shift", "mean_shift_oracle", "ridge")
DESCRIPTION_FILE = "controls.json"
PARAMS_FILE = "controls.safetensors"


@dataclasses.dataclass(frozen=True)
class Controls:
    """Fitted controls.

    Attributes:
      params: control name -> its parameters.
      source: whose features they fit.
      dataset: {"name", "version", "hash"} of the training data.
      pairs: training pairs they were fitted on.
      identities: identities behind those.
      sha256: of the parameters.
    """

    params: Mapping[str, Mapping[str, np.ndarray]]
    source: FeatureSource
    dataset: Mapping[str, str]
    pairs: int
    identities: int
    sha256: str


def fit(cache: FeatureCache, *, batch_size: int = 256) -> Controls:
    """Fits all controls on the train split; ridge's strength is chosen on the val split.

    Without a val split in the cache a tenth of the training identities takes its place.

    Raises:
      UserError: the cache has no training pairs.
    """
    train = pairs(cache, "train")
    if any(row.split == "val" for row in cache.rows):
        fitted, held = train, pairs(cache, "val")
    else:
        if len(train.identities) < 2:
            raise UserError(f"{cache.folder}: one training identity is not enough for controls.")
        held_count = max(1, len(train.identities) // 10)
        fitted = pairs(cache, "train", identities=train.identities[:-held_count])
        held = pairs(cache, "train", identities=train.identities[-held_count:])
    params = {
        "mean_shift": controls.fit_mean_shift(lambda: _batches(cache, train, batch_size)),
        "mean_shift_oracle": controls.fit_mean_shift_oracle(
            lambda: _batches(cache, train, batch_size)
        ),
        "ridge": controls.fit_ridge(
            lambda: _batches(cache, fitted, batch_size), lambda: _batches(cache, held, batch_size)
        ),
    }
    return Controls(
        params=params,
        source=cache.source,
        dataset={
            "name": cache.manifest.dataset_name,
            "version": cache.manifest.dataset_version,
            "hash": cache.manifest.dataset_hash,
        },
        pairs=len(train),
        identities=len(train.identities),
        sha256=hashlib.sha256(_encoded(params)).hexdigest(),
    )


def save(folder: str | Path, fitted: Controls) -> None:
    """Writes a controls folder; the description goes last, so its presence means whole."""
    folder = Path(folder)
    files.write_bytes(folder / PARAMS_FILE, _encoded(fitted.params))
    value = dataclasses.asdict(fitted) | {"schema": SCHEMA}
    del value["params"]
    files.write_json(folder / DESCRIPTION_FILE, value)


def load(folder: str | Path, source: FeatureSource) -> Controls:
    """Reads what `save` wrote.

    Raises:
      UserError: the folder is missing, damaged or of another schema.
      FaultsError: the controls fit features of another host, tap or weights.
    """
    folder = Path(folder)
    raw = files.read_json(folder / DESCRIPTION_FILE, "Give a controls folder that bin/eval wrote.")
    if not isinstance(raw, dict) or raw.pop("schema", None) != SCHEMA:
        raise UserError(f"{folder / DESCRIPTION_FILE}: is not of schema {SCHEMA}.")
    try:
        data = (folder / PARAMS_FILE).read_bytes()
        arrays = safetensors.numpy.load(data)
        own = FeatureSource(**raw.pop("source"))
    except (OSError, SafetensorError, TypeError, KeyError) as error:
        raise UserError(f"{folder}: cannot be read ({error}). Fit anew: remove it.") from error
    if hashlib.sha256(data).hexdigest() != raw["sha256"]:
        raise UserError(f"{folder / PARAMS_FILE}: damaged. Fit anew: remove the folder.")
    faults = [
        f"{f.name}: fitted on {getattr(own, f.name)!r}, features are {getattr(source, f.name)!r}"
        for f in dataclasses.fields(FeatureSource)
        if getattr(own, f.name) != getattr(source, f.name)
    ]
    if faults:
        raise FaultsError(f"{folder}: these controls fit other features", faults)
    params: dict[str, dict[str, np.ndarray]] = {name: {} for name in NAMES}
    for key, array in arrays.items():
        name, leaf = key.split("/", 1)
        params[name][leaf] = array
    return Controls(params=params, source=own, **raw)


def _batches(cache: FeatureCache, chosen: PairSet, batch_size: int) -> Iterator[dict[str, Any]]:
    for at in range(0, len(chosen), batch_size):
        part = slice(at, at + batch_size)
        degraded, pristine = chosen.degraded[part], chosen.pristine[part]
        masks = cache.mask(degraded), cache.mask(pristine)
        both = masks[0] & masks[1] if masks[0] is not None and masks[1] is not None else None
        yield {
            "degraded": cache.tokens(degraded, "float32"),
            "pristine": cache.tokens(pristine, "float32"),
            "mask": both,
            "severity": chosen.severity[part],
        }


def _encoded(params: Mapping[str, Mapping[str, np.ndarray]]) -> bytes:
    return safetensors.numpy.save(
        {
            f"{name}/{leaf}": np.array(array, order="C")
            for name, own in params.items()
            for leaf, array in own.items()
        }
    )
