"""SIGTERM and SIGINT as a wish to stop, looked at between steps."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class Signals:
    """Remembers the first SIGTERM or SIGINT; a second one acts as it always does."""

    def __init__(self) -> None:
        self.name = ""
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._old[number] = signal.signal(number, self._note)
            except ValueError:  # not in the main thread: the caller handles signals
                break
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.name = signal.Signals(number).name
        self.__exit__()
