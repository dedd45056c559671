"""Caching a frozen host's features of a data folder: the body of `bin/cache_features`."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax.experimental import multihost_utils

import trace_jax
from trace_jax import files
from trace_jax.data import cache_plan, cache_writer, manifest
from trace_jax.data.cache_plan import DTYPES, CachePlan
from trace_jax.data.cache_writer import CacheWriter, Failure
from trace_jax.data.feature_cache import default_folder
from trace_jax.data.rows import Row
from trace_jax.errors import FaultsError, UserError
from trace_jax.progress import Progress
from trace_jax.runs.encoding import Encoder, sized
from trace_jax.types import SPLITS, Example

PACKAGE = Path(trace_jax.__file__).parent
EMBEDDED_DATA = PACKAGE / "assets" / "nano_trace"

# Exit status of a run that finished but had to skip pictures, under --strict.
STATUS_SKIPPED = 3

# Sources, from the package's parent, and libraries whose change may change features.
_SOURCES = (
    "converters",
    "trace_jax/hosts",
    "trace_jax/nn",
    "trace_jax/images.py",
    "trace_jax/runs/encoding.py",
)
_LIBRARIES = ("jax", "pillow", "transformers")


@dataclasses.dataclass(frozen=True)
class CacheConfig:
    """What to cache and how.

    Attributes:
      host: host name.
      data: data folder, None for the embedded one.
      splits: splits to cache.
      out: cache folder, None for `runs/cache/<host>/<tap>/<data name>`.
      weights: folder or hub id, None for the host's default.
      tap: tap name, None for the host's default.
      batch_size: pictures a call, over this process's devices.
      dtype: stored dtype, "bfloat16" or "float32".
      compute_dtype: dtype the host computes in.
      strict: skipped pictures make the exit status non-zero.
      retry_failed: make shards with failed rows again.
      replace: delete a cache that is there and start over.
      image_size: square that a vision-language host's pictures are brought to, so that all give as
        many tokens; 0 for the host's default (the paper's 448).
      limit: only the first so many rows, 0 for all.
      threads: decode threads.
      max_tokens: padded token count, for hosts whose count varies; 0 takes the tap's own.
      shard_rows: rows a shard, a multiple of batch_size; 0 lets the size decide.
    """

    host: str = "siglip2_nano"
    data: Path | None = None
    splits: tuple[str, ...] = SPLITS
    out: Path | None = None
    weights: str | None = None
    tap: str | None = None
    batch_size: int = 32
    dtype: str = "bfloat16"
    compute_dtype: str = "float32"
    strict: bool = False
    retry_failed: bool = False
    replace: bool = False
    image_size: int = 0
    limit: int = 0
    threads: int = 3
    max_tokens: int = 0
    shard_rows: int = 0


@dataclasses.dataclass(frozen=True)
class CacheResult:
    """What a run did.

    Attributes:
      folder: the cache.
      rows: rows with features.
      failures: (path, reason) of the others.
      encoded: pictures encoded now; the rest were there.
      seconds: time of encoding, compilation included.
      compiles: compilations of the tap.
      nbytes: bytes of all shards.
      wait_seconds: time the device waited for decoded pictures.
      status: exit status: 0, or 3 under strict when pictures were skipped.
    """

    folder: Path
    rows: int
    failures: tuple[tuple[str, str], ...]
    encoded: int
    seconds: float
    compiles: int
    nbytes: int
    wait_seconds: float
    status: int


def run(config: CacheConfig, *, load_host: Callable[..., Any]) -> CacheResult:
    """Caches features, going on where an earlier run of the same plan stopped.

    Args:
      config: what and how.
      load_host: `converters.load_host`.

    Raises:
      UserError: data, weights, disk or folder do not allow it; nothing was changed.
    """
    _check(config)
    data = manifest.read(config.data or EMBEDDED_DATA)
    examples = _chosen(data, config)
    host = load_host(config.host, config.weights, tap=config.tap, dtype=config.compute_dtype)
    host = sized(host, config.image_size)
    encoder = Encoder(host, config.batch_size, config.dtype)
    plan = _plan(config, data, examples, host, encoder)
    out = config.out or default_folder(plan.host, plan.tap, plan.dataset_name)
    plan = _adopt(plan, out, config)
    print(
        f"caching {plan.host}/{plan.tap} (weights {plan.weights_hash[:12]}) of {data.folder} "
        f"({plan.dataset_name} {plan.dataset_version}; {', '.join(plan.splits)}): "
        f"{plan.rows} pictures into {out}"
    )
    process, processes = jax.process_index(), jax.process_count()
    if process == 0 and config.replace:
        cache_writer.remove(out)
    _barrier("replaced")
    files.require_space(out, _space(plan, plan.rows if not out.exists() else 0), "the cache")
    writer = CacheWriter(out, plan, examples, process=process, processes=processes)
    try:
        return _fill(config, plan, data, writer, encoder)
    finally:
        writer.close()


def _fill(
    config: CacheConfig,
    plan: CachePlan,
    data: manifest.Dataset,
    writer: CacheWriter,
    encoder: Encoder,
) -> CacheResult:
    pending = writer.pending(retry_failed=config.retry_failed)
    rows = _rows(plan, pending)
    needed = _space(plan, rows)
    print(
        f"disk: {plan.total_bytes / 1e6:,.2f} MB in {plan.shards} shards "
        f"({plan.row_bytes:,} bytes a picture), {needed / 1e6:,.2f} MB still to write"
    )
    if pending and plan.code_version != code_version():
        raise UserError(
            f"{writer.folder}: {len(pending)} shards are missing or damaged, and the others were "
            f"made by other code ({plan.code_version}). Start over there with --replace."
        )
    files.require_space(writer.folder, needed, "the cache")
    if _total(len(pending)):
        writer.unfinish()
    _barrier("pending")
    began = time.perf_counter()
    if pending:
        share = _rows(plan, writer.share)
        with Progress(share, "caching", "images", done=share - rows) as progress:
            _encode(config, plan, data, writer, encoder, pending, progress)
    seconds = time.perf_counter() - began
    _barrier("encoded")
    failed = writer.finish()
    _barrier("finished")
    failures = tuple((writer.examples[f.row].path, f.reason) for f in failed)
    result = CacheResult(
        folder=writer.folder,
        rows=plan.rows - len(failures),
        failures=failures,
        encoded=rows,
        seconds=seconds,
        compiles=encoder.compiles,
        nbytes=plan.total_bytes,
        wait_seconds=encoder.wait_seconds,
        status=STATUS_SKIPPED if config.strict and failures else 0,
    )
    _report(result)
    return result


def _encode(
    config: CacheConfig,
    plan: CachePlan,
    data: manifest.Dataset,
    writer: CacheWriter,
    encoder: Encoder,
    pending: Sequence[int],
    progress: Progress,
) -> None:
    batches = [
        range(first, min(first + plan.batch_size, rows.stop))
        for rows in map(plan.shard_range, pending)
        for first in range(rows.start, rows.stop, plan.batch_size)
    ]
    shards = iter(pending)
    shard = next(shards)
    rows = plan.shard_range(shard)
    tokens, mask, failures = _empty(plan, len(rows))
    rows_of = cast(Sequence[Example], writer.examples)  # of a row only its path is looked at
    for part in encoder.run(data.folder, rows_of, batches, config.threads):
        place = slice(part.first - rows.start, part.first - rows.start + len(part.tokens))
        _put(plan, tokens, mask, place, part.tokens, part.mask)
        failures += [Failure(row, reason) for row, reason in part.failures.items()]
        progress.advance(len(part.tokens), f"{len(failures)} skipped" if failures else "")
        if place.stop == len(rows):
            writer.write(shard, tokens, mask, failures)
            shard = next(shards, -1)
            if shard >= 0:
                rows = plan.shard_range(shard)
                tokens, mask, failures = _empty(plan, len(rows))


def _empty(plan: CachePlan, count: int) -> tuple[np.ndarray, np.ndarray | None, list[Failure]]:
    tokens = np.zeros((count, *plan.shape), DTYPES[plan.dtype])
    mask = np.zeros((count, *plan.shape[:-1]), np.bool_) if plan.masked else None
    return tokens, mask, []


def _put(
    plan: CachePlan,
    tokens: np.ndarray,
    mask: np.ndarray | None,
    place: slice,
    new_tokens: np.ndarray,
    new_mask: np.ndarray | None,
) -> None:
    """Copies a batch into its shard; a varying token count is padded to the plan's."""
    count, room = new_tokens.shape[-2], plan.shape[-2]
    if count > room:
        raise UserError(
            f"a batch has {count} tokens an image but the cache was planned for {room}; "
            f"start over with --replace --max_tokens={count} or more"
        )
    tokens[place][..., :count, :] = new_tokens
    if mask is not None:
        mask[place][..., :count] = True if new_mask is None else new_mask


