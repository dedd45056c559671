"""What a model answered to each query, and scoring's view of it in columns."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from trace_jax.errors import FaultsError, UserError
from trace_jax.tasks.records import Columns


@dataclasses.dataclass(frozen=True)
class AnswerRecord:
    """One answer; a line of `answers.jsonl`. With it, scoring needs neither model nor data.

    Attributes:
      task: "material", "description", "function" or "damage".
      condition: "base", "frm", ..., "pristine".
      path: the query's row in the data set; with task and condition it is the record's key.
      shown: path of the image that was shown: the query's own, or the pristine one.
      identity, object_type, group, severity, view, draw: from the query's row.
      materials: the truth, material classes of its parts without repeats.
      functions: the truth, function tags.
      answer: the model's words.
      tokens: how many tokens those are.
      recovered: whether the features went through the recoverer (the gate may have said no).
      expected: the right answer in words, where the task has one ("damage"), else "".
    """

    task: str
    condition: str
    path: str
    shown: str
    identity: str
    object_type: str
    group: str
    severity: str
    view: int
    draw: int
    materials: tuple[str, ...]
    functions: tuple[str, ...]
    answer: str
    tokens: int
    recovered: bool
    expected: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Task, condition and path."""
        return self.task, self.condition, self.path


def line(record: AnswerRecord) -> bytes:
    """The record as one line of JSON."""
    return json.dumps(dataclasses.asdict(record), ensure_ascii=False).encode("utf-8") + b"\n"


def read(path: str | Path, *, partial: bool = False) -> list[AnswerRecord]:
    """Reads lines that `line` made.

    Args:
      path: answers.jsonl.
      partial: drop a last line that a kill has cut short instead of refusing it.

    Raises:
      UserError: there is no such file.
      FaultsError: lines are malformed, or two records have one key.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: not found. Run bin/eval without --rescore first.")
    lines = path.read_bytes().split(b"\n")
    cut = lines.pop()  # what follows the last line end: nothing, unless a kill cut it short
    faults = [] if partial or not cut else [f"{path.name}:{len(lines) + 1}: is cut short"]
    records: dict[tuple[str, str, str], AnswerRecord] = {}
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            value = json.loads(text)
            for name in ("materials", "functions"):
                value[name] = tuple(value[name])
            record = AnswerRecord(**value)
        except (ValueError, TypeError, KeyError) as error:
            faults.append(f"{path.name}:{number}: is no answer ({error})")
            continue
        if record.key in records:
            faults.append(f"{path.name}:{number}: two answers to {', '.join(record.key)}")
        records[record.key] = record
    if faults:
        raise FaultsError(
            f"{path}: cannot be scored", faults, "Run bin/eval again with --overwrite."
        )
    return list(records.values())


def columns(records: Sequence[AnswerRecord], measured: Sequence[Mapping[str, float]]) -> Columns:
    """Records and the numbers that a task read from each, as columns.

    Args:
      records: of one task.
      measured: for each record the same fields.
    """
    text = ("condition", "path", "identity", "group", "severity")
    names = list(measured[0]) if measured else []
    return Columns(
        {name: np.array([getattr(r, name) for r in records], dtype=str) for name in text},
        {
            "view": np.array([r.view for r in records], np.float64),
            **{name: np.array([m[name] for m in measured], np.float64) for name in names},
        },
    )


def overlap(prefix: str, found: Iterable[str], truth: Iterable[str]) -> dict[str, float]:
    """Counts that corpus micro-F1 sums up: right, predicted and true labels of one answer."""
    found, truth = set(found), set(truth)
    return {
        f"{prefix}_right": float(len(found & truth)),
        f"{prefix}_predicted": float(len(found)),
        f"{prefix}_true": float(len(truth)),
    }


def micro_f1(prefix: str) -> Callable[[Columns], tuple[np.ndarray, np.ndarray]]:
    """2 right / (predicted + true), summed over the corpus: the harmonic mean of P and R."""

    def term(c: Columns) -> tuple[np.ndarray, np.ndarray]:
        n = c.number
        return 2 * n[f"{prefix}_right"], n[f"{prefix}_predicted"] + n[f"{prefix}_true"]

    return term


def precision(prefix: str) -> Callable[[Columns], tuple[np.ndarray, np.ndarray]]:
    """right / predicted, summed over the corpus (paper C.3)."""
    return lambda c: (c.number[f"{prefix}_right"], c.number[f"{prefix}_predicted"])


def recall(prefix: str) -> Callable[[Columns], tuple[np.ndarray, np.ndarray]]:
    """right / true, summed over the corpus (paper C.3)."""
    return lambda c: (c.number[f"{prefix}_right"], c.number[f"{prefix}_true"])


def share(name: str) -> Callable[[Columns], tuple[np.ndarray, np.ndarray]]:
    """The mean of a column."""
    return lambda c: (c.number[name], np.ones(len(c)))
