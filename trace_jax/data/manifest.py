"""The data folder: `dataset.json`, `manifest.jsonl`, `images/`; reading, writing, validating.

    folder/
      dataset.json     one `DatasetInfo`: kind, name, version, taxonomy, provenance
      manifest.jsonl   one `types.Example` a line, UTF-8, keys sorted
      images/...       files named by the rows' `path`, relative to the folder

A path is the key of its row and is kept byte for byte: no Unicode normalisation, so `é` written
as one code point and as two are two files, as they are on disk.

`python -m trace_jax.data.manifest DIR` prints every fault, one a line, and ends with 0 or 1.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from trace_jax import files
from trace_jax.data import rows as row_schema
from trace_jax.data import validation
from trace_jax.errors import FaultsError, UserError
from trace_jax.types import DatasetKind, Example

INFO_FILE = "dataset.json"
ROWS_FILE = "manifest.jsonl"
KINDS: tuple[str, ...] = get_args(DatasetKind)

_IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif"}


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """What `dataset.json` says.

    Attributes:
      kind: "objects", "scenes" or "crops"; rows of `types.Example` describe objects and crops.
      name: short name, used in default output folders and in results.
      version: version of the data, e.g. "1.0.0".
      taxonomy: name of the vocabulary its labels come from, or "" where it follows none.
      provenance: how it was made (command, seed, ...), any JSON object.
    """

    kind: str
    name: str
    version: str
    taxonomy: str
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data folder whose manifest has been read.

    Attributes:
      folder: where it lies.
      info: its `dataset.json`.
      examples: its rows in the order of the file.
    """

    folder: Path
    info: DatasetInfo
    examples: tuple[Example, ...]

    @functools.cached_property
    def hash(self) -> str:
        """Hex SHA-256 of info and rows in canonical form, free of layout and key order.

        It covers the pictures themselves only where the rows pin them by `sha256`.
        """
        return files.sha256_json(
            {
                "info": dataclasses.asdict(self.info),
                "rows": [row_schema.to_json(example) for example in self.examples],
            }
        )

    def path(self, example: Example) -> Path:
        """Where an example's picture lies."""
        return self.folder / example.path


def read(folder: str | Path) -> Dataset:
    """Reads and checks a data folder's two files; pictures are not opened.

    Raises:
      UserError: there is no such folder, or it has no manifest.
      FaultsError: rows are malformed or contradict one another; every fault is listed.
    """
    folder = Path(folder)
    info, numbered, faults = _parse(folder)
    faults += validation.structure_faults(numbered, info.kind if info else "objects")
    if faults or info is None:
        raise FaultsError(
            f"{folder}: the manifest cannot be used",
            faults,
            f"See also: python -m trace_jax.data.manifest {folder}",
        )
    return Dataset(folder, info, tuple(example for _, example in numbered))


def write(folder: str | Path, info: DatasetInfo, examples: Iterable[Example]) -> Dataset:
    """Writes `dataset.json` and `manifest.jsonl`, each atomically; pictures are the caller's.

    Rows keep the order given. The same rows always give the same bytes.

    Raises:
      FaultsError: a row would not be read back.
    """
    folder = Path(folder)
    examples = tuple(examples)
    encoded: list[str] = []
    faults = _info_faults(dataclasses.asdict(info))
    if not examples:
        faults.append(f"{ROWS_FILE}: has no rows")
    for number, example in enumerate(examples, start=1):
        text = row_schema.dumps(example)
        parsed, row_faults = row_schema.loads(text)
        faults += [f"{ROWS_FILE}:{number}: {fault}" for fault in row_faults]
        encoded.append(text + "\n")
    faults += validation.structure_faults(list(enumerate(examples, start=1)), info.kind)
    if faults:
        raise FaultsError(f"{folder}: these rows would not make a valid manifest", faults)
    files.write_text(folder / ROWS_FILE, "".join(encoded))
    files.write_json(folder / INFO_FILE, dataclasses.asdict(info))
    return Dataset(folder, info, examples)