def code_version() -> str:
    """What makes features: package version, hash of the sources involved, library versions."""
    root = PACKAGE.parent
    digest = hashlib.sha256()
    for source in _SOURCES:
        path = root / source
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.relative_to(root).as_posix().encode() + b"\0")
            digest.update(file.read_bytes())
    libraries = ", ".join(f"{name} {metadata.version(name)}" for name in _LIBRARIES)
    return f"{trace_jax.__version__}+{digest.hexdigest()[:12]} ({libraries})"


def _check(config: CacheConfig) -> None:
    faults = [
        f"--split: unknown {split!r}; known: {', '.join(SPLITS)} or all"
        for split in config.splits
        if split not in SPLITS
    ]
    if not config.splits:
        faults.append("--split: name at least one split")
    if config.dtype not in DTYPES:
        faults.append(f"--dtype: unknown {config.dtype!r}; known: {', '.join(DTYPES)}")
    for name in ("batch_size", "threads"):
        if getattr(config, name) < 1:
            faults.append(f"--{name}: must be at least 1, is {getattr(config, name)}")
    for name in ("limit", "max_tokens"):
        if getattr(config, name) < 0:
            faults.append(f"--{name}: must be at least 0, is {getattr(config, name)}")
    if config.shard_rows < 0 or config.shard_rows % max(config.batch_size, 1):
        faults.append(f"shard_rows: {config.shard_rows} is no multiple of {config.batch_size}")
    if faults:
        raise FaultsError("these flags cannot be used", faults)


