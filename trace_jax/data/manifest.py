"""The data folder: `dataset.json`, `manifest.jsonl`, `images/`; reading, writing, validating.

    folder/
      dataset.json     one `DatasetInfo`: kind, name, version, taxonomy, provenance
      manifest.jsonl   one row a line, UTF-8, keys sorted: `types.SceneExample` where the kind is
                       "scenes", `types.Example` otherwise
      images/...       files named by the rows' `path`, relative to the folder

A path is the key of its row and is kept byte for byte: no Unicode normalisation, so `é` written
as one code point and as two are two files, as they are on disk.

`bin/data check DIR` prints every fault (`inspect`), one a line, and ends with 0 or 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trace_jax import files
from trace_jax.data import dataset_info, labels, validation
from trace_jax.data import rows as row_schema
from trace_jax.data.dataset_info import INFO_FILE, KINDS, DatasetInfo
from trace_jax.data.faults import Fault
from trace_jax.data.rows import Row
from trace_jax.errors import FaultsError, UserError
from trace_jax.progress import Progress
from trace_jax.types import Example, SceneExample

__all__ = [
    "INFO_FILE", "KINDS", "ROWS_FILE", "Dataset", "DatasetInfo",
    "check", "inspect", "read", "warnings", "write",
]  # fmt: skip

ROWS_FILE = "manifest.jsonl"

_IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif"}


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data folder whose manifest has been read.

    Attributes:
      folder: where it lies.
      info: its `dataset.json`.
      rows: its rows in the order of the file.
    """

    folder: Path
    info: DatasetInfo
    rows: tuple[Row, ...]

    @property
    def examples(self) -> tuple[Example, ...]:
        """The rows of objects or crops.

        Raises:
          UserError: the rows are scenes.
        """
        if self.info.kind == "scenes":
            raise UserError(
                f"{self.folder}: holds scenes; this needs a data folder of objects or crops."
            )
        return self.rows  # type: ignore[return-value]

    @property
    def scenes(self) -> tuple[SceneExample, ...]:
        """The rows of scenes.

        Raises:
          UserError: the rows are no scenes.
        """
        if self.info.kind != "scenes":
            raise UserError(
                f"{self.folder}: holds {self.info.kind}; this needs a data folder of scenes."
            )
        return self.rows  # type: ignore[return-value]

    @functools.cached_property
    def hash(self) -> str:
        """Hex SHA-256 of info and rows in canonical form, free of layout and key order.

        It covers the pictures themselves only where the rows pin them by `sha256`.
        """
        return files.sha256_json(
            {
                # A cache made of this data may be named in it afterwards.
                "info": dataclasses.replace(self.info, embeddings=()).to_json(),
                "rows": [row_schema.to_json(row) for row in self.rows],
            }
        )

    def path(self, row: Row) -> Path:
        """Where a row's picture lies."""
        return self.folder / row.path


def read(folder: str | Path) -> Dataset:
    """Reads and checks a data folder's two files; pictures are not opened.

    Raises:
      UserError: there is no such folder, or it has no manifest.
      FaultsError: rows are malformed or contradict one another; every fault is listed.
    """
    folder = Path(folder)
    parsed = _parse(folder)
    faults = parsed.faults + validation.structure_faults(parsed.rows, parsed.kind, parsed.broken)
    if faults or parsed.info is None:
        raise FaultsError(
            f"{folder}: the manifest cannot be used", faults, f"See also: bin/data check {folder}"
        )
    return Dataset(folder, parsed.info, tuple(row for _, row in parsed.rows))


def write(folder: str | Path, info: DatasetInfo, rows: Iterable[Row]) -> Dataset:
    """Writes `dataset.json` and `manifest.jsonl`, each atomically; pictures are the caller's.

    Rows keep the order given. The same rows always give the same bytes.

    Raises:
      FaultsError: a row would not be read back.
    """
    folder = Path(folder)
    rows = tuple(rows)
    encoded: list[str] = []
    faults = dataset_info.faults(info.to_json())
    if not rows:
        faults.append(Fault("no-rows", f"{ROWS_FILE}: has no rows"))
    for number, row in enumerate(rows, start=1):
        text = row_schema.dumps(row)
        _, row_faults = row_schema.loads(text, info.kind)
        faults += [fault.at(ROWS_FILE, number) for fault in row_faults]
        encoded.append(text + "\n")
    faults += validation.structure_faults(list(enumerate(rows, start=1)), info.kind)
    if faults:
        raise FaultsError(f"{folder}: these rows would not make a valid manifest", faults)
    files.write_text(folder / ROWS_FILE, "".join(encoded))
    files.write_json(folder / INFO_FILE, info.to_json())
    return Dataset(folder, info, rows)


