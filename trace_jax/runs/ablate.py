"""Ablations: several trainings, evaluated alike, in one table; the library body of `bin/ablate`.

OUT/
  train/<run>/      one FRM a run of the grid, as bin/train leaves it
  eval/<group>/     one results folder for all rows that share a tap and a treatment of DeepStack
  ablation.json     the table's numbers
  ablation.md       the table

Everything goes on where a kill stopped it: trainings resume, finished ones and their records stay.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from trace_jax import files, tasks
from trace_jax.errors import UserError
from trace_jax.runs import cache as cache_run
from trace_jax.runs import evaluate, train
from trace_jax.runs.conditions import BASE, PRISTINE
from trace_jax.train import config as strict

DEFAULT_ROOT = Path("runs/ablate")
_KEPT = "kept"


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
      title: as printed.
      run: name of the training whose FRM it is.
      deepstack: what becomes of the host's streams, see runs.answering.
      streams: names of the trainings of the streams' FRMs, for "recovered".
      paper: metric -> the paper's figure, 0-100 for shares.
    """

    title: str
    run: str
    deepstack: str = _KEPT
    streams: tuple[str, ...] = ()
    paper: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class AblationConfig:
    """A grid; see configs/qwen3vl_loss.py.

    Attributes:
      name: of the ablation; it writes to runs/ablate/<name>.
      title: above the table.
      place: where the paper tells of it.
      page: the FRM page that all runs start from.
      runs: training -> what it changes on the page, section by section.
      rows: lines of the table.
      columns: "task/metric" of each column.
      ends: figures of the paper for the rows "No FRM" and "Pristine ceiling".
    """

    name: str
    title: str
    place: str
    page: ConfigDict
    runs: Mapping[str, Mapping[str, Any]]
    rows: tuple[Row, ...]
    columns: tuple[tuple[str, str], ...]
    ends: Mapping[str, Mapping[str, float]]

    @classmethod
    def read(cls, page: ConfigDict) -> AblationConfig:
        """From a config page.

        Raises:
          UserError: the page is no ablation, or its rows name runs that it has not.
        """
        if page.get("kind") != "ablation":
            raise UserError(
                f"kind={page.get('kind')!r}: bin/ablate takes pages of kind 'ablation'."
            )
        given = page.to_dict()
        rows = tuple(
            strict.build(Row, {**row, "streams": tuple(row.get("streams", ()))}, "config.rows")
            for row in given["rows"]
        )
        named = {row.run for row in rows} | {name for row in rows for name in row.streams}
        missing = sorted(named - set(given["runs"]))
        if missing:
            raise UserError(f"{page.name}: rows name runs that the page has not: {missing}")
        columns = tuple((one.split("/")[0], one.split("/")[1]) for one in given["columns"])
        unknown = sorted({task for task, _ in columns} - set(tasks.ALL_TASKS))
        if unknown:
            raise UserError(f"{page.name}: unknown tasks in columns: {unknown}")
        return cls(
            name=page.name,
            title=page.title,
            place=page.place,
            page=page.page,
            runs=given["runs"],
            rows=rows,
            columns=columns,
            ends=given["ends"],
        )


def run(
    page: ConfigDict,
    *,
    load_host: Callable[..., Any],
    data: Path | None = None,
    weights: str | None = None,
    out: Path | None = None,
    split: str = "test",
    limit: int = 0,
    command: str = "",
) -> Path:
    """Trains every run of the grid, evaluates, and writes the table.

    Args:
      page: an ablation page of configs/.
      load_host: `converters.load_host`.
      data: data folder, None for the embedded one.
      weights: of the host, None for its own.
      out: default runs/ablate/<name>.
      split: whose identities are asked about.
      limit: only so many identities; 0 for all.
      command: what the user typed.

    Returns:
      The table, `ablation.md`.

    Raises:
      UserError: page, data or weights do not fit; a training was stopped.
    """
    config = AblationConfig.read(page)
    out = out or DEFAULT_ROOT / config.name
    trained: dict[str, Path] = {}
    for number, (name, changes) in enumerate(config.runs.items(), start=1):
        print(f"{number}/{len(config.runs)} {name}: {_told(changes) or 'the page as it is'}")
        own = _page(config.page, name, changes)
        features = cache_run.run(
            cache_run.CacheConfig(
                host=own.host.name, data=data, tap=own.host.tap, weights=weights or None
            ),
            load_host=load_host,
        )
        own.data.cache = str(features.folder)
        done = train.run(own, load_host=load_host, workdir=out / "train" / name)
        if done.fit.status != "finished":
            raise UserError(f"{name}: {done.fit.status}; run the same command again to go on.")
        trained[name] = done.best or done.last
    found: dict[int, Path] = {}
    for group, members in _groups(config).items():
        first = config.rows[members[0]]
        own = _page(config.page, first.run, config.runs[first.run])
        folder = evaluate.run(
            evaluate.EvaluateConfig(
                tasks=tuple(dict.fromkeys(task for task, _ in config.columns)),
                frm=tuple(f"{config.rows[k].run}={trained[config.rows[k].run]}" for k in members),
                host=own.host.name,
                tap=own.host.tap,
                data=data,
                weights=weights,
                split=split,
                limit=limit,
                out=out / "eval" / group,
                deepstack=first.deepstack,
                streams=tuple(str(trained[name]) for name in first.streams),
                command=command,
            ),
            load_host=load_host,
        )
        found |= dict.fromkeys(members, folder)
    lines = _lines(config, found)
    files.write_json(
        out / "ablation.json",
        {"name": config.name, "title": config.title, "split": split, "command": command}
        | {"columns": ["/".join(one) for one in config.columns], "rows": lines},
    )
    files.write_text(out / "ablation.md", _markdown(config, lines, split))
    return out / "ablation.md"


