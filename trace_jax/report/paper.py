"""This run beside the paper's figures, each with its place."""

from __future__ import annotations

from pathlib import Path

from trace_jax import files
from trace_jax.report.evaluation import ALL, Evaluation
from trace_jax.report.tables import (
    METRICS,
    Cell,
    Line,
    Table,
    difference,
    interval,
    is_share,
    number,
    signed,
)

PAPER = files.read_json(Path(__file__).with_name("paper_figures.json"))
_ENCODER_TASKS = ("feature_recovery", "retrieval")
_NAMES = {"clip": "paper, CLIP ViT-L/14", "siglip2": "paper, SigLIP2"}


def tables(results: Evaluation) -> list[Table]:
    """The tables that this run has rows for; none for real crops, which have other queries."""
    if results.crops or not results.of_kind("frm"):
        return []
    answers = any(results.has(row["task"], row["metric"]) for row in PAPER["table4"]["rows"]
                  if row["task"] not in _ENCODER_TASKS)  # fmt: skip
    return _hosts_table(results) if answers else [_changes_table(results)]


def _changes_table(results: Evaluation) -> Table:
    """Changes against base beside those of the frozen encoders (Table 3)."""
    hosts = list(dict.fromkeys(f["host"] for f in PAPER["figures"]))
    shown = results.of_kind("frm")
    lines = []
    for (task, metric), (title, _) in METRICS.items():
        if task not in _ENCODER_TASKS:
            continue
        cells = []
        relative = metric == "mse"
        for condition in shown:
            one = results.comparison(task, condition.name, "base", ALL, metric)
            cells.append(Cell("–") if one is None else difference(metric, one, relative, p=False))
        for host in hosts:
            figure = next(
                (
                    f
                    for f in PAPER["figures"]
                    if (f["host"], f["task"], f["metric"]) == (host, task, metric)
                ),
                None,
            )
            cells.append(
                Cell("–")
                if figure is None
                else Cell(signed(metric, figure["value"], relative), figure["place"])
            )
        unit = ", relative" if relative else ", points" if is_share(metric) else ""
        lines.append(Line(title.removesuffix(", %") + unit, tuple(cells)))
    heads = [f"{c.title}, this run" for c in shown] + [_NAMES.get(h, h) for h in hosts]
    return Table(
        "Changes against base", PAPER["note"], (f"Over {results.pooled}", *heads), tuple(lines)
    )


def _hosts_table(results: Evaluation) -> list[Table]:
    """Base, with FRM and the gain, by task: this run's FRMs, then the paper's hosts (Table 4)."""
    found: list[Table] = []
    for task, metric in dict.fromkeys((r["task"], r["metric"]) for r in PAPER["table4"]["rows"]):
        base = results.row(task, "base", ALL, metric)
        if base is None:
            continue
        lines = []
        for condition in results.of_kind("frm"):
            own = results.row(task, condition.name, ALL, metric)
            one = results.comparison(task, condition.name, "base", ALL, metric)
            if own is None:
                continue
            lines.append(
                Line(
                    f"{results.meta['host']['name']}, {condition.title}",
                    (
                        Cell(number(metric, base["value"]), interval(metric, base)),
                        Cell(number(metric, own["value"]), interval(metric, own)),
                        Cell("–") if one is None else difference(metric, one, False, p=False),
                    ),
                    "frm",
                )
            )
        for row in PAPER["table4"]["rows"]:
            if (row["task"], row["metric"]) == (task, metric):
                gain = (row["frm"] - row["base"]) / 100
                lines.append(
                    Line(
                        f"paper, {row['host']}",
                        (
                            Cell(f"{row['base']:.2f}"),
                            Cell(f"{row['frm']:.2f}"),
                            Cell(signed(metric, gain)),
                        ),
                    )
                )
        note = f"{PAPER['note']} {PAPER['table4']['place']}." if not found else ""
        found.append(
            Table(
                METRICS[task, metric][0], note, ("Host", "Base", "with FRM", "gain"), tuple(lines)
            )
        )
    return found
