"""Writing a feature cache: atomic, checksummed, resumable at any moment, refusing to mix.

    folder/
      plan.json            `CachePlan`, written first
      shards/00000.tokens  raw little-endian rows [rows, ..., N, D]
      shards/00000.mask    raw bytes [rows, ..., N], only where the plan is masked
      shards/00000.json    checksums of the two and the rows that failed; written last of a shard
      failed.jsonl         every row that has no features, with the reason
      manifest.json        plan, shards, rows; written last of all, so its presence means whole

A failed row keeps its place in the shard, filled with zeros, and is left out of the index, so the
others' bytes do not depend on it.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trace_jax import files
from trace_jax.data import cache_plan
from trace_jax.data import rows as row_schema
from trace_jax.data.cache_plan import DTYPES, CachePlan
from trace_jax.data.rows import Row
from trace_jax.errors import FaultsError, UserError

PLAN_FILE = "plan.json"
MANIFEST_FILE = "manifest.json"
FAILED_FILE = "failed.jsonl"
SHARD_FOLDER = "shards"
LOCK_FILE = "writing.lock"


@dataclasses.dataclass(frozen=True)
class Failure:
    """A planned row without features.

    Attributes:
      row: position among the planned rows.
      reason: why, without the path.
    """

    row: int
    reason: str


class CacheWriter:
    """Writes one process's share of the shards of a plan.

    Args:
      folder: the cache folder; made if missing.
      plan: what it holds.
      examples: the planned rows in order.
      process, processes: this process's number and their count; shards are dealt round robin and
        process 0 alone writes what belongs to all.

    Raises:
      FaultsError: the folder holds a cache of another plan; every difference is named.
      UserError: another run is writing there.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        plan: CachePlan,
        examples: Sequence[Row],
        *,
        process: int = 0,
        processes: int = 1,
    ) -> None:
        if len(examples) != plan.rows:
            raise ValueError(f"{len(examples)} rows given, {plan.rows} planned")
        self.folder = Path(folder)
        self.plan = plan
        self.examples = tuple(examples)
        self._process, self._processes = process, processes
        self._shards = self.folder / SHARD_FOLDER
        self._check_folder()
        self._shards.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.folder / f"{LOCK_FILE}.{process}")
        try:
            self._clean()
            if process == 0 and not (self.folder / PLAN_FILE).exists():
                files.write_json(self.folder / PLAN_FILE, plan.to_json())
        except BaseException:
            self.close()
            raise

    @property
    def share(self) -> range:
        """This process's shards."""
        return range(self._process, self.plan.shards, self._processes)

    def pending(self, *, retry_failed: bool = False) -> list[int]:
        """This process's shards that are missing, damaged or (if asked) have failed rows.

        Reads every finished shard to verify its checksum.
        """
        pending = []
        for shard in self.share:
            record = self._record(shard)
            if record is None or (retry_failed and record["failed"]):
                pending.append(shard)
        return pending

    def unfinish(self) -> None:
        """Marks the cache as not whole while shards are rewritten (process 0 does it)."""
        if self._process == 0:
            (self.folder / MANIFEST_FILE).unlink(missing_ok=True)

    def write(
        self, shard: int, tokens: np.ndarray, mask: np.ndarray | None, failures: Sequence[Failure]
    ) -> None:
        """Writes one shard.

        Args:
          shard: which.
          tokens: [rows, ..., N, D] of the plan's dtype, or float32 to be rounded to it.
          mask: [rows, ..., N] bool, given exactly where the plan is masked.
          failures: rows of this shard without features; their slots are zeroed.
        """
        rows = self.plan.shard_range(shard)
        if tokens.shape != (len(rows), *self.plan.shape):
            raise ValueError(
                f"shard {shard}: {tokens.shape} is not {(len(rows), *self.plan.shape)}"
            )
        if (mask is not None) != self.plan.masked:
            raise ValueError(f"shard {shard}: mask given {mask is not None}, {self.plan.masked=}")
        tokens = np.array(tokens.astype(DTYPES[self.plan.dtype], copy=False))
        arrays = {f"{shard:05d}.tokens": tokens}
        if mask is not None:
            arrays[f"{shard:05d}.mask"] = np.array(mask, np.bool_)
        for array in arrays.values():
            for failure in failures:
                array[failure.row - rows.start] = 0
        # The record goes first and comes last: a stale one never vouches for new bytes.
        self._record_path(shard).unlink(missing_ok=True)
        record: dict[str, Any] = {"rows": len(rows), "failed": [], "files": {}}
        for name, array in arrays.items():
            data = np.ascontiguousarray(array).view(np.uint8).data
            with files.atomic_writer(self._shards / name) as stream:
                stream.write(data)
            record["files"][name] = files.sha256_file(self._shards / name)
        record["failed"] = [dataclasses.asdict(f) for f in sorted(failures, key=lambda f: f.row)]
        files.write_json(self._record_path(shard), record)

    def finish(self) -> list[Failure]:
        """Writes `failed.jsonl` and `manifest.json` (process 0, after every process is done).

        Returns:
          Every failed row of the whole cache, in order.
        """
        records = []
        for shard in range(self.plan.shards):
            path = self._record_path(shard)
            records.append(files.read_json(path, "Run the same command again to make the shard."))
        failures = [Failure(**raw) for record in records for raw in record["failed"]]
        if self._process == 0:
            reasons = {failure.row: failure.reason for failure in failures}
            self._write_failed(reasons)
            self._write_manifest(records, reasons)
        return failures

    def close(self) -> None:
        """Lets another run write here."""
        self._lock.close()
        (self.folder / f"{LOCK_FILE}.{self._process}").unlink(missing_ok=True)

    def _write_failed(self, reasons: Mapping[int, str]) -> None:
        lines = []
        for row, reason in reasons.items():
            example = self.examples[row]
            fact = {name: getattr(example, name) for name in ("path", "identity", "severity")}
            fact |= {"split": example.split, "reason": reason}
            lines.append(json.dumps(fact, sort_keys=True, ensure_ascii=False) + "\n")
        files.write_text(self.folder / FAILED_FILE, "".join(lines))

    def _write_manifest(self, records: list[Any], reasons: Mapping[int, str]) -> None:
        head = self.plan.to_json()
        head["shards"] = [{"rows": r["rows"], "files": r["files"]} for r in records]
        head["failed"] = len(reasons)
        # One line a row: a manifest that people can read, grep and diff.
        rows = ",\n".join(
            json.dumps(
                row_schema.to_json(example) | {"slot": row}, sort_keys=True, ensure_ascii=False
            )
            for row, example in enumerate(self.examples)
            if row not in reasons
        )
        text = json.dumps(head, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        text = text.removesuffix("\n}") + f',\n "index": [\n{rows}\n ]\n}}\n'
        files.write_text(self.folder / MANIFEST_FILE, text)

    def _record_path(self, shard: int) -> Path:
        return self._shards / f"{shard:05d}.json"

    def _record(self, shard: int) -> dict[str, Any] | None:
        """A finished shard's record, or None where anything of it is missing or damaged."""
        try:
            record = files.read_json(self._record_path(shard))
            sound = all(
                files.sha256_file(self._shards / name) == digest
                for name, digest in record["files"].items()
            )
        except (UserError, OSError, KeyError, TypeError, AttributeError):
            return None
        return record if sound else None

    def _check_folder(self) -> None:
        path = self.folder / PLAN_FILE
        if not path.exists():
            if (self.folder / MANIFEST_FILE).exists() or (
                self.folder.is_dir() and any(self.folder.iterdir()) and not self._shards.is_dir()
            ):
                raise UserError(
                    f"{self.folder}: is not empty and is not a feature cache. "
                    "Choose another folder with --out."
                )
            return
        there = cache_plan.from_json(files.read_json(path), str(path))
        faults = cache_plan.differences(there, self.plan)
        if faults:
            raise FaultsError(
                f"{self.folder}: holds features of another plan, which must not be mixed",
                faults,
                "Choose another folder with --out, or start over there with --replace.",
            )

    def _clean(self) -> None:
        """Removes what a killed run of this process had begun."""
        for shard in self.share:
            for left in self._shards.glob(f".{shard:05d}.*.tmp"):
                left.unlink(missing_ok=True)
        if self._process == 0:
            for left in self.folder.glob(".*.tmp"):
                left.unlink(missing_ok=True)


def read_plan(folder: str | os.PathLike[str]) -> CachePlan | None:
    """The plan of a cache that is there, whole or not; None where there is none."""
    path = Path(folder) / PLAN_FILE
    return cache_plan.from_json(files.read_json(path), str(path)) if path.exists() else None


def is_whole(folder: str | os.PathLike[str]) -> bool:
    """Whether every shard of a cache was written."""
    return (Path(folder) / MANIFEST_FILE).exists()


def remove(folder: str | os.PathLike[str]) -> None:
    """Deletes a cache's own files and nothing else in its folder."""
    folder = Path(folder)
    if not (folder / PLAN_FILE).exists():
        return
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    shutil.rmtree(folder / SHARD_FOLDER, ignore_errors=True)
    (folder / FAILED_FILE).unlink(missing_ok=True)
    (folder / PLAN_FILE).unlink()


def _lock(path: Path) -> Any:
    # The kernel drops the lock with the process, so a kill never leaves a folder locked.
    stream = open(path, "w")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        stream.close()
        raise UserError(
            f"{path.parent}: another run is caching there. Wait for it or choose another --out."
        ) from error
    except OSError:
        pass  # a file system without locks: shards are atomic all the same
    return stream
