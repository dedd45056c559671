"""Files written whole or not at all, and the hashes that prove it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from trace_jax.errors import UserError


@contextmanager
def atomic_writer(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a temporary neighbour of `path`; renames it over `path` once written and synced.

    A kill or a full disk at any moment leaves either the old file or the new one, never a part.

    Raises:
      UserError: the disk is full or the folder cannot be written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", suffix=".tmp", delete=False
        ) as stream:
            temporary = Path(stream.name)
            yield stream  # type: ignore[misc]
            stream.flush()
            os.fsync(stream.fileno())
        # NamedTemporaryFile makes 0600; a data file follows the process's umask as open() would.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, path)
        temporary = None
        _sync_folder(path.parent)
    except OSError as error:
        raise UserError(
            f"{path}: could not be written ({error.strerror or error}). "
            "Nothing was changed there; free space or choose another folder, then run again."
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes `data` to `path` atomically (see `atomic_writer`)."""
    with atomic_writer(path) as stream:
        stream.write(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes UTF-8 `text` to `path` atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes `value` as sorted, indented JSON atomically; NaN and infinity are refused."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def read_json(path: str | os.PathLike[str], next_step: str = "") -> Any:
    """Reads one JSON value.

    Raises:
      UserError: the file is missing or is not JSON; the message ends with `next_step`.
    """
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: not found. {next_step}".strip()) from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: is not readable JSON ({error}). {next_step}".strip()) from error


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Hex SHA-256 of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """Hex SHA-256 of a JSON value in canonical form (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def require_space(folder: str | os.PathLike[str], needed: int, purpose: str) -> None:
    """Refuses to start a job whose output will not fit.

    Args:
      folder: where the output will lie; its nearest existing parent is asked.
      needed: bytes.
      purpose: what needs them, for the message.

    Raises:
      UserError: fewer than `needed` bytes are free.
    """
    probe = Path(folder).absolute()
    while not probe.exists():
        probe = probe.parent
    free = shutil.disk_usage(probe).free
    if free < needed:
        raise UserError(
            f"{folder}: {purpose} needs {needed / 1e6:,.1f} MB but only {free / 1e6:,.1f} MB are "
            "free there. Free space or choose another folder with --out."
        )


def _sync_folder(folder: Path) -> None:
    # The rename itself must survive a power cut. Some file systems cannot sync a folder.
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
