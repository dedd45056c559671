"""Metrics as JSON lines, with TensorBoard events derived from them.

`metrics.jsonl` is the truth: one flat row a step and kind, {"step": 40, "kind": "train", "loss":
0.12, ..., "time/steps_per_second": 11.9}. Names under "time/" depend on the machine; everything
else depends on configuration and data alone, so a broken and resumed run writes what an unbroken
one does. TensorBoard's event files cannot be cut, so on resume they are written anew from the rows.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from tensorboardX import SummaryWriter

from trace_jax import files


class MetricsLog:
    """Appends rows to `workdir/metrics.jsonl` and to TensorBoard events beside it.

    Args:
      workdir: the run's folder.
      start_step: the step resumed from; rows after it, which an earlier run wrote and lost, are
        removed, as is a last line that a kill cut short.
      active: False on every process but the first, which alone writes.
    """

    def __init__(self, workdir: str | os.PathLike[str], start_step: int, active: bool) -> None:
        self._active = active
        if not active:
            return
        self._path = Path(workdir) / "metrics.jsonl"
        rows = [row for row in read(self._path) if row["step"] <= start_step]
        files.write_text(self._path, "".join(_line(row) for row in rows))
        events = Path(workdir) / "tensorboard"
        shutil.rmtree(events, ignore_errors=True)
        self._writer = SummaryWriter(str(events))
        for row in rows:
            self._event(row)
        self._stream = open(self._path, "a", encoding="utf-8")

    def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Adds one row; `values` are plain numbers."""
        if not self._active:
            return
        row = {"step": step, "kind": kind, **values}
        self._stream.write(_line(row))
        self._stream.flush()
        self._event(row)

    def sync(self) -> None:
        """Puts all rows on disk; called before a checkpoint that counts on them."""
        if self._active:
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Ends both files."""
        if self._active:
            self.sync()
            self._stream.close()
            self._writer.close()
            self._active = False

    def _event(self, row: Mapping) -> None:
        for name, value in row.items():
            if name not in ("step", "kind"):
                self._writer.add_scalar(f"{row['kind']}/{name}", value, row["step"])


def read(path: str | os.PathLike[str]) -> list[dict]:
    """Rows of a metrics file in order; a last line cut short is left out; no file, no rows."""
    path = Path(path)
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def _line(row: Mapping) -> str:
    return json.dumps(row, allow_nan=False) + "\n"
