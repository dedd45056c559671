"""What rendering runs share: a journal of finished subjects, whole files, worker processes.

Each picture is written whole or not at all. The journal holds the rows of finished subjects; a
second run of the same settings goes on from it. It goes when `manifest.jsonl` is written.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

from trace_jax import files
from trace_jax.data import manifest, rows
from trace_jax.errors import UserError

JOURNAL = ".generate.jsonl"
# What of its settings a complete folder tells; a run that differs in one is another data set's.
_TOLD = ("world", "seed", "size", "width", "height", "format", "quality")

Job = TypeVar("Job")
Done = TypeVar("Done")


def work(render: Callable[[Job], Done], jobs: Sequence[Job], workers: int) -> Iterator[Done]:
    """Finished jobs as they come; a single worker stays in this process."""
    workers = min(workers, max(len(jobs), 1))
    if workers <= 1:
        yield from map(render, jobs)
        return
    # spawn: the parent may hold threads (JAX), which a fork would copy in a broken state.
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(render, jobs, chunksize=2)


def write_picture(path: Path, data: bytes) -> None:
    """Writes one picture whole or not at all, but not synced one by one as trace_jax.files does
    (3 ms a picture): the journal is trusted only for files that are there as they were written.

    Raises:
      UserError: the disk is full or the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(
            f"{path}: could not be written ({error.strerror or error}). Free space or choose "
            "another folder; the same command goes on where this one stopped."
        ) from error


def whole(out: Path, found: Sequence[Mapping[str, Any]] | None) -> bool:
    """Whether a subject's journaled pictures are all there as they were written."""
    if found is None:
        return False
    for row in found:
        path = out / row["path"]
        if not path.is_file() or files.sha256_file(path) != row["sha256"]:
            return False
    return True


@contextlib.contextmanager
def journal(
    out: Path, stamp: Mapping[str, Any], told: Mapping[str, Any]
) -> Iterator[tuple[dict[str, list[dict[str, Any]]], TextIO]]:
    """Opens the folder's journal for appending, with what it holds already.

    Args:
      out: the data folder.
      stamp: the run's settings; a journal of others is refused.
      told: those that a complete folder's provenance tells.

    Yields:
      Rows by subject, and the stream that `record` writes to.

    Raises:
      UserError: the folder was begun with other settings.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / JOURNAL
    done: dict[str, list[dict[str, Any]]] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if not lines and (out / manifest.ROWS_FILE).exists():
        # A complete folder: its rows take the journal's place, so that a repaired or repeated
        # run renders only what is missing.
        existing = manifest.read(out)
        for row in existing.rows:
            done.setdefault(rows.subject_of(row), []).append(rows.to_json(row))
        provenance = existing.info.provenance
        if any(provenance.get(k) != told[k] for k in _TOLD if k in told):
            raise UserError(
                f"{out}: holds another data set ({existing.info.name}). Choose another --out."
            )
    for number, line in enumerate(lines):
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue  # the line that a kill cut short
        if number == 0:
            if entry != stamp:
                raise UserError(
                    f"{out}: was begun with other settings. Choose another --out, or delete it."
                )
        else:
            done[entry["key"]] = entry["rows"]
    # Rewritten whole, so that a cut line never stays in the middle.
    body = [json.dumps(stamp), *(json.dumps({"key": k, "rows": v}) for k, v in done.items())]
    files.write_text(path, "\n".join(body) + "\n")
    with open(path, "a", encoding="utf-8") as stream:
        yield done, stream


def record(stream: TextIO, key: str, found: Iterable[Mapping[str, Any]]) -> None:
    """Notes a finished subject and its rows."""
    stream.write(json.dumps({"key": key, "rows": list(found)}) + "\n")
    stream.flush()
