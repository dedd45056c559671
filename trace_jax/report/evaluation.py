"""The results of one evaluation as the report sees them: files only, never the run itself."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_jax import files
from trace_jax.errors import UserError
from trace_jax.types import LEVELS, PRISTINE

ALL = "all"
RESULTS_FILE = "results.json"
RECORDS_FILE = "records.jsonl"
ANSWERS_FILE = "answers.jsonl"

# What a reader is told about each condition; names that are not here are FRMs under names of
# their own and bring their description in meta["conditions"].
_TITLES = {
    "base": ("Base", "the burnt image through the frozen host; nothing is recovered"),
    "frm": ("FRM", "the paper's recovery module at the host's tap"),
    "frm_plus": ("FRM plus", "the recovery module with additions that are not in the paper"),
    "mean_shift": (
        "Mean shift",
        "control: adds the training pairs' mean displacement, blind to object and severity",
    ),
    "mean_shift_oracle": (
        "Mean shift (oracle)",
        "not a fair rival: it is told the true severity of every test image",
    ),
    "ridge": ("Ridge", "control: one linear map for every token, fitted in closed form"),
    "finetuned": ("Fine-tuned", "the host's weights trained on further, on burnt scenes"),
    "finetuned_frm": ("Fine-tuned + FRM", "the recovery module in the fine-tuned host"),
    "pristine": ("Pristine", "ceiling: the pristine image takes the burnt one's place"),
}


@dataclasses.dataclass(frozen=True)
class Condition:
    """A condition as shown: name in results, title, one line of explanation, what kind it is.

    `kind` is "base", "frm", "control", "oracle" or "pristine".
    """

    name: str
    title: str
    about: str
    kind: str


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One results folder, read.

    Attributes:
      folder: where it lies now.
      meta: `results.json`'s "meta".
      rows: its "rows" and "groups" together, those of "rows" with group "all".
      records: lines of `records.jsonl`, empty where the file is missing.
      answers: lines of `answers.jsonl`, likewise.
      conditions: in the order of the rows.
    """

    folder: Path
    meta: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    records: tuple[Mapping[str, Any], ...]
    answers: tuple[Mapping[str, Any], ...]
    conditions: tuple[Condition, ...]

    @classmethod
    def read(cls, folder: str | Path) -> Evaluation:
        """Reads `results.json` and, where present, `records.jsonl`.

        Raises:
          UserError: results are missing, of another schema, or records are not JSON lines.
        """
        folder = Path(folder)
        raw = files.read_json(folder / RESULTS_FILE, "Run bin/eval first.")
        if not isinstance(raw, dict) or raw.get("schema") != 1:
            raise UserError(f"{folder / RESULTS_FILE}: is not a results file of schema 1.")
        rows = [{**row, "group": ALL} for row in raw["rows"]] + list(raw["groups"])
        return cls(
            folder=folder,
            meta=raw["meta"],
            rows=tuple(rows),
            records=tuple(_records(folder / RECORDS_FILE)),
            answers=tuple(_records(folder / ANSWERS_FILE)),
            conditions=tuple(_conditions(raw["rows"], raw["meta"])),
        )

    def row(
        self, task: str, condition: str, severity: str, metric: str, group: str = ALL
    ) -> Mapping[str, Any] | None:
        """The one row of that name, or None."""
        return self._index.get((task, condition, severity, metric, group))

    def comparison(
        self, task: str, condition: str, against: str, severity: str, metric: str
    ) -> Mapping[str, Any] | None:
        """The paired test of that name, or None."""
        for one in self.meta["comparisons"]:
            key = (one["task"], one["condition"], one["against"], one["severity"], one["metric"])
            if key == (task, condition, against, severity, metric):
                return one
        return None

    def has(self, task: str, metric: str) -> bool:
        """Whether any row is of that task and metric."""
        return any(row["task"] == task and row["metric"] == metric for row in self.rows)

    def severities(self) -> list[str]:
        """Levels that have rows, in order, then "all" and "pristine" where they have."""
        found = {row["severity"] for row in self.rows}
        return [s for s in (*LEVELS, ALL, PRISTINE) if s in found]

    @property
    def pooled(self) -> str:
        """Which levels rows over all of them pool, as printed."""
        levels = [s for s in self.severities() if s in LEVELS]
        return "–".join(dict.fromkeys((levels[0], levels[-1]))) if levels else "no levels"

    @property
    def crops(self) -> bool:
        """Whether crops of real photographs asked; they have no trajectories."""
        return "crops" in self.meta

    @property
    def target(self) -> str:
        """What a query looks for: the "object", or any of its "class"."""
        return "class" if self.crops and self.meta["crops"]["match"] == "by_class" else "object"

    def of_kind(self, *kinds: str) -> list[Condition]:
        """Conditions of some kinds, in order."""
        return [c for c in self.conditions if c.kind in kinds]

    def picture(self, path: str) -> Path | None:
        """An image of the data set, wherever the data folder can be found now, or None.

        `name:path` is an image of another set's, where the gallery is of one.
        """
        data = self.meta["data"]
        roots = data["folders"]
        name, _, rest = path.partition(":")
        if "galleries" in data and name in data["galleries"]:
            roots, path = data["galleries"][name], rest
        for root in roots:
            for base in (Path(), self.folder):
                found = base / root / path
                if found.is_file():
                    return found
        return None

    def file(self, path: str) -> Path | None:
        """A file that meta names, from here or from the results folder, or None."""
        for base in (Path(), self.folder):
            if (base / path).is_file():
                return base / path
        return None

    @property
    def _index(self) -> dict[tuple[str, ...], Mapping[str, Any]]:
        # A frozen dataclass caches through __dict__; rows never change after reading.
        if "_rows_by_key" not in self.__dict__:
            keys = ("task", "condition", "severity", "metric", "group")
            self.__dict__["_rows_by_key"] = {tuple(r[k] for k in keys): r for r in self.rows}
        return self.__dict__["_rows_by_key"]


def _conditions(rows: Sequence[Mapping[str, Any]], meta: Mapping[str, Any]) -> list[Condition]:
    described = {c["name"]: c for c in meta["conditions"]}
    found = []
    for name in dict.fromkeys(row["condition"] for row in rows):
        title, about = _TITLES.get(name, (name.replace("_", " "), "a further recovery module"))
        own = described.get(name, {"kind": "frm", "about": ""})
        about = "; ".join(text for text in (about, own["about"]) if text)
        found.append(Condition(name, title, about, own["kind"]))
    return found


def _records(path: Path) -> list[Mapping[str, Any]]:
    if not path.is_file():
        return []
    try:
        return [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]
    except ValueError as error:
        raise UserError(
            f"{path}: is not readable JSON lines ({error}). Run bin/eval --overwrite."
        ) from error