def _chosen(data: manifest.Dataset, config: CacheConfig) -> tuple[Row, ...]:
    chosen = tuple(example for example in data.rows if example.split in config.splits)
    if not chosen:
        raise UserError(f"{data.folder}: has no rows of split {', '.join(config.splits)}")
    return chosen[: config.limit] if config.limit else chosen


def _plan(
    config: CacheConfig,
    data: manifest.Dataset,
    examples: tuple[Row, ...],
    host: Any,
    encoder: Encoder,
) -> CachePlan:
    shape, masked = encoder.shape()
    varies = host.spec.tap.tokens is None
    if varies and not config.max_tokens:
        raise UserError(
            f"host {host.spec.name} gives a varying number of tokens: say the most that a picture "
            "may give with --max_tokens"
        )
    if config.max_tokens:
        shape = (*shape[:-2], config.max_tokens, shape[-1])
    plan = CachePlan(
        host=host.spec.name,
        tap=host.spec.tap.name,
        weights_hash=host.spec.weights_hash,
        preprocessing=dict(host.spec.preprocessing),
        dtype=config.dtype,
        shape=shape,
        masked=masked or varies or config.max_tokens > 0,
        compute_dtype=config.compute_dtype,
        platform=jax.local_devices()[0].platform,
        batch_size=config.batch_size,
        code_version=code_version(),
        dataset_name=data.info.name,
        dataset_version=data.info.version,
        dataset_hash=data.hash,
        splits=tuple(split for split in SPLITS if split in config.splits),
        rows=len(examples),
        rows_hash=cache_plan.rows_hash(examples),
        shard_rows=0,
    )
    rows = config.shard_rows or cache_plan.plan_shard_rows(plan.row_bytes, config.batch_size)
    return dataclasses.replace(plan, shard_rows=rows)


def _adopt(plan: CachePlan, out: Path, config: CacheConfig) -> CachePlan:
    """Keeps a whole cache that differs in nothing but the code's version, and says so."""
    if config.replace or not cache_writer.is_whole(out):
        return plan
    there = cache_writer.read_plan(out)
    if there is None or there.code_version == plan.code_version:
        return plan
    same = dataclasses.replace(plan, code_version=there.code_version)
    if cache_plan.differences(there, same):
        return plan
    print(
        f"{out}: made by code {there.code_version}, this is {plan.code_version}; "
        "kept as it is (--replace makes it anew)"
    )
    return same


def _rows(plan: CachePlan, shards: Sequence[int]) -> int:
    return sum(len(plan.shard_range(shard)) for shard in shards)


def _space(plan: CachePlan, rows: int) -> int:
    # The manifest takes about 1 kB a row; a shard is written beside the one it replaces.
    return rows * (plan.row_bytes + 1024)


def _total(count: int) -> int:
    if jax.process_count() == 1:
        return count
    return int(np.sum(multihost_utils.process_allgather(np.asarray(count))))


def _barrier(name: str) -> None:
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"trace_jax.runs.cache.{name}")


def _report(result: CacheResult) -> None:
    rate = result.encoded / result.seconds if result.encoded else 0.0
    for path, reason in result.failures:
        print(f"skipped: {path} {reason}")
    print(
        f"cached: {result.rows} rows, {len(result.failures)} skipped; encoded {result.encoded} in "
        f"{result.seconds:.1f} s ({rate:.1f} images/s, {result.wait_seconds:.1f} s waiting for "
        f"pictures), compilations {result.compiles}; {result.nbytes / 1e6:,.2f} MB in "
        f"{result.folder}"
    )
    if result.failures:
        print(f"reasons: {result.folder / cache_writer.FAILED_FILE}; try again: --retry_failed")
