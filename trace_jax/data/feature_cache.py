"""Reading cached features: memory-mapped shards, any rows in any order.

The container is raw memory-mapped shards. `bin/bench cache_read` measures random batches against
ArrayRecord and zarr: warm they are 3 to 6 times slower, cold all wait for the disk alike; and raw
shards need no library to read. A folder on an object store is to be copied to local disk first.

Tokens are stored as bfloat16 unless asked otherwise;
whatever is computed from a cache (losses, mse, cosine, retrieval) is computed on the stored values.

Only tokens and masks are kept. `Features.carry` is not: it can be larger than the tokens, and what
needs it (`host.resume`) has the host at hand and encodes afresh.
"""

from __future__ import annotations

import functools
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trace_jax import files
from trace_jax.data import cache_plan, cache_writer
from trace_jax.data import rows as row_schema
from trace_jax.data.cache_plan import DTYPES, CachePlan
from trace_jax.data.pooling import mean_tokens
from trace_jax.errors import FaultsError, UserError
from trace_jax.types import FeatureSource

DEFAULT_ROOT = Path("runs/cache")


def default_folder(host: str, tap: str, dataset: str) -> Path:
    """Where a cache lies unless told otherwise: `runs/cache/<host>/<tap>/<dataset name>`."""
    return DEFAULT_ROOT / host / tap / dataset


