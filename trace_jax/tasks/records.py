"""What evaluation leaves on disk about every query, and scoring's view of it in columns."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trace_jax import files
from trace_jax.errors import FaultsError, UserError


@dataclasses.dataclass(frozen=True)
class Record:
    """One query under one condition; a line of `records.jsonl`. None means not measured.

    Attributes:
      condition: "base", "frm", ...
      path: the query's row in the data set; with the condition it is the record's key.
      shown: path of the image whose features were used: the query's own, and under condition
        "pristine" the pristine image that stands in for it.
      identity, object_type, severity, view, draw: from the query's row.
      group: "hazard", "everyday", or "" where the taxonomy does not know the type.
      tokens: real tokens of the image, the weight of mse and cosine.
      mse, cosine: of the recovered tokens against the identity's pristine reference view.
      rank: gallery images at least as similar as the target; 0 is best.
      similarity: pooled cosine with the target.
      nearest: best first, [identity, path, cosine] of gallery images.
    """

    condition: str
    path: str
    shown: str
    identity: str
    object_type: str
    group: str
    severity: str
    view: int
    draw: int
    tokens: int | None = None
    mse: float | None = None
    cosine: float | None = None
    rank: int | None = None
    similarity: float | None = None
    nearest: tuple[tuple[str, str, float], ...] | None = None


_FIELDS = {field.name: field for field in dataclasses.fields(Record)}


def write(path: str | Path, records: Iterable[Record]) -> None:
    """Writes one JSON object a line, atomically, in the order given."""
    with files.atomic_writer(path) as stream:
        for record in records:
            value = {name: getattr(record, name) for name in _FIELDS}
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
            stream.write(text.encode("utf-8") + b"\n")


def read(path: str | Path) -> list[Record]:
    """Reads what `write` wrote.

    Raises:
      UserError: there is no such file.
      FaultsError: lines are malformed, or one condition has two records of one query.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: not found. Run bin/eval without --rescore first.")
    records: list[Record] = []
    faults: list[str] = []
    seen: set[tuple[str, str]] = set()
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            nearest = value["nearest"]
            if nearest is not None:
                value["nearest"] = tuple((str(i), str(p), float(s)) for i, p, s in nearest)
            record = Record(**value)
        except (ValueError, TypeError, KeyError) as error:
            faults.append(f"{path.name}:{number}: is not a record ({error})")
            continue
        key = (record.condition, record.path)
        if key in seen:
            faults.append(f"{path.name}:{number}: {key[0]} has two records of {key[1]}")
        seen.add(key)
        records.append(record)
    if faults:
        raise FaultsError(
            f"{path}: cannot be scored", faults, "Run bin/eval again with --overwrite."
        )
    return records


@dataclasses.dataclass(frozen=True)
class Columns:
    """Records as arrays of equal length; numbers that were not measured are NaN.

    Attributes:
      text: [n] string arrays by field name.
      number: [n] float64 arrays by field name.
    """

    text: dict[str, np.ndarray]
    number: dict[str, np.ndarray]

    @classmethod
    def of(cls, records: Sequence[Record]) -> Columns:
        """Turns rows into columns."""
        text = ("condition", "path", "identity", "group", "severity")
        number = ("view", "tokens", "mse", "cosine", "rank")
        return cls(
            {name: np.array([getattr(r, name) for r in records], dtype=str) for name in text},
            {
                name: np.array([_nan(getattr(r, name)) for r in records], dtype=np.float64)
                for name in number
            },
        )

    def where(self, keep: np.ndarray) -> Columns:
        """The records that `keep` (mask or indices) names."""
        return Columns(
            {name: column[keep] for name, column in self.text.items()},
            {name: column[keep] for name, column in self.number.items()},
        )

    def __len__(self) -> int:
        return len(self.text["path"])


def paired(left: Columns, right: Columns) -> tuple[Columns, Columns]:
    """Both sides reduced to the queries they share, in the left side's order."""
    if np.array_equal(left.text["path"], right.text["path"]):  # the usual case, and quick
        return left, right
    where = {path: index for index, path in enumerate(right.text["path"].tolist())}
    pairs = [(i, where[p]) for i, p in enumerate(left.text["path"].tolist()) if p in where]
    index = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return left.where(index[:, 0]), right.where(index[:, 1])


def _nan(value: Any) -> float:
    return float("nan") if value is None else float(value)
