"""A trained FRM on disk: a folder that says itself what it is.

    frm.json              host, tap, weights hash, geometry, training, metrics, SHA-256 of the rest
    params.safetensors    float32 arrays by leaf path, e.g. "blocks/qkv/kernel"

Nothing is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from trace_jax import __version__, files
from trace_jax.errors import FaultsError, UserError
from trace_jax.frm import model
from trace_jax.frm.model import FRMConfig, Params
from trace_jax.types import Features, FeatureSource

SCHEMA = 1
DESCRIPTION_FILE = "frm.json"
PARAMS_FILE = "params.safetensors"


@dataclasses.dataclass(frozen=True)
class Description:
    """What a stored FRM says of itself.

    Attributes:
      config: geometry.
      source: host, tap and weights it was trained on, and fits alone.
      condition: its name in reports, "frm" or "frm_plus".
      dataset: {"name", "version", "hash"} of the training data.
      taxonomy: name of the data's vocabulary, with its version.
      training: the whole training configuration, JSON-able.
      step: training steps done.
      metrics: validation metrics at that step.
      num_params: of this FRM.
      version: of the package that wrote it.
    """

    config: FRMConfig
    source: FeatureSource
    condition: str
    dataset: Mapping[str, str] = dataclasses.field(default_factory=dict)
    taxonomy: str = ""
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    step: int = 0
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    num_params: int = 0
    version: str = __version__


class Recoverer:
    """A loaded FRM bound to the source it was trained on.

    Attributes:
      params: its parameters.
      description: see Description.
      folder: where it was loaded from.
    """

    def __init__(
        self, params: Params, description: Description, folder: Path, any_source: bool
    ) -> None:
        self.params = params
        self.description = description
        self.folder = folder
        self._any_source = any_source
        self._recover = jax.jit(
            functools.partial(_recover, config=description.config), static_argnames="dtype"
        )

    def apply(self, params: Params, features: Features) -> Features:
        """The pure recover function: parameters first, traceable.

        Raises:
          UserError: the features come from another host, tap or weights.
        """
        self._check(features)
        return model.apply(params, features, self.description.config)

    def __call__(self, features: Features) -> Features:
        """Recovers with the stored parameters, jitted."""
        self._check(features)
        tokens = self._recover(
            self.params, features.tokens, features.mask, dtype=str(features.tokens.dtype)
        )
        return features.replace(tokens=tokens)

    def _check(self, features: Features) -> None:
        wanted, found = self.description.source, features.source
        if found != wanted and not self._any_source:
            raise FaultsError(
                f"{self.folder}: this FRM fits other features",
                [
                    f"{f.name}: trained on {getattr(wanted, f.name)!r}, "
                    f"given {getattr(found, f.name)!r}"
                    for f in dataclasses.fields(FeatureSource)
                    if getattr(wanted, f.name) != getattr(found, f.name)
                ],
                "Train one for this host and tap (bin/train), or load it with any_source=True to "
                "try it all the same.",
            )


def save(folder: str | os.PathLike[str], params: Params, description: Description) -> None:
    """Writes an FRM folder whole; a folder already there is replaced as a whole.

    Args:
      folder: e.g. runs/train/siglip2/best.
      params: float32 tree of `description.config`.
      description: `num_params` is filled in here.

    Raises:
      FaultsError: `params` are not those of the configuration.
    """
    folder = Path(folder)
    arrays = {
        name: np.ascontiguousarray(np.asarray(leaf, np.float32))
        for name, leaf in _named(params).items()
    }
    _check_arrays(folder, arrays, description.config)
    data = safetensors.numpy.save(arrays)
    raw = dataclasses.asdict(
        dataclasses.replace(description, num_params=sum(a.size for a in arrays.values()))
    )
    raw |= {"schema": SCHEMA, "params_sha256": hashlib.sha256(data).hexdigest()}
    building, replaced = _neighbour(folder, "building"), _neighbour(folder, "replaced")
    shutil.rmtree(building, ignore_errors=True)
    files.write_bytes(building / PARAMS_FILE, data)
    files.write_json(building / DESCRIPTION_FILE, raw)
    shutil.rmtree(replaced, ignore_errors=True)
    if folder.exists():
        os.replace(folder, replaced)
    os.replace(building, folder)
    shutil.rmtree(replaced, ignore_errors=True)


def load(folder: str | os.PathLike[str], *, any_source: bool = False) -> Recoverer:
    """Loads an FRM folder.

    Args:
      folder: what `save` wrote.
      any_source: take features of any host, tap and weights instead of the trained source only.

    Raises:
      UserError: the folder is missing, damaged, or of a later schema.
    """
    folder = Path(folder)
    description, digest = _describe(folder)
    path = folder / PARAMS_FILE
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}). {_ANEW}") from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise UserError(f"{path}: damaged, its SHA-256 is not the one in frm.json. {_ANEW}")
    try:
        arrays = safetensors.numpy.load(data)
    except SafetensorError as error:
        raise UserError(f"{path}: is no safetensors file ({error}). {_ANEW}") from error
    _check_arrays(path, arrays, description.config)
    like = model.abstract_params(description.config)
    leaves = [jnp.asarray(arrays[name]) for name in _named(like)]
    params = jax.tree.unflatten(jax.tree.structure(like), leaves)
    return Recoverer(params, description, folder, any_source)


def describe(folder: str | os.PathLike[str]) -> Description:
    """The description alone, without reading parameters.

    Raises:
      UserError: as `load`.
    """
    return _describe(Path(folder))[0]


_ANEW = "Train again (bin/train goes on from its checkpoints) or put back a copy."


def _describe(folder: Path) -> tuple[Description, str]:
    path = folder / DESCRIPTION_FILE
    raw = files.read_json(path, "Give a folder that bin/train wrote, e.g. runs/train/NAME/best.")
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        found = raw.get("schema") if isinstance(raw, dict) else type(raw).__name__
        raise UserError(f"{path}: schema {found!r}; this version reads {SCHEMA}.")
    try:
        raw = dict(raw)
        digest = raw.pop("params_sha256")
        del raw["schema"]
        raw["config"] = FRMConfig(**raw["config"])
        raw["source"] = FeatureSource(**raw["source"])
        return Description(**raw), digest
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged or of another version ({error}). {_ANEW}") from error


def _recover(
    params: Params, tokens: jax.Array, mask: jax.Array | None, *, config: FRMConfig, dtype: str
) -> jax.Array:
    return model.recover_tokens(params, tokens, mask, config).astype(dtype)


def _named(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _check_arrays(path: Path, arrays: Mapping[str, np.ndarray], config: FRMConfig) -> None:
    wanted = _named(model.abstract_params(config))
    faults = [f"{name}: not part of this geometry" for name in arrays if name not in wanted]
    for name, leaf in wanted.items():
        if name not in arrays:
            faults.append(f"{name}: missing")
        elif arrays[name].shape != leaf.shape:
            faults.append(f"{name}: shape {arrays[name].shape}, should be {leaf.shape}")
        elif arrays[name].dtype != leaf.dtype:
            faults.append(f"{name}: {arrays[name].dtype}, should be {leaf.dtype}")
        elif not np.isfinite(arrays[name]).all():
            faults.append(f"{name}: holds values that are not finite")
    if faults:
        raise FaultsError(f"{path}: parameters do not fit {config}", faults)


def _neighbour(folder: Path, state: str) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder.with_name(f".{folder.name}.{state}")
