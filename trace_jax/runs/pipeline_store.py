"""What a generation has sent and received, in its folder: nothing is bought twice.

    folder/.generation/
      journal.jsonl       one event a line, only ever appended to
      pictures/SHA.png    every picture that came, by its hash, rejected candidates too

A picture's line is written after its file, so a kill leaves at most a file that nothing names.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from trace_jax import files
from trace_jax.errors import UserError
from trace_jax.synthesis.engines.base import Checked
from trace_jax.synthesis.judge import Verdict
from trace_jax.synthesis.pipeline import Unusable

FOLDER = ".generation"


class Store:
    """The `Memory` of a run, on disk. Use as a context manager; one run at a time.

    Args:
      out: the data folder.
      scrub: takes secrets out of every line.

    Attributes:
      requests, cost: sent and spent so far, by all runs of the folder.

    Raises:
      UserError: another run holds the folder, or it cannot be written.
    """

    def __init__(self, out: Path, scrub: Callable[[str], str]) -> None:
        self._folder, self._scrub, self._lock = out / FOLDER, scrub, threading.Lock()
        self._pictures: dict[str, dict[str, Any]] = {}
        self._verdicts: dict[str, Verdict | Unusable] = {}
        self.requests, self.cost = 0, Decimal(0)
        try:
            (self._folder / "pictures").mkdir(parents=True, exist_ok=True)
            self._stream = open(self._folder / "journal.jsonl", "a+b")
        except OSError as error:
            raise UserError(f"{out}: cannot be written ({error.strerror}).") from error
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._stream.close()
            raise UserError(f"{out}: another run is writing it. Wait for its end.") from error
        self._read()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def picture(self, key: str) -> Checked | None:
        """A remembered picture, None where there is none or its file is not what was written."""
        with self._lock:
            row = self._pictures.get(key)
        if row is None:
            return None
        path = self.path(row["sha256"], row["suffix"])
        data = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(data).hexdigest() != row["sha256"]:
            return None
        return Checked(
            data, row["media_type"], row["suffix"], row["sha256"], row["width"],
            row["height"],
        )  # fmt: skip

    def keep_picture(self, key: str, picture: Checked, about: Mapping[str, Any]) -> None:
        """Writes the file, then its line."""
        files.write_bytes(self.path(picture.sha256, picture.suffix), picture.data)
        row = {
            "sha256": picture.sha256, "suffix": picture.suffix, "media_type": picture.media_type,
            "width": picture.width, "height": picture.height,
        }  # fmt: skip
        self._append({"event": "picture", "key": key, **about, **row}, lasting=True)
        with self._lock:
            self._pictures[key] = row

    def verdict(self, key: str) -> Verdict | Unusable | None:
        """A remembered verdict."""
        with self._lock:
            return self._verdicts.get(key)

    def keep_verdict(self, key: str, verdict: Verdict | Unusable, about: Mapping[str, Any]) -> None:
        """Appends its line."""
        if isinstance(verdict, Verdict):
            row: dict[str, Any] = {
                "event": "verdict", "score": verdict.score, "accepted": verdict.accepted,
                "reasoning": verdict.reasoning,
            }  # fmt: skip
        else:
            row = {"event": "unusable", "reason": verdict.reason}
        self._append({**row, "key": key, **about}, lasting=True)
        with self._lock:
            self._verdicts[key] = verdict

    def spent(self, requests: int, cost: Decimal, model: str) -> None:
        """Appends what is about to be sent (or was not billed: a negative cost)."""
        self._append({"event": "sent", "requests": requests, "cost": str(cost), "model": model})

    def path(self, sha256: str, suffix: str) -> Path:
        """Where a picture lies."""
        return self._folder / "pictures" / f"{sha256}.{suffix}"

    def _append(self, row: Mapping[str, Any], lasting: bool = False) -> None:
        line = self._scrub(json.dumps(row, sort_keys=True, ensure_ascii=False)) + "\n"
        try:
            with self._lock:
                self._stream.write(line.encode("utf-8"))
                self._stream.flush()
                if lasting:
                    os.fsync(self._stream.fileno())
        except OSError as error:
            raise UserError(
                f"{self._folder}: could not be written ({error.strerror}). Free space; the same "
                "command goes on from here."
            ) from error

    def _read(self) -> None:
        self._stream.seek(0)
        data = self._stream.read()
        if data and not data.endswith(b"\n"):
            self._stream.write(b"\n")  # closes the line that a kill cut short
            self._stream.flush()
        for line in data.split(b"\n"):
            try:
                row = json.loads(line)
                self._take(row)
            except (ValueError, KeyError, TypeError, InvalidOperation):
                continue  # a cut or empty line: what it told is asked again

    def _take(self, row: dict[str, Any]) -> None:
        event = row["event"]
        if event == "sent":
            self.cost += Decimal(row["cost"])
            self.requests += int(row["requests"])
        elif event == "picture":
            names = ("sha256", "suffix", "media_type", "width", "height")
            self._pictures[row["key"]] = {name: row[name] for name in names}
        elif event == "verdict":
            self._verdicts[row["key"]] = Verdict(row["score"], row["reasoning"], row["accepted"])
        elif event == "unusable":
            self._verdicts[row["key"]] = Unusable(row["reason"])
