"""The one exception a user is meant to read."""

from __future__ import annotations

from collections.abc import Sequence


class UserError(Exception):
    """Something outside the code is wrong: a file, a flag, a disk, a network.

    The message names the file, the cause and the next step. `bin/*` print it without a
    traceback and exit with status 2.
    """


class FaultsError(UserError):
    """Several faults found in one pass, all reported together.

    Attributes:
      faults: one line each, in the order they were found.
    """

    def __init__(self, title: str, faults: Sequence[str], next_step: str = "") -> None:
        self.faults = tuple(faults)
        lines = [f"{title} ({len(self.faults)} found):", *(f"  - {f}" for f in self.faults)]
        if next_step:
            lines.append(next_step)
        super().__init__("\n".join(lines))
