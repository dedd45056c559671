"""Folders of weights to hosts."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from converters import (
    audit,
    clip,
    folder,
    internvl,
    llava_onevision,
    molmo2,
    qwen2_5_vl,
    qwen3_vl,
    rf_detr,
    siglip2,
)
from converters.leaves import flatten, unflatten
from converters.rules import Piece, plan
from converters.tensors import Checkpoint
from converters.towers import Archive, Family
from trace_jax.errors import FaultsError, UserError
from trace_jax.files import read_json
from trace_jax.hosts import Host, bind, lookup
from trace_jax.hosts.base import abstract_params, check_tap

FAMILIES: dict[str, Callable[[Any], Family]] = {
    "clip": clip.family,
    "llava_onevision": llava_onevision.family,
    "molmo2": molmo2.family,
    "internvl": internvl.family,
    "qwen2_5_vl": qwen2_5_vl.family,
    "qwen3_vl": qwen3_vl.family,
    "rf_detr": rf_detr.family,
    "siglip2": siglip2.family,
}
# Families whose publishers give away single files; they are loaded from those too.
ARCHIVES: dict[str, Callable[[Path], Archive]] = {"rf_detr": rf_detr.archive}
DTYPES = ("float32", "bfloat16", "float16")

# Buffers handed to XLA at this alignment are adopted on a CPU without a copy.
_ALIGNMENT = 64


@dataclasses.dataclass(frozen=True)
class Report:
    """What loading a host found; JSON-able through `dataclasses.asdict`.

    Attributes:
      host, tap, dtype: what was asked for.
      folder: where the weights lay.
      files: weight files read.
      tensors: source tensors that fill leaves.
      leaves: Flax leaves filled.
      num_params: parameters of the host.
      source_dtypes: dtype name to number of tensors.
      ignored_tensors: tensors left aside, with the reason.
      ignored_settings: keys of config.json without influence, with the reason.
      preprocessor: file the image settings come from, or "" (the family's published constants).
      tokenizer: files of the tokenizer; empty where texts cannot be encoded.
      weights_hash: see Checkpoint.weights_hash.
      seconds: time it took.
    """

    host: str
    tap: str
    dtype: str
    folder: str
    files: tuple[str, ...]
    tensors: int
    leaves: int
    num_params: int
    source_dtypes: Mapping[str, int]
    ignored_tensors: Mapping[str, str]
    ignored_settings: Mapping[str, str]
    preprocessor: str
    tokenizer: tuple[str, ...]
    weights_hash: str
    seconds: float

    def text(self) -> str:
        """The report as lines for a terminal."""
        dtypes = ", ".join(f"{count} {name}" for name, count in self.source_dtypes.items())
        lines = [
            f"host      {self.host}, tap {self.tap}, {self.num_params:,} parameters, {self.dtype}",
            f"weights   {self.folder} ({', '.join(self.files)})",
            f"loaded    {self.tensors} tensors ({dtypes}) into {self.leaves} leaves, nothing left "
            f"over, {self.seconds:.1f} s",
            f"images    {self.preprocessor or 'published constants (no file in the folder)'}",
            f"texts     {', '.join(self.tokenizer) or 'no tokenizer: texts cannot be encoded'}",
        ]
        lines += [f"ignored   {key}: {why}" for key, why in self.ignored_tensors.items()]
        reasons = sorted(set(self.ignored_settings.values()))
        for why in reasons:
            keys = [key for key, reason in self.ignored_settings.items() if reason == why]
            lines.append(f"ignored   {', '.join(keys)}: {why}")
        return "\n".join([*lines, f"hash      {self.weights_hash}"])


def load_host(
    name: str,
    weights: str | os.PathLike[str] | None = None,
    *,
    tap: str | None = None,
    dtype: str = "float32",
    mesh: Mesh | None = None,
) -> Host:
    """A host with the weights of a folder or hub id, bound to one tap.

    Tensors are read one at a time in pieces, cast, and placed at once, so that peak host memory
    stays below 1.3 times the model. With a mesh every parameter is laid out over its "model" axis
    by `partition`; without, it lies on JAX's default device.

    Args:
      name: registered host name.
      weights: folder in Hugging Face layout (single or sharded safetensors of any float dtype),
        hub id, or None: the host's asset or published hub id. Families in ARCHIVES take their
        publisher's single file too.
      tap: tap name, None for the family's default.
      dtype: "float32", "bfloat16" or "float16": what parameters are cast to.
      mesh: devices to place parameters on.

    Raises:
      UserError: nothing to load there, or another model.
      FaultsError: everything that does not fit, in one list: config.json's settings, damaged
        files, missing, unused and misshapen tensors.
    """
    return load_host_with_report(name, weights, tap=tap, dtype=dtype, mesh=mesh)[0]


def load_host_with_report(
    name: str,
    weights: str | os.PathLike[str] | None = None,
    *,
    tap: str | None = None,
    dtype: str = "float32",
    mesh: Mesh | None = None,
) -> tuple[Host, Report]:
    """`load_host`, and what it found."""
    start = time.monotonic()
    entry = lookup(name)
    check_tap(name, tap, entry.family.taps)
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    archive = _archive(entry.family.family, weights)
    if archive is None:
        place = folder.locate(name, weights)
        config = read_json(place / folder.CONFIG)
    else:
        place, config = archive.checkpoint.files[0], dict(archive.config)
    try:
        model = entry.family.parse(config)
    except FaultsError:
        raise
    except UserError as error:
        raise UserError(f"{place}: {error}") from error
    family = FAMILIES[entry.family.family](model)
    ignored_settings, faults = audit.check(config, family.sections)
    checkpoint = Checkpoint.open(place) if archive is None else archive.checkpoint
    checkpoint = checkpoint.renamed(family.prefixes)
    faults += checkpoint.faults
    leaves = flatten(abstract_params(entry.family, model, dtype))
    pieces, ignored_tensors, mismatches = plan(
        {path: leaf.shape for path, leaf in leaves.items()},
        family.rules,
        {key: info.shape for key, info in checkpoint.tensors.items()},
        family.ignored,
    )
    used = sorted({piece.key for found in pieces.values() for piece in found})
    faults += mismatches
    faults += [
        f"{key}: dtype {checkpoint.tensors[key].dtype}, parameters are floating point"
        for key in used
        if key in checkpoint.tensors and "F" not in checkpoint.tensors[key].dtype
    ]
    if faults:
        raise FaultsError(
            f"{place}: does not hold a {entry.family.family} host",
            faults,
            "Check that --weights and --host belong together and that every file is complete.",
        )
    params = _fill(checkpoint, leaves, pieces, mesh)
    if archive is None:
        preprocessor, preprocessor_file = folder.preprocessor_config(place)
    else:
        preprocessor, preprocessor_file = dict(archive.preprocessor), place.name
    host = bind(
        name,
        config,
        params,
        checkpoint.weights_hash(used),
        preprocessor=preprocessor,
        tokenizer=place,
        tap=tap,
    )
    dtypes = [checkpoint.tensors[key].dtype for key in used]
    return host, Report(
        host=name,
        tap=host.spec.tap.name,
        dtype=dtype,
        folder=str(place),
        files=tuple(file.name for file in checkpoint.files),
        tensors=len(used),
        leaves=len(leaves),
        num_params=host.spec.num_params,
        source_dtypes={d: dtypes.count(d) for d in sorted(set(dtypes))},
        ignored_tensors=ignored_tensors,
        ignored_settings=ignored_settings,
        preprocessor=preprocessor_file,
        tokenizer=tuple(file.name for file in host.tokenizer.files),
        weights_hash=host.spec.weights_hash,
        seconds=time.monotonic() - start,
    )


def _archive(family: str, weights: str | os.PathLike[str] | None) -> Archive | None:
    """The single file that `weights` names, for a family that has such files."""
    if weights is None or family not in ARCHIVES:
        return None
    path = Path(weights).expanduser()
    return ARCHIVES[family](path) if path.is_file() else None


def partition(shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """How a parameter is laid out: its longest axis that the mesh's "model" axis divides is split
    over it (the last of equally long ones); everything else is replicated. A mesh without an axis
    of that name replicates everything.
    """
    size = mesh.shape["model"] if "model" in mesh.shape else 1
    fitting = [(length, axis) for axis, length in enumerate(shape) if length % size == 0]
    if size == 1 or not fitting:
        return PartitionSpec()
    return PartitionSpec(*("model" if a == max(fitting)[1] else None for a in range(len(shape))))


def _fill(
    checkpoint: Checkpoint,
    leaves: Mapping[str, jax.ShapeDtypeStruct],
    pieces: Mapping[str, Sequence[Piece]],
    mesh: Mesh | None,
) -> dict[str, Any]:
    filled: dict[str, jax.Array] = {}
    # Largest first: the copy that placing a leaf may take is paid while little else is there.
    for path in sorted(leaves, key=lambda p: (-math.prod(leaves[p].shape), p)):
        leaf = leaves[path]
        values = _aligned(leaf.shape, leaf.dtype)
        for piece in pieces[path]:
            _read_piece(checkpoint, piece, values)
        filled[path] = _place(values, mesh)
    return unflatten(filled)


def _read_piece(checkpoint: Checkpoint, piece: Piece, leaf: np.ndarray) -> None:
    """Fills its part of a leaf. Rows that another leaf takes are read past, for the hash."""
    target = leaf[piece.into] if piece.into else leaf
    info = checkpoint.tensors[piece.key]
    along = piece.transform.rows_to
    if along is None or not info.shape:
        target[...] = piece.transform.forward(checkpoint.read(piece.key))
        return
    low, high = piece.rows(info.shape[0])
    view = np.moveaxis(target, along, 0)
    for first, last, values in checkpoint.pieces(piece.key):
        start, stop = max(first, low), min(last, high)
        if start < stop:
            part = piece.transform.forward(values[start - first : stop - first])
            view[start - low : stop - low] = np.moveaxis(part, along, 0)


def _place(values: np.ndarray, mesh: Mesh | None) -> jax.Array:
    if mesh is None:
        return jax.device_put(values, may_alias=True).block_until_ready()
    sharding = NamedSharding(mesh, partition(values.shape, mesh))
    placed = jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])
    return placed.block_until_ready()


def _aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    size = math.prod(shape) * np.dtype(dtype).itemsize
    buffer = np.empty(size + _ALIGNMENT, np.uint8)
    offset = -buffer.ctypes.data % _ALIGNMENT
    return buffer[offset : offset + size].view(dtype).reshape(shape)