def _page(page: ConfigDict, name: str, changes: Mapping[str, Any]) -> ConfigDict:
    own = copy.deepcopy(page)
    own.update(changes)
    own.name = name
    return own


def _told(changes: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{section}.{name}={value}"
        for section, fields in changes.items()
        for name, value in fields.items()
    )


def _groups(config: AblationConfig) -> dict[str, list[int]]:
    """Rows that one evaluation covers: of one tap and one treatment of the streams."""
    found: dict[str, list[int]] = {}
    for number, row in enumerate(config.rows):
        own = _page(config.page, row.run, config.runs[row.run])
        found.setdefault(f"{own.host.tap}-{row.deepstack}", []).append(number)
    return found


def _lines(config: AblationConfig, found: Mapping[int, Path]) -> list[dict[str, Any]]:
    """The table's rows: no FRM, every row, the ceiling; values with intervals, None where none."""
    results = {folder: files.read_json(folder / "results.json") for folder in found.values()}

    def cells(folder: Path, condition: str, severity: str) -> dict[str, Any]:
        rows = {
            (r["task"], r["metric"]): r
            for r in results[folder]["rows"]
            if (r["condition"], r["severity"]) == (condition, severity)
        }
        return {
            "/".join(key): {name: rows[key][name] for name in ("value", "low", "high")}
            if key in rows
            else None
            for key in config.columns
        }

    first = found[0]
    body = [
        {
            "title": row.title,
            "run": row.run,
            "paper": dict(row.paper),
            "cells": cells(found[number], row.run, "all"),
        }
        for number, row in enumerate(config.rows)
    ]
    ends = [
        {"title": title, "run": "", "paper": dict(config.ends.get(title, {}))}
        | {"cells": cells(first, condition, severity)}
        for title, condition, severity in (
            ("No FRM", BASE, "all"),
            ("Pristine ceiling", PRISTINE, PRISTINE),
        )
    ]
    return [ends[0], *body, ends[1]]


def _markdown(config: AblationConfig, lines: Sequence[Mapping[str, Any]], split: str) -> str:
    names = ["/".join(one) for one in config.columns]
    with_paper = [name for name in names if any(name in line["paper"] for line in lines)]
    heads = ["Configuration", *names, *(f"{name} (paper)" for name in with_paper)]
    text = [
        f"# {config.title}\n",
        f"Split {split}, pooled over severities, 95% intervals in brackets; the paper's figures, "
        f"where it has them, are of {config.place} and of other data.\n",
        "| " + " | ".join(heads) + " |",
        "| " + " | ".join(["---", *["---:"] * (len(heads) - 1)]) + " |",
    ]
    for line in lines:
        cells = [_cell(name, line["cells"][name]) for name in names]
        paper = [
            f"{line['paper'][name]:.2f}" if name in line["paper"] else "–" for name in with_paper
        ]
        text.append("| " + " | ".join([line["title"], *cells, *paper]) + " |")
    return "\n".join(text) + "\n"


def _cell(name: str, cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "–"
    # Errors and cosines as they are, shares in percent.
    scale, digits = (1.0, 4) if name.split("/")[1] in ("mse", "cosine") else (100.0, 1)
    value, *ends = (
        None if cell[key] is None else f"{scale * cell[key]:.{digits}f}"
        for key in ("value", "low", "high")
    )
    return f"{value} ({ends[0]}–{ends[1]})" if None not in ends else str(value)