def check(folder: str | Path, *, decode: bool = True) -> list[str]:
    """Finds what makes a data folder unusable, in one pass; see `inspect` for everything.

    Args:
      folder: the data folder.
      decode: open every picture too; without it only presence (and pinned hashes) are checked.

    Returns:
      One line a fault, `manifest.jsonl:LINE: ...` where it belongs to a row; empty when sound.
    """
    folder = Path(folder)
    try:
        parsed = _parse(folder)
    except UserError as error:
        return [str(error)]
    faults = parsed.faults + validation.structure_faults(parsed.rows, parsed.kind, parsed.broken)
    faults += labels.label_faults(parsed.rows, parsed.info.taxonomy if parsed.info else "")
    faults += validation.picture_faults(folder, parsed.rows, decode=decode)
    return [str(fault) for fault in sorted(faults, key=validation.line_order)]


def inspect(folder: str | Path, *, decode: bool = True, progress: bool = False) -> list[Fault]:
    """Finds every fault of a data folder in one pass, also those it can be used in spite of.

    Beside what `check` finds: trajectories that lack a level, layouts that lack their pair (unless
    `dataset.json` says "pairs": false), rows of one identity that disagree, pictures no row names,
    named feature caches of other data.

    Args:
      folder: the data folder.
      decode: open every picture too.
      progress: show a progress line while pictures are opened.

    Returns:
      Faults by line; each knows its kind, `Fault.name`. Empty when sound.
    """
    folder = Path(folder)
    try:
        parsed = _parse(folder)
    except UserError as error:
        return [Fault("no-manifest", str(error))]
    faults = list(parsed.faults)
    faults += validation.structure_faults(parsed.rows, parsed.kind, parsed.broken)
    found = labels.label_faults(parsed.rows, parsed.info.taxonomy if parsed.info else "")
    faults += found
    blamed = {fault.line for fault in found}
    faults += validation.consistency_faults(parsed.rows, parsed.kind, blamed)
    if parsed.info is None or parsed.info.pairs:
        faults += _incomplete(parsed, faults)
    bar = Progress(len(parsed.rows), "check", "pictures") if progress else None
    advance = bar.advance if bar else (lambda: None)
    with bar or contextlib.nullcontext():
        faults += validation.picture_faults(folder, parsed.rows, decode=decode, advance=advance)
    faults += [
        fault
        for fault in validation.stray_faults(folder, parsed.rows, _IMAGE_SUFFIXES)
        if str(fault).split(":")[0] not in parsed.broken_paths
    ]
    faults += [fault for fault in _cache_faults(folder, parsed) if fault.name == "cache-disagrees"]
    return sorted(faults, key=validation.line_order)


def warnings(folder: str | Path) -> list[Fault]:
    """What is worth knowing of a data folder and no fault; [] where it cannot be read at all.

    Layouts without their pair where `dataset.json` says "pairs": false ("missing-pair"), labels of
    a vocabulary that is not at hand ("unchecked-labels"), named feature caches that are not there
    ("missing-cache").
    """
    folder = Path(folder)
    try:
        parsed = _parse(folder)
    except UserError:
        return []
    if parsed.info is None:
        return []
    found = [fault for fault in _cache_faults(folder, parsed) if fault.name == "missing-cache"]
    if parsed.info.taxonomy and not labels.is_known(parsed.info.taxonomy):
        what = f"{INFO_FILE}: labels are not checked: {parsed.info.taxonomy!r} is not at hand"
        found.append(Fault("unchecked-labels", what))
    if not parsed.info.pairs:
        found += _incomplete(parsed, [])
    return sorted(found, key=validation.line_order)


def _incomplete(parsed: _Parsed, told: Sequence[Fault]) -> list[Fault]:
    """Missing levels and pairs of subjects that are not blamed for a missing reference already."""
    alone = {fault.line for fault in told if fault.name == "missing-pristine"}
    lacking = {row_schema.subject_of(row) for line, row in parsed.rows if line in alone}
    unsure = parsed.broken | parsed.near | lacking
    return validation.completeness_faults(parsed.rows, parsed.kind, unsure)


def _cache_faults(folder: Path, parsed: _Parsed) -> list[Fault]:
    """Named feature caches that are not there, and those of other data, host or tap."""
    if parsed.info is None or not parsed.info.embeddings:
        return []
    found = []
    # Faulty rows leave no data to compare with; a cache's host and tap can be compared always.
    data = Dataset(folder, parsed.info, tuple(row for _, row in parsed.rows))
    for named in parsed.info.embeddings:
        path = folder / named["cache"] / "manifest.json"
        if not path.is_file():
            what = f"{INFO_FILE}: no finished feature cache in {named['cache']!r}"
            found.append(Fault("missing-cache", what))
            continue
        try:
            raw = files.read_json(path)
        except UserError:
            raw = None
        facts = raw if isinstance(raw, dict) else {}
        wanted = {"host": named["host"], "tap": named["tap"]}
        if not parsed.faults:
            wanted["dataset_hash"] = data.hash
        wrong = [name for name, value in wanted.items() if facts.get(name) != value]
        if wrong:
            what = f"{INFO_FILE}: the feature cache in {named['cache']!r} has another "
            found.append(Fault("cache-disagrees", what + ", ".join(wrong)))
    return found


