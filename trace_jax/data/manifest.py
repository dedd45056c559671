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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from trace_jax import files
from trace_jax.data import labels, validation
from trace_jax.data import rows as row_schema
from trace_jax.data.faults import Fault
from trace_jax.data.rows import Row
from trace_jax.errors import FaultsError, UserError
from trace_jax.progress import Progress
from trace_jax.types import DatasetKind, Example, SceneExample

INFO_FILE = "dataset.json"
ROWS_FILE = "manifest.jsonl"
KINDS: tuple[str, ...] = get_args(DatasetKind)

_IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif"}


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """What `dataset.json` says.

    Attributes:
      kind: "objects", "scenes" or "crops".
      name: short name, used in default output folders and in results.
      version: version of the data, e.g. "1.0.0".
      taxonomy: name of the vocabulary its labels come from, or "" where it follows none.
      provenance: how it was made (command, seed, ...), any JSON object.
      pairs: whether every layout of scenes is there pristine and degraded. Released scenes are not
        paired; a folder of them says false, and a missing pair is no fault then.
      embeddings: feature caches of these images, each {"host", "tap", "cache": folder}; features
        are named, never copied into rows.
    """

    kind: str
    name: str
    version: str
    taxonomy: str
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pairs: bool = True
    embeddings: tuple[Mapping[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; what older folders lack is left out where it says nothing."""
        raw = dataclasses.asdict(self)
        if self.pairs:
            del raw["pairs"]
        if not self.embeddings:
            del raw["embeddings"]
        return raw


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
                "info": self.info.to_json(),
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
    faults = _info_faults(info.to_json())
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
    `dataset.json` says "pairs": false), rows of one identity that disagree, pictures no row names.

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
        # A row without its pristine reference is told of already.
        alone = {fault.line for fault in faults if fault.name == "missing-pristine"}
        lacking = {row_schema.subject_of(row) for line, row in parsed.rows if line in alone}
        faults += validation.completeness_faults(parsed.rows, parsed.kind, parsed.broken | lacking)
    bar = Progress(len(parsed.rows), "check", "pictures") if progress else None
    advance = bar.advance if bar else (lambda: None)
    with bar or contextlib.nullcontext():
        faults += validation.picture_faults(folder, parsed.rows, decode=decode, advance=advance)
    faults += [
        fault
        for fault in validation.stray_faults(folder, parsed.rows, _IMAGE_SUFFIXES)
        if str(fault).split(":")[0] not in parsed.broken_paths
    ]
    return sorted(faults, key=validation.line_order)


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
    """

    info: DatasetInfo | None
    kind: str
    rows: list[tuple[int, Row]]
    faults: list[Fault]
    broken: set[str]
    broken_paths: set[str]


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
        faults += _info_faults(raw)
        if not faults:
            info = DatasetInfo(**raw | {"embeddings": tuple(raw.get("embeddings", ()))})
    except UserError as error:
        text = str(error).replace(f"{folder / INFO_FILE}", INFO_FILE)
        faults.append(Fault("bad-info", text))
    kind = raw.get("kind") if isinstance(raw, dict) else None
    parsed = _Parsed(info, kind if kind in KINDS else "", [], faults, set(), set())
    _parse_rows(folder / ROWS_FILE, parsed)
    parsed.kind = parsed.kind or "objects"
    return parsed


def _parse_rows(path: Path, parsed: _Parsed) -> None:
    seen_line = False
    # Split on newlines alone: str.splitlines would also cut at U+2028 inside a caption.
    for number, raw in enumerate(path.read_bytes().split(b"\n"), start=1):
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")  # some editors put a byte order mark
        if not raw.strip():
            continue
        seen_line = True
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            what = f"is not UTF-8 ({error.reason})"
            parsed.faults.append(Fault("not-utf8", what).at(ROWS_FILE, number))
            continue
        value, faults = row_schema.parse(text)
        kind = parsed.kind or row_schema.kind_of(value)
        row = None
        if value is not None or not faults:
            row, faults = row_schema.from_json(value, faults, kind)
        parsed.faults += [fault.at(ROWS_FILE, number) for fault in faults]
        if row is not None:
            parsed.kind = kind
            parsed.rows.append((number, row))
        elif isinstance(value, dict):
            for name, known in (
                ("identity", parsed.broken),
                ("layout", parsed.broken),
                ("path", parsed.broken_paths),
            ):
                if isinstance(value.get(name), str):
                    known.add(value[name])
    if not seen_line:
        parsed.faults.append(Fault("no-rows", f"{ROWS_FILE}: has no rows"))


def _info_faults(raw: Any) -> list[Fault]:
    return [Fault("bad-info", f"{INFO_FILE}: {text}") for text in _info_texts(raw)]


def _info_texts(raw: Any) -> list[str]:
    if not isinstance(raw, dict):
        return [f"must be a JSON object, is {type(raw).__name__}"]
    faults = []
    known = {field.name for field in dataclasses.fields(DatasetInfo)}
    for name in ("kind", "name", "version", "taxonomy"):
        if name not in raw:
            faults.append(f"field {name!r} is missing")
        elif not isinstance(raw[name], str):
            faults.append(f"{name!r} must be text, is {raw[name]!r}")
    faults += [f"unknown field {name!r}" for name in sorted(set(raw) - known)]
    if not isinstance(raw.get("provenance", {}), Mapping):
        faults.append(f"'provenance' must be an object, is {raw['provenance']!r}")
    if not isinstance(raw.get("pairs", True), bool):
        faults.append(f"'pairs' must be true or false, is {raw['pairs']!r}")
    caches = raw.get("embeddings", [])
    if not isinstance(caches, list | tuple) or not all(
        isinstance(c, Mapping) and set(c) == {"host", "tap", "cache"} for c in caches
    ):
        faults.append(
            f"'embeddings' must list objects with host, tap and cache, is {raw['embeddings']!r}"
        )
    kind = raw.get("kind")
    if isinstance(kind, str) and kind not in KINDS:
        faults.append(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
    title = raw.get("name")
    if isinstance(title, str) and (not title.strip() or "/" in title or title in (".", "..")):
        faults.append(f"'name' {title!r} cannot name a folder")
    return faults


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
