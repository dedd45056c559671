"""Progress of long work: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from tqdm import tqdm


class Progress:
    """Counts units of work and shows rate and time left.

    On a terminal a tqdm bar; otherwise one line at most every `interval` seconds and one at the
    end, so that log files stay readable. Writes to stderr: stdout belongs to results.

    Args:
      total: units in all.
      label: what is being done.
      unit: name of a unit, e.g. "images".
      done: units that an earlier run had finished; not counted in the rate.
      interval: seconds between plain lines.
    """

    def __init__(
        self, total: int, label: str, unit: str, done: int = 0, interval: float = 10.0
    ) -> None:
        self._total, self._label, self._unit = total, label, unit
        self._count = self._first = done
        self._interval = interval
        self._start = self._last = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(total=total, initial=done, desc=label, unit=f" {unit}", smoothing=0.1)

    def advance(self, count: int = 1, note: str = "") -> None:
        """Adds finished units; `note` is shown behind the figures."""
        self._count += count
        if self._bar is not None:
            if note:
                self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(count)
            return
        now = time.monotonic()
        if now - self._last >= self._interval:
            self._last = now
            self._print(now, note)

    def close(self) -> None:
        """Ends the bar, or prints the last plain line."""
        if self._bar is not None:
            self._bar.close()
        else:
            self._print(time.monotonic(), "done" if self._count >= self._total else "stopped")

    def _print(self, now: float, note: str) -> None:
        rate = (self._count - self._first) / max(now - self._start, 1e-9)
        left = (self._total - self._count) / rate if rate > 0 else float("inf")
        eta = f", {left:.0f} s left" if 0 < left < float("inf") else ""
        tail = f" [{note}]" if note else ""
        print(
            f"{self._label}: {self._count}/{self._total} {self._unit}, "
            f"{rate:.1f} {self._unit}/s{eta}{tail}",
            file=sys.stderr,
            flush=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