def check(folder: str | Path, *, decode: bool = True) -> list[str]:
    """Finds every fault of a data folder in one pass.

    Args:
      folder: the data folder.
      decode: open every picture too; without it only presence (and pinned hashes) are checked.

    Returns:
      One line a fault, `manifest.jsonl:LINE: ...` where it belongs to a row; empty when sound.
    """
    folder = Path(folder)
    try:
        info, numbered, faults = _parse(folder)
    except UserError as error:
        return [str(error)]
    faults += validation.structure_faults(numbered, info.kind if info else "objects")
    faults += validation.vocabulary_faults(numbered, info.taxonomy if info else "")
    faults += validation.picture_faults(folder, numbered, decode=decode)
    return sorted(faults, key=validation.line_order)


def _parse(folder: Path) -> tuple[DatasetInfo | None, list[tuple[int, Example]], list[str]]:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder. Give a data folder with --data=DIR.")
    if not (folder / ROWS_FILE).is_file():
        raise UserError(_no_manifest(folder))
    faults: list[str] = []
    info: DatasetInfo | None = None
    try:
        raw = files.read_json(folder / INFO_FILE, "Every data folder has one; see README, Data.")
        faults += _info_faults(raw)
        if not faults:
            info = DatasetInfo(**raw)
    except UserError as error:
        faults.append(str(error).replace(f"{folder / INFO_FILE}", INFO_FILE))
    numbered, row_faults = _parse_rows(folder / ROWS_FILE)
    return info, numbered, faults + row_faults


def _parse_rows(path: Path) -> tuple[list[tuple[int, Example]], list[str]]:
    numbered: list[tuple[int, Example]] = []
    faults: list[str] = []
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
            faults.append(f"{ROWS_FILE}:{number}: is not UTF-8 ({error.reason})")
            continue
        example, row_faults = row_schema.loads(text)
        faults += [f"{ROWS_FILE}:{number}: {fault}" for fault in row_faults]
        if example is not None:
            numbered.append((number, example))
    if not seen_line:
        faults.append(f"{ROWS_FILE}: has no rows")
    return numbered, faults


def _info_faults(raw: Any) -> list[str]:
    if not isinstance(raw, dict):
        return [f"{INFO_FILE}: must be a JSON object, is {type(raw).__name__}"]
    faults = []
    known = {field.name for field in dataclasses.fields(DatasetInfo)}
    for name in ("kind", "name", "version", "taxonomy"):
        if name not in raw:
            faults.append(f"{INFO_FILE}: field {name!r} is missing")
        elif not isinstance(raw[name], str):
            faults.append(f"{INFO_FILE}: {name!r} must be text, is {raw[name]!r}")
    faults += [f"{INFO_FILE}: unknown field {name!r}" for name in sorted(set(raw) - known)]
    if not isinstance(raw.get("provenance", {}), Mapping):
        faults.append(f"{INFO_FILE}: 'provenance' must be an object, is {raw['provenance']!r}")
    kind = raw.get("kind")
    if isinstance(kind, str) and kind not in KINDS:
        faults.append(f"{INFO_FILE}: unknown kind {kind!r}; known: {', '.join(KINDS)}")
    if kind == "scenes":
        faults.append(
            f"{INFO_FILE}: kind 'scenes' has no row schema here; rows describe objects and crops"
        )
    title = raw.get("name")
    if isinstance(title, str) and (not title.strip() or "/" in title or title in (".", "..")):
        faults.append(f"{INFO_FILE}: 'name' {title!r} cannot name a folder")
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


def main(arguments: list[str]) -> int:
    """Prints the faults of one data folder; returns 0 for none, 1 for some, 2 for wrong usage."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m trace_jax.data.manifest DIR", file=sys.stderr)
        return 2
    faults = check(arguments[0])
    for fault in faults:
        print(fault)
    if not faults:
        data = read(arguments[0])
        print(
            f"{arguments[0]}: sound; {data.info.name} {data.info.version}, "
            f"{len(data.examples)} rows, "
            f"{len({example.identity for example in data.examples})} identities",
            file=sys.stderr,
        )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