class FeatureCache:
    """A finished cache. Make one with `FeatureCache.open`; reading from threads is safe.

    Attributes:
      folder: where it lies.
      manifest: its facts.
      rows: the rows that have features, in order (`SceneExample` of scenes, else `Example`);
        positions here are the indices of all methods.
    """

    def __init__(
        self, folder: Path, manifest: CachePlan, rows: tuple[Any, ...], slots: np.ndarray
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.rows = rows
        self._slots = slots
        self._tokens = [
            _map(path, (len(manifest.shard_range(i)), *manifest.shape), DTYPES[manifest.dtype])
            for i, path in enumerate(self._paths("tokens"))
        ]
        self._masks = [
            _map(path, (len(manifest.shard_range(i)), *manifest.shape[:-1]), np.dtype(np.bool_))
            for i, path in enumerate(self._paths("mask") if manifest.masked else ())
        ]

    @classmethod
    def open(
        cls,
        folder: str | Path,
        expect: FeatureSource | None = None,
        data_hash: str | None = None,
    ) -> FeatureCache:
        """Opens a finished cache.

        Args:
          folder: the cache folder.
          expect: refuse features of another host, tap or weights.
          data_hash: refuse features of other data (`manifest.Dataset.hash`).

        Raises:
          UserError: there is no finished cache, or a shard has the wrong size.
          FaultsError: it does not match what is expected; every difference is named.
        """
        folder = Path(folder)
        path = folder / cache_writer.MANIFEST_FILE
        if not path.exists():
            raise UserError(_not_whole(folder))
        raw = files.read_json(path)
        manifest = cache_plan.from_json(raw, str(path))
        faults = _mismatches(manifest, expect, data_hash)
        if faults:
            raise FaultsError(
                f"{folder}: these features do not fit",
                faults,
                "Give the cache that fits with --cache=DIR, or make it: bin/cache_features.",
            )
        rows, slots = [], []
        for number, entry in enumerate(raw["index"]):
            example, row_faults = row_schema.from_json(
                {name: value for name, value in entry.items() if name != "slot"},
                kind=row_schema.kind_of(entry),
            )
            if example is None:
                raise FaultsError(f"{path}: row {number} is damaged", row_faults)
            rows.append(example)
            slots.append(entry["slot"])
        return cls(folder, manifest, tuple(rows), np.asarray(slots, np.int64))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def source(self) -> FeatureSource:
        """Host, tap and weights of every row."""
        return self.manifest.source

    @property
    def nbytes(self) -> int:
        """Bytes of all shards on disk."""
        return self.manifest.total_bytes

    def tokens(self, indices: Sequence[int] | np.ndarray, dtype: Any = None) -> np.ndarray:
        """Tokens of some rows, copied from the memory map.

        Args:
          indices: [n] positions in `rows`, in any order, repeats allowed.
          dtype: "float32" to widen bfloat16 exactly; None keeps the stored dtype.

        Returns:
          [n, ..., N, D]
        """
        values = self._gather(self._tokens, indices, self.manifest.shape)
        return values if dtype is None else widen(values, np.dtype(dtype))

    def mask(self, indices: Sequence[int] | np.ndarray) -> np.ndarray | None:
        """Which tokens are real: bool [n, ..., N], or None where all are."""
        if not self.manifest.masked:
            return None
        return self._gather(self._masks, indices, self.manifest.shape[:-1])

    def pooled(
        self, indices: Sequence[int] | np.ndarray | None = None, chunk: int = 256
    ) -> np.ndarray:
        """Mean over the real tokens of each row, in float32: [n, ..., D]; all rows by default."""
        chosen = np.arange(len(self)) if indices is None else np.asarray(indices, np.int64)
        shape = (*self.manifest.shape[:-2], self.manifest.shape[-1])
        out = np.empty((len(chosen), *shape), np.float32)
        for first in range(0, len(chosen), chunk):
            part = chosen[first : first + chunk]
            out[first : first + chunk] = mean_tokens(self.tokens(part), self.mask(part))
        return out

    @functools.cached_property
    def index_of(self) -> dict[str, int]:
        """Position of each row by its path."""
        return {row.path: index for index, row in enumerate(self.rows)}

    def verify(self) -> None:
        """Reads everything and compares checksums.

        Raises:
          FaultsError: shards differ from what was written.
        """
        raw = files.read_json(self.folder / cache_writer.MANIFEST_FILE)
        faults = [
            f"{name}: checksum differs"
            for shard in raw["shards"]
            for name, digest in shard["files"].items()
            if files.sha256_file(self.folder / cache_writer.SHARD_FOLDER / name) != digest
        ]
        if faults:
            raise FaultsError(
                f"{self.folder}: damaged", faults, "Run the same bin/cache_features again."
            )

    def _paths(self, kind: str) -> list[Path]:
        shards = self.folder / cache_writer.SHARD_FOLDER
        return [shards / f"{i:05d}.{kind}" for i in range(self.manifest.shards)]

    def _gather(
        self, maps: list[np.ndarray], indices: Sequence[int] | np.ndarray, shape: tuple[int, ...]
    ) -> np.ndarray:
        chosen = np.asarray(indices, np.int64)
        out = np.empty((len(chosen), *shape), maps[0].dtype if maps else np.float32)
        shards, places = np.divmod(self._slots[chosen], self.manifest.shard_rows)
        # One copy a row straight into the batch; fancy indexing a shard would copy twice.
        for position, shard in enumerate(shards.tolist()):
            out[position] = maps[shard][places[position]]
        return out


def widen(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Casts stored tokens; bfloat16 to float32 is exact and done by moving bits."""
    if values.dtype == dtype:
        return values
    if values.dtype == DTYPES["bfloat16"] and dtype == np.float32:
        # ml_dtypes casts element by element; shifting is several times faster.
        wide = values.view(np.uint16).astype(np.uint32)
        np.left_shift(wide, 16, out=wide)
        return wide.view(np.float32)
    return values.astype(dtype)


def _map(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    needed = int(np.prod(shape)) * dtype.itemsize
    try:
        found = path.stat().st_size
        if found != needed:
            raise UserError(
                f"{path}: has {found} bytes, should have {needed}. "
                "Run the same bin/cache_features again; it makes damaged shards anew."
            )
        with open(path, "rb") as stream:
            memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be opened ({error.strerror}). Run the same bin/cache_features again."
        ) from error
    # No madvise(RANDOM): a row is hundreds of pages, and without the kernel's read-ahead a cold
    # batch took 100 times as long (150 ms instead of 2 to 13, tests/bench/cache_read.py's rows).
    return np.frombuffer(memory, dtype).reshape(shape)


def _mismatches(
    manifest: CachePlan, expect: FeatureSource | None, data_hash: str | None
) -> list[str]:
    faults = []
    if expect is not None:
        for name in ("host", "tap", "weights_hash"):
            there, here = getattr(manifest.source, name), getattr(expect, name)
            if there != here:
                faults.append(f"{name}: {there!r} in the cache, {here!r} wanted")
    if data_hash is not None and manifest.dataset_hash != data_hash:
        faults.append(
            f"data set {manifest.dataset_name!r}: {manifest.dataset_hash[:12]} in the cache, "
            f"{data_hash[:12]} wanted"
        )
    return faults


def _not_whole(folder: Path) -> str:
    plan = cache_writer.read_plan(folder) if folder.is_dir() else None
    if plan is None:
        return f"{folder}: no feature cache there. Make it: bin/cache_features --out={folder}."
    done = len(list((folder / cache_writer.SHARD_FOLDER).glob("*.json")))
    return (
        f"{folder}: caching was not finished ({done} of {plan.shards} shards). "
        "Run the same bin/cache_features again; it goes on where it stopped."
    )
