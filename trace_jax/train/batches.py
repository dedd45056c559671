"""Batches ahead of need: one thread makes the next ones while the device computes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Batch = Mapping[str, Any]
BatchSource = Callable[[int], Batch | Iterator[Batch]]
"""A pure function step -> batch, or start step -> iterator over the batches from there on."""


class Prefetcher:
    """Yields (batch, seconds waited) for the steps from `start` to `stop`, in order.

    An error in the source is raised where the batch is asked for. `close` ends the thread and, if
    the source is an iterator with a `close`, that too.

    Args:
      source: see BatchSource; what it returns for `start` tells which kind it is.
      start, stop: half-open range of steps.
      depth: batches kept ready; 0 makes them in the caller's thread.
    """

    def __init__(self, source: BatchSource, start: int, stop: int, depth: int = 2) -> None:
        self._batches = _in_order(source, start, stop)
        self._queue: queue.Queue = queue.Queue(max(depth, 1))
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        if depth > 0:
            self._thread = threading.Thread(target=self._fill, name="batches", daemon=True)
            self._thread.start()

    def next(self) -> tuple[Batch, float]:
        """The next batch and how long this call waited for it."""
        started = time.perf_counter()
        if self._thread is None:
            return next(self._batches), time.perf_counter() - started
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item, time.perf_counter() - started

    def close(self) -> None:
        """Stops the thread; safe to call twice."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=30)
        if self._thread is None or not self._thread.is_alive():
            self._batches.close()

    def _fill(self) -> None:
        try:
            for batch in self._batches:
                if not self._put(batch):
                    return
        except BaseException as error:  # handed to the caller, whatever it is
            self._put(error)

    def _put(self, item: Any) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False


def _in_order(source: BatchSource, start: int, stop: int):
    if start >= stop:
        return
    first = source(start)
    if isinstance(first, Mapping):
        yield first
        for step in range(start + 1, stop):
            yield source(step)
        return
    try:
        for step in range(start, stop):
            batch = next(first, None)
            if batch is None:
                raise ValueError(f"the batches ended at step {step} of {stop}")
            yield batch
    finally:
        if hasattr(first, "close"):
            first.close()
