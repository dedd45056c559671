"""Checkpoints: whole or absent, checksummed, and proof against a damaged newest one.

    checkpoints/00000400/state/          arrays, written by Orbax, one entry a leaf path
    checkpoints/00000400/meta.json       step, stamp (what run this is), progress of the loop
    checkpoints/00000400/checksums.json  SHA-256 of every other file

A checkpoint is built under a hidden name and renamed as its last act, so a folder with a
number is complete; its checksums are verified before it is trusted.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from trace_jax import files
from trace_jax.errors import FaultsError, UserError
from trace_jax.train.state import named_leaves


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One verified checkpoint on disk."""

    folder: Path
    meta: dict[str, Any]

    @property
    def step(self) -> int:
        """Steps done when it was taken."""
        return int(self.meta["step"])


def save(root: Path, state: Any, meta: dict[str, Any]) -> Path:
    """Writes `root/<meta["step"]>` atomically; a collective call of all processes.

    Args:
      root: the run's `checkpoints` folder.
      state: any pytree of jax arrays, sharded or not.
      meta: JSON-able; must hold "step".
    """
    name = f"{meta['step']:08d}"
    final, building = root / name, root / f".{name}.building"
    first = jax.process_index() == 0
    if first:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
    _barrier("building")
    with ocp.StandardCheckpointer() as writer:
        writer.save((building / "state").absolute(), named_leaves(state))
    _barrier("written")
    if first:
        files.write_json(building / "meta.json", meta)
        sums = {
            str(path.relative_to(building)): files.sha256_file(path)
            for path in sorted(building.rglob("*"))
            if path.is_file()
        }
        files.write_json(building / "checksums.json", sums)
        _discard(final)
        os.replace(building, final)
    _barrier("named")
    return final


def prune(root: Path, keep: int, best_step: int | None) -> None:
    """Removes all but the newest `keep` checkpoints and the best one."""
    if jax.process_index() == 0:
        for folder in _folders(root)[keep:]:
            if best_step is None or folder.name != f"{best_step:08d}":
                _discard(folder)


def drop_after(root: Path, step: int) -> None:
    """Removes checkpoints newer than `step`: damaged ones that `newest` fell back from."""
    if jax.process_index() == 0:
        for folder in _folders(root):
            if int(folder.name) > step:
                _discard(folder)


def newest(root: Path) -> Checkpoint | None:
    """The newest checkpoint whose checksums hold; damaged ones are named on stderr and skipped.

    Raises:
      UserError: there are checkpoints and every one is damaged.
    """
    folders = _folders(root)
    for folder in folders:
        fault = find_damage(folder)
        if fault is None:
            return Checkpoint(folder, files.read_json(folder / "meta.json"))
        print(
            f"{folder}: damaged checkpoint ({fault}); falling back to the one before.",
            file=sys.stderr,
        )
    if folders:
        raise UserError(
            f"{root}: all {len(folders)} checkpoints are damaged. Move the folder away to start "
            "anew, or put back a copy."
        )
    return None


