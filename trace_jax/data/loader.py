"""Batches from a feature cache: the batch of a step is a pure function of (seed, step).

Order comes from `data.order` as a grain `MapDataset` (random access: `batches[step]`), rows from
the memory map, and one thread reads ahead. Nothing here keeps a position, so an exact resume is
`start=step`.

Without balancing an epoch is one permutation of the pairs; the rest that does not fill a batch is
dropped (another rest each epoch). With balancing each level has its own endless permutation and
the levels take turns, so every batch draws them evenly and every level's rows come equally often.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypedDict

import grain
import numpy as np

from trace_jax.data.feature_cache import FeatureCache
from trace_jax.data.order import order
from trace_jax.data.pairs import PairSet, as_pristine, pairs, pristine_rows
from trace_jax.errors import UserError

__all__ = [
    "Batches",
    "PairSet",
    "as_pristine",
    "batches",
    "order",
    "ordered",
    "pairs",
    "pristine_rows",
]


class PairBatch(TypedDict):
    """One training batch; B is this process's share.

    Attributes:
      degraded, pristine: [B, ..., N, D].
      mask: [B, ..., N] bool, or None; a token counts where it is real in both pictures.
      severity: [B] int32, position in `types.SEVERITIES` (0 pristine, 1-5 for L0-L4).
      identity: [B] int32, position in `PairSet.identities`.
    """

    degraded: np.ndarray
    pristine: np.ndarray
    mask: np.ndarray | None
    severity: np.ndarray
    identity: np.ndarray


class RowBatch(TypedDict):
    """One evaluation batch.

    Attributes:
      tokens: [B, ..., N, D].
      mask: [B, ..., N] bool, or None.
      weight: [B] float32, 1 for a row and 0 for padding.
      index: [B] int64, rows of the cache; padding repeats the last.
    """

    tokens: np.ndarray
    mask: np.ndarray | None
    weight: np.ndarray
    index: np.ndarray


def batches(
    cache: FeatureCache,
    pair_set: PairSet,
    *,
    batch_size: int,
    seed: int,
    level_balanced: bool = False,
    pristine_fraction: float = 0.0,
    dtype: str | None = "float32",
    process: int = 0,
    processes: int = 1,
) -> Batches:
    """Training batches without end.

    Args:
      cache: the features.
      pair_set: which rows, from `pairs`.
      batch_size: pairs a batch over all processes.
      seed: order; same seed, same batches, on any number of processes.
      level_balanced: draw the severities evenly instead of in their proportion.
      pristine_fraction: share of the pairs that are pristine -> pristine.
      dtype: "float32" (exact from bfloat16), "bfloat16", or None for the stored dtype.
      process, processes: this process's number and their count; it gets its slice of each batch.

    Raises:
      UserError: the batch does not divide over the processes, or see `order`.
    """
    if batch_size % processes:
        raise UserError(f"batch size {batch_size} does not divide over {processes} processes")
    table = order(pair_set, batch_size, seed, level_balanced, pristine_fraction)
    share = batch_size // processes
    mine = slice(process * share, (process + 1) * share)

    def gather(chosen: Any) -> PairBatch:
        chosen = np.asarray(chosen)[mine]
        degraded, pristine, severity, identity = chosen.T
        masks = (cache.mask(degraded), cache.mask(pristine))
        both = masks[0] & masks[1] if masks[0] is not None and masks[1] is not None else None
        return PairBatch(
            degraded=cache.tokens(degraded, dtype),
            pristine=cache.tokens(pristine, dtype),
            mask=both,
            severity=severity.astype(np.int32),
            identity=identity.astype(np.int32),
        )

    return Batches(table.map(gather), steps_per_epoch=len(pair_set) // batch_size)


class Batches:
    """An endless sequence of batches: `batches[step]`, or read ahead with `iterate`.

    Attributes:
      steps_per_epoch: steps in which every pair comes once (the rest dropped).
      wait_seconds: time that `iterate`'s consumer spent waiting for data so far.
    """

    def __init__(self, dataset: grain.MapDataset[Any], steps_per_epoch: int) -> None:
        self._dataset = dataset
        self.steps_per_epoch = steps_per_epoch
        self.wait_seconds = 0.0

    def __getitem__(self, step: int) -> Any:
        return self._dataset[step]

    def iterate(
        self, start: int = 0, stop: int | None = None, *, prefetch: int = 4
    ) -> Iterator[Any]:
        """Batches of steps `start`, `start + 1`, ..., read ahead by one thread.

        Leaving the loop in any way (end, break, exception, `close()`) ends the thread.

        Args:
          start: first step.
          stop: step to end before; None goes on for ever.
          prefetch: batches held ready.
        """
        yield from self._timed(_ahead(self.__getitem__, start, stop, prefetch))

    def __iter__(self) -> Iterator[Any]:
        return self.iterate()

    def _timed(self, source: Iterator[Any]) -> Iterator[Any]:
        try:
            while True:
                began = time.perf_counter()
                try:
                    item = next(source)
                except StopIteration:
                    return
                finally:
                    self.wait_seconds += time.perf_counter() - began
                yield item
        finally:
            source.close()  # type: ignore[attr-defined]


def ordered(
    cache: FeatureCache,
    indices: Sequence[int] | np.ndarray,
    *,
    batch_size: int,
    dtype: str | None = "float32",
    prefetch: int = 4,
) -> Iterator[RowBatch]:
    """Rows in the order given, once each; the last batch is padded to full size by its last row.

    Args:
      cache: the features.
      indices: [n] rows of the cache.
      batch_size: rows a batch.
      dtype: as in `batches`.
      prefetch: batches held ready.
    """
    chosen = np.asarray(indices, np.int64)
    steps = -(-len(chosen) // batch_size)

    def read(step: int) -> RowBatch:
        part = chosen[step * batch_size : (step + 1) * batch_size]
        padding = batch_size - len(part)
        weight = np.pad(np.ones(len(part), np.float32), (0, padding))
        part = np.pad(part, (0, padding), mode="edge")
        return RowBatch(
            tokens=cache.tokens(part, dtype), mask=cache.mask(part), weight=weight, index=part
        )

    return _ahead(read, 0, steps, prefetch)


def _ahead(
    read: Callable[[int], Any], start: int, stop: int | None, prefetch: int
) -> Iterator[Any]:
    """Yields read(start), read(start + 1), ...; a thread keeps `prefetch` of them ready."""
    ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(max(prefetch, 1))
    quit_ = threading.Event()

    def offer(item: tuple[Any, BaseException | None]) -> bool:
        while not quit_.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        step = start
        try:
            while stop is None or step < stop:
                if not offer((read(step), None)):
                    return
                step += 1
            offer((None, StopIteration()))
        except BaseException as error:  # handed to the consumer, who is the one to see it
            offer((None, error))

    thread = threading.Thread(target=work, name="read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item
    finally:
        quit_.set()
        thread.join()
