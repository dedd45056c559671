"""Reading cached features: which container, and does a training step ever wait?

    bin/bench cache_read              # or: python tests/bench/cache_read.py [--rows=400]

Part 1 reads the same random batches from five containers, first with the page cache emptied
(cold) and then warm, in turns. Part 2 trains an FRM from a cache through the loader and reports
the share of the time spent waiting for data.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import tensorstore
from array_record.python import array_record_module

from trace_jax import frm
from trace_jax.data import cache_plan, loader
from trace_jax.data.cache_writer import CacheWriter
from trace_jax.data.feature_cache import FeatureCache
from trace_jax.types import LEVELS, PRISTINE, Example, Features

SIGLIP2_BASE = (196, 768)
NANO = (36, 192)
SHARD_ROWS = 96
BF16 = np.dtype(ml_dtypes.bfloat16)


class MemoryMap:
    """Raw shards, mapped; one copy a row."""

    name = "raw shards, memory-mapped"

    def __init__(self, folder: Path, values: np.ndarray) -> None:
        self.files = _raw_shards(folder, values)
        self.shape = values.shape[1:]
        self.open()

    def open(self) -> None:
        self.maps = [np.memmap(file, BF16, "r").reshape(-1, *self.shape) for file in self.files]

    def close(self) -> None:
        self.maps = []  # mapped pages would stay in the page cache

    def read(self, rows: np.ndarray) -> np.ndarray:
        out = np.empty((len(rows), *self.shape), BF16)
        for place, row in enumerate(rows.tolist()):
            out[place] = self.maps[row // SHARD_ROWS][row % SHARD_ROWS]
        return out


class PositionedRead:
    """Raw shards, one preadv a row straight into the batch."""

    name = "raw shards, preadv"

    def __init__(self, folder: Path, values: np.ndarray) -> None:
        self.files = _raw_shards(folder, values)
        self.handles = [os.open(file, os.O_RDONLY) for file in self.files]
        self.shape = values.shape[1:]

    def read(self, rows: np.ndarray) -> np.ndarray:
        out = np.empty((len(rows), *self.shape), BF16)
        flat = out.view(np.uint8).reshape(len(rows), -1)
        for place, row in enumerate(rows.tolist()):
            offset = (row % SHARD_ROWS) * flat.shape[1]
            os.preadv(self.handles[row // SHARD_ROWS], [flat[place]], offset)
        return out


class ArrayRecord:
    """One record a row, uncompressed groups of one: the fastest setting for random reads."""

    name = "ArrayRecord (group_size:1, uncompressed)"

    def __init__(self, folder: Path, values: np.ndarray) -> None:
        file = folder / "rows.arrayrecord"
        writer = array_record_module.ArrayRecordWriter(str(file), "group_size:1,uncompressed")
        for row in values:
            writer.write(row.tobytes())
        writer.close()
        self.files = [file]
        self.shape = values.shape[1:]
        self.reader = array_record_module.ArrayRecordReader(str(file))

    def read(self, rows: np.ndarray) -> np.ndarray:
        records = self.reader.read(rows.tolist())
        return np.stack([np.frombuffer(record, BF16).reshape(self.shape) for record in records])


class Zarr:
    """zarr 3 through TensorStore, one chunk a row, uncompressed."""

    name = "zarr 3 by TensorStore (chunk = row)"
    sharding: int | None = None

    def __init__(self, folder: Path, values: np.ndarray) -> None:
        codecs: list[dict] = [{"name": "bytes", "configuration": {"endian": "little"}}]
        chunk = [self.sharding or 1, *values.shape[1:]]
        if self.sharding:
            codecs = [
                {
                    "name": "sharding_indexed",
                    "configuration": {"chunk_shape": [1, *values.shape[1:]], "codecs": codecs},
                }
            ]
        self.store = tensorstore.open(
            {
                "driver": "zarr3",
                "kvstore": {"driver": "file", "path": str(folder)},
                "metadata": {
                    "shape": list(values.shape),
                    "data_type": "bfloat16",
                    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
                    "codecs": codecs,
                },
                "create": True,
                "delete_existing": True,
            }
        ).result()
        self.store.write(values).result()
        self.files = [path for path in folder.rglob("*") if path.is_file()]

    def read(self, rows: np.ndarray) -> np.ndarray:
        return self.store.oindex[rows].read().result()


class ShardedZarr(Zarr):
    """zarr 3 with the sharding codec."""

    name = "zarr 3 by TensorStore (sharded, inner chunk = row)"
    sharding = SHARD_ROWS


def compare(count: int, folder: Path) -> list[dict]:
    """Milliseconds a batch of 32 random rows, cold and warm, for every container."""
    values = np.random.default_rng(0).normal(size=(count, *SIGLIP2_BASE)).astype(BF16)
    containers = []
    for kind in (MemoryMap, PositionedRead, ArrayRecord, Zarr, ShardedZarr):
        place = folder / kind.__name__
        place.mkdir()
        containers.append(kind(place, values))
    times: dict[str, dict[str, list[float]]] = {
        c.name: {"cold": [], "warm": []} for c in containers
    }
    rng = np.random.default_rng(1)
    for turn in range(6):
        for container in containers:
            if isinstance(container, MemoryMap):
                container.close()
            _forget(container.files)
            if isinstance(container, MemoryMap):
                container.open()
            rows = rng.permutation(count)
            for state in ("cold", "warm"):
                for first in range(0, count - 31, 32):
                    part = rows[first : first + 32]
                    began = time.perf_counter()
                    batch = container.read(part)
                    seconds = time.perf_counter() - began
                    if turn:  # the first round warms up libraries
                        times[container.name][state].append(seconds)
                    if first == 0:
                        np.testing.assert_array_equal(batch, values[part])
    size = 32 * values[0].nbytes
    table = []
    for name, by_state in times.items():
        row = {"container": name}
        for state, seconds in by_state.items():
            row[f"{state}_ms"] = round(1e3 * statistics.median(seconds), 2)
            row[f"{state}_gb_s"] = round(size / statistics.median(seconds) / 1e9, 2)
        table.append(row)
    return table


def wait_share(
    folder: Path, shape: tuple[int, int], depth: int, batch: int, identities: int
) -> dict:
    """Trains one epoch (at most 60 steps) and reports the waiting share."""
    cache = _cache(folder, shape, identities)
    pairs = loader.pairs(cache, "train")
    source = loader.batches(
        cache, pairs, batch_size=batch, seed=0, level_balanced=True, pristine_fraction=0.3
    )
    config = frm.FRMConfig(dim=shape[1], depth=depth)
    params = frm.init(jax.random.key(0), config)

    @jax.jit
    def step(params, degraded, pristine):
        def loss(params):
            out = frm.apply(params, Features(degraded), config).tokens
            return ((out - pristine) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 1e-4 * g, params, grads), value

    first = source[0]
    jax.block_until_ready(step(params, first["degraded"], first["pristine"]))
    steps = min(source.steps_per_epoch, 60)
    began = time.perf_counter()
    for item in source.iterate(0, steps):
        params, value = step(params, item["degraded"], item["pristine"])
        jax.block_until_ready(value)
    seconds = time.perf_counter() - began
    return {
        "tokens": list(shape),
        "depth": depth,
        "batch": batch,
        "steps": steps,
        "ms_a_step": round(1e3 * seconds / steps, 2),
        "wait_share": round(source.wait_seconds / seconds, 5),
    }


def _cache(folder: Path, shape: tuple[int, int], identities: int) -> FeatureCache:
    rows = tuple(
        Example(f"images/{i}/{severity}.webp", str(i), "mug", "", severity, "train")
        for i in range(identities)
        for severity in (PRISTINE, *LEVELS)
    )
    plan = cache_plan.CachePlan(
        host="bench", tap="bench", weights_hash="", preprocessing={}, dtype="bfloat16",
        shape=shape, masked=False, compute_dtype="float32", platform="cpu", batch_size=32,
        code_version="", dataset_name="bench", dataset_version="", dataset_hash="",
        splits=("train",), rows=len(rows), rows_hash="", shard_rows=SHARD_ROWS,
    )  # fmt: skip
    writer = CacheWriter(folder, plan, rows)
    rng = np.random.default_rng(2)
    for shard in range(plan.shards):
        values = rng.normal(size=(len(plan.shard_range(shard)), *shape)).astype(np.float32)
        writer.write(shard, values, None, [])
    writer.finish()
    writer.close()
    return FeatureCache.open(folder)


def _raw_shards(folder: Path, values: np.ndarray) -> list[Path]:
    files = []
    for first in range(0, len(values), SHARD_ROWS):
        files.append(folder / f"{first}.bin")
        files[-1].write_bytes(values[first : first + SHARD_ROWS].tobytes())
    return files


def _forget(files: list[Path]) -> None:
    """Empties the page cache of these files, as far as the kernel agrees."""
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=400, help="rows of 196x768 bfloat16")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        containers = compare(args.rows, folder)
        for row in containers:
            print(
                f"{row['container']:52s} cold {row['cold_ms']:7.2f} ms ({row['cold_gb_s']} GB/s)"
                f"   warm {row['warm_ms']:7.2f} ms ({row['warm_gb_s']} GB/s)   a batch of 32 rows"
            )
        waits = [
            wait_share(folder / "nano", NANO, depth=2, batch=64, identities=600),
            wait_share(folder / "base", SIGLIP2_BASE, depth=1, batch=16, identities=48),
        ]
        for row in waits:
            print(
                f"FRM {row['tokens'][0]}x{row['tokens'][1]} M={row['depth']} batch {row['batch']}: "
                f"{row['ms_a_step']} ms a step, {100 * row['wait_share']:.2f}% of it waiting "
                f"({row['steps']} steps)"
            )
    if args.json:
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
        Path(args.json).write_text(json.dumps({"containers": containers, "waits": waits}, indent=1))


if __name__ == "__main__":
    main()