@dataclasses.dataclass
class _Parsed:
    """What could be read of a folder's two files.

    Attributes:
      info: dataset.json, or None where it cannot be used.
      kind: of the rows, from dataset.json or, failing that, from the rows themselves.
      rows: line number and row.
      faults: what could not be read.
      broken: subjects of rows that could not be read.
      broken_paths: and their pictures.
      near: subjects of the rows beside those whose own subject cannot be told; it may be theirs.
    """

    info: DatasetInfo | None
    kind: str
    rows: list[tuple[int, Row]]
    faults: list[Fault]
    broken: set[str]
    broken_paths: set[str]
    near: set[str]


def _parse(folder: Path) -> _Parsed:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder. Give a data folder with --data=DIR.")
    if not (folder / ROWS_FILE).is_file():
        raise UserError(_no_manifest(folder))
    faults: list[Fault] = []
    info: DatasetInfo | None = None
    raw: Any = None
    try:
        raw = files.read_json(folder / INFO_FILE, "Every data folder has one; see README, Data.")
        faults += dataset_info.faults(raw)
        if not faults:
            info = DatasetInfo(**raw | {"embeddings": tuple(raw.get("embeddings", ()))})
    except UserError as error:
        text = str(error).replace(f"{folder / INFO_FILE}", INFO_FILE)
        faults.append(Fault("bad-info", text))
    kind = raw.get("kind") if isinstance(raw, dict) else None
    parsed = _Parsed(info, kind if kind in KINDS else "", [], faults, set(), set(), set())
    _parse_rows(folder / ROWS_FILE, parsed)
    parsed.kind = parsed.kind or "objects"
    return parsed


def _parse_rows(path: Path, parsed: _Parsed) -> None:
    seen_line = False
    bad: list[tuple[int, bytes, Any]] = []  # line number, bytes, value where it is JSON
    # Split on newlines alone: str.splitlines would also cut at U+2028 inside a caption.
    for number, raw in enumerate(path.read_bytes().split(b"\n"), start=1):
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")  # some editors put a byte order mark
        if not raw.strip():
            continue
        seen_line = True
        value: Any = None
        try:
            value, faults = row_schema.parse(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            faults = [Fault("not-utf8", f"is not UTF-8 ({error.reason})")]
        kind = parsed.kind or row_schema.kind_of(value)
        row = None
        if value is not None or not faults:
            row, faults = row_schema.from_json(value, faults, kind)
        parsed.faults += [fault.at(ROWS_FILE, number) for fault in faults]
        if row is None:
            bad.append((number, raw, value))
        else:
            parsed.kind = kind
            parsed.rows.append((number, row))
    key = "layout" if parsed.kind == "scenes" else "identity"
    for number, raw, value in bad:
        subject = _told(raw, value, key)
        parsed.broken_paths.add(_told(raw, value, "path"))
        if subject.strip():
            parsed.broken.add(subject)
        else:
            parsed.near |= _neighbours(parsed.rows, number)
    if not seen_line:
        parsed.faults.append(Fault("no-rows", f"{ROWS_FILE}: has no rows"))


def _told(raw: bytes, value: Any, key: str) -> str:
    """A text field of a line that is no row, "" where it has none."""
    if isinstance(value, dict):
        return value[key] if isinstance(value.get(key), str) else ""
    found = re.search(rf'"{key}"\s*:\s*"([^"\\]+)"'.encode(), raw)
    return found[1].decode("utf-8", "replace") if found else ""


def _neighbours(rows: list[tuple[int, Row]], line: int) -> set[str]:
    before = [row for number, row in rows if number < line][-1:]
    after = [row for number, row in rows if number > line][:1]
    return {row_schema.subject_of(row) for row in (*before, *after)}


def _no_manifest(folder: Path) -> str:
    pictures = sum(1 for p in folder.rglob("*") if p.suffix.lower() in _IMAGE_SUFFIXES)
    if pictures:
        return (
            f"{folder}: holds {pictures} pictures but no {ROWS_FILE}. Identity, severity and split "
            f"cannot be guessed from pictures: write {INFO_FILE} and {ROWS_FILE} (README, Data; "
            "from Python: trace_jax.data.manifest.write)."
        )
    return (
        f"{folder}: has no {ROWS_FILE}, so it is not a data folder. "
        "Give the folder that holds dataset.json and manifest.jsonl."
    )
