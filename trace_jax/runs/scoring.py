"""Scoring records that lie on disk: no features, no models, as often as one likes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trace_jax import files, tasks, taxonomy
from trace_jax.errors import UserError
from trace_jax.metrics import intervals
from trace_jax.tasks import records as record_table
from trace_jax.tasks.answers import read as read_answers
from trace_jax.tasks.judge import Judge
from trace_jax.tasks.records import Columns
from trace_jax.types import LEVELS, PRISTINE

SCHEMA = 1
# What a terminal shows: (task, metric) and the column's head.
_SUMMED = {
    ("detection", "map"): "mAP",
    ("detection", "map_50"): "mAP@0.5",
    ("detection", "ar"): "AR",
    ("retrieval", "r_at_1"): "r_at_1",
    ("retrieval", "r_at_5"): "r_at_5",
    ("feature_recovery", "mse"): "mse",
    ("feature_recovery", "cosine"): "cosine",
    ("material", "micro_f1"): "material",
    ("description", "description_score"): "descript.",
    ("description", "identity_accuracy"): "identity",
    ("function", "function_score"): "function",
    ("damage", "accuracy"): "damage",
}
RUN_FILE, RECORDS_FILE, RESULTS_FILE = "run.json", "records.jsonl", "results.json"
ANSWERS_FILE = "answers.jsonl"


def score(
    folder: str | Path,
    *,
    task_names: Sequence[str] = (),
    resamples: int = intervals.RESAMPLES,
    seed: int = 0,
    judge: Judge | None = None,
) -> Path:
    """Scores records that lie in a results folder; no features, no models.

    Args:
      folder: what `evaluate.run` wrote.
      task_names: which tasks; all that have records where empty.
      resamples, seed: of intervals and tests.
      judge: of paraphrases that no table resolves; none never matches.

    Returns:
      The folder, with a new `results.json`.

    Raises:
      UserError: records or run.json are missing or unreadable.
    """
    start = time.monotonic()
    folder = Path(folder)
    state = files.read_json(folder / RUN_FILE, "Run bin/eval without --rescore first.")
    if state.get("schema") != SCHEMA or state.get("meta") is None:
        raise UserError(f"{folder / RUN_FILE}: measuring was not finished. Run bin/eval again.")
    columns = Columns.of(record_table.read(folder / RECORDS_FILE))
    meta = state["meta"]
    scope = tasks.Scope(
        dataset=meta["data"]["name"],
        split=meta["split"],
        gallery=meta["gallery"],
        host=meta["host"]["name"],
        tap=meta["host"]["tap"],
        pristine_view=meta["pristine_view"],
        resamples=resamples,
        seed=seed,
    )
    found = _tables(folder, columns, task_names, judge or Judge())
    rows = [row for task, table in found for row in task.score(table, scope)]
    groups = [
        row for g in taxonomy.GROUPS for task, table in found for row in task.score(table, scope, g)
    ]
    comparisons = [one for task, table in found for one in task.compare(table, scope)]
    meta = meta | {
        "comparisons": [dataclasses.asdict(one) for one in comparisons],
        "statistics": {"confidence": 0.95, "resamples": resamples, "seed": seed},
        "seconds": meta["seconds"] | {"scoring": time.monotonic() - start},
    }
    files.write_json(
        folder / RESULTS_FILE,
        {
            "schema": SCHEMA,
            "meta": meta,
            "rows": [_as_row(row) for row in rows],
            "groups": [dataclasses.asdict(row) for row in groups],
        },
    )
    return folder


def _tables(
    folder: Path, columns: Columns, names: Sequence[str], judge: Judge
) -> list[tuple[tasks.Task, Columns]]:
    """Every task that is asked for and has records, with its columns."""
    found: list[tuple[tasks.Task, Columns]] = [
        (task, columns) for name, task in tasks.TASKS.items() if not names or name in names
    ]
    if not (folder / ANSWERS_FILE).is_file():
        return found
    answers = read_answers(folder / ANSWERS_FILE)
    answers += [
        dataclasses.replace(one, condition=PRISTINE)
        for one in answers
        if one.condition == "base" and one.severity == PRISTINE
    ]
    for name, asked in tasks.GENERATION_TASKS.items():
        if (not names or name in names) and any(one.task == name for one in answers):
            found.append((asked.scorer, asked.columns(answers, judge)))
    return found


def summary(folder: str | Path) -> str:
    """The pooled numbers of a results folder as plain lines for a terminal."""
    raw = files.read_json(Path(folder) / RESULTS_FILE)
    pooled = {
        (r["condition"], r["task"], r["metric"]): r["value"]
        for r in raw["rows"]
        if r["severity"] == "all"
    }
    names = list(dict.fromkeys(condition for condition, _, _ in pooled))
    shown = {key: head for key, head in _SUMMED.items() if any(k[1:] == key for k in pooled)}
    levels = [s for s in LEVELS if any(r["severity"] == s for r in raw["rows"])]
    over = "-".join(dict.fromkeys((levels[0], levels[-1]))) if levels else "no levels"
    lines = [f"{'pooled over ' + over:<19}" + "".join(f"{head:>10}" for head in shown.values())]
    for name in names:
        cells = [pooled.get((name, *key)) for key in shown]
        texts = ["-" if v is None else f"{v:.4f}" for v in cells]
        lines.append(f"{name:<19}" + "".join(f"{text:>10}" for text in texts))
    return "\n".join(lines)


def _as_row(row: Any) -> dict[str, Any]:
    value = dataclasses.asdict(row)
    del value["group"]
    return value