def find_damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint folder, or None."""
    try:
        sums = files.read_json(folder / "checksums.json")
        for name, expected in sums.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if files.sha256_file(path) != expected:
                return f"{name} does not match its checksum"
        files.read_json(folder / "meta.json")
    except (UserError, OSError) as error:
        return str(error)
    return None


def require_stamp(found: Checkpoint, stamp: dict[str, Any]) -> None:
    """Refuses a checkpoint of another run.

    Raises:
      FaultsError: every value of the stamps that differs.
    """
    before, now = _flat(found.meta["stamp"]), _flat(stamp)
    faults = [
        f"{key}: {before.get(key, 'absent')} in the checkpoint, {now.get(key, 'absent')} now"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]
    if faults:
        raise FaultsError(
            f"{found.folder}: belongs to another run",
            faults,
            "Give the same configuration, or another --workdir.",
        )


def restore(checkpoint: Checkpoint, like: Any) -> Any:
    """The saved state, bitwise, placed as `like` says.

    Args:
      checkpoint: from `newest`.
      like: pytree of ShapeDtypeStruct with shardings, of the state's structure.

    Raises:
      FaultsError: leaves are missing, extra, or of another shape or dtype; all are listed.
    """
    wanted = named_leaves(like)
    with ocp.StandardCheckpointer() as reader:
        path = (checkpoint.folder / "state").absolute()
        found = reader.metadata(path).item_metadata.tree
        _compare(checkpoint.folder, found, wanted)
        arrays = reader.restore(path, wanted)
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in wanted])


def load_params(folder: str | os.PathLike[str], like: Any) -> Any:
    """Parameters of a checkpoint, or of a run's newest one, as numpy arrays.

    Args:
      folder: `checkpoints/<step>`, the `checkpoints` folder, or the run's workdir.
      like: pytree of arrays or ShapeDtypeStructs with the parameters' structure.

    Raises:
      UserError: no checkpoint there, it is damaged, or its parameters do not fit `like`.
    """
    folder = Path(folder)
    if (folder / "checksums.json").exists():
        fault = find_damage(folder)
        if fault is not None:
            raise UserError(f"{folder}: damaged checkpoint ({fault}). Choose another step.")
        chosen = Checkpoint(folder, files.read_json(folder / "meta.json"))
    else:
        root = folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder
        found = newest(root)
        if found is None:
            raise UserError(f"{folder}: holds no checkpoint. Give a training run's folder.")
        chosen = found
    wanted = {f"params/{name}": leaf for name, leaf in named_leaves(like).items()}
    with ocp.PyTreeCheckpointer() as reader:
        path = (chosen.folder / "state").absolute()
        saved = {k: v for k, v in reader.metadata(path).item_metadata.tree.items()}
        _compare(chosen.folder, {k: v for k, v in saved.items() if k in wanted}, wanted)
        arrays = reader.restore(
            path,
            item={name: 0 for name in wanted},
            restore_args={name: ocp.RestoreArgs(restore_type=np.ndarray) for name in wanted},
            partial_restore=True,
        )
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in wanted])


def _compare(folder: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    faults = [f"{name}: in the checkpoint, not in this run" for name in found if name not in wanted]
    for name, leaf in wanted.items():
        if name not in found:
            faults.append(f"{name}: not in the checkpoint")
        elif tuple(found[name].shape) != tuple(leaf.shape):
            faults.append(
                f"{name}: shape {tuple(found[name].shape)} saved, {tuple(leaf.shape)} wanted"
            )
        elif np.dtype(found[name].dtype) != np.dtype(leaf.dtype):
            faults.append(f"{name}: {found[name].dtype} saved, {leaf.dtype} wanted")
    if faults:
        raise FaultsError(
            f"{folder}: does not fit this configuration",
            faults,
            "Use the configuration it was trained with, or another --workdir.",
        )


def _folders(root: Path) -> list[Path]:
    """Complete checkpoints, newest first."""
    if not root.is_dir():
        return []
    return sorted((f for f in root.iterdir() if f.name.isdigit()), reverse=True)


def _discard(folder: Path) -> None:
    """Removes a checkpoint so that no half of it can be taken for a whole one."""
    if folder.exists():
        doomed = folder.with_name(f".{folder.name}.removed")
        shutil.rmtree(doomed, ignore_errors=True)
        os.replace(folder, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _barrier(name: str) -> None:
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"trace_jax.checkpoint.{name}")


def _flat(tree: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(tree, Mapping):
        out: dict[str, str] = {}
        for key, value in tree.items():
            out.update(_flat(value, f"{prefix}.{key}" if prefix else str(key)))
        return out
    if isinstance(tree, list | tuple):
        return {prefix: str(list(tree))}
    return {prefix: repr(tree)}
