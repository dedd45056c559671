"""Tables once, for HTML and Markdown alike: severity tables and paired tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from trace_jax.report.evaluation import ALL, Evaluation

TASKS = {
    "detection": "Detection",
    "retrieval": "Retrieval",
    "feature_recovery": "Feature recovery",
    "material": "Material recovery",
    "description": "Pristine description",
    "function": "Functional reasoning",
    "damage": "Questions about the damage",
}
METRICS = {
    ("detection", "map"): ("mAP@0.5:0.95, %", "COCO-mapped, class-aware; higher is better"),
    ("detection", "map_50"): ("mAP@0.5, %", ""),
    ("detection", "ar"): ("Average recall, %", ""),
    ("detection", "misclassified_share"): (
        "Misclassified, % of localised boxes",
        "detections on an object (IoU at least 0.5) that name another category; lower is better",
    ),
    ("retrieval", "r_at_1"): ("R@1, %", "the right {target} comes first; higher is better"),
    ("retrieval", "r_at_5"): ("R@5, %", "it is among the first five; higher is better"),
    ("feature_recovery", "mse"): ("Mean squared error", "of tokens; lower is better"),
    ("feature_recovery", "cosine"): ("Mean token cosine", "higher is better"),
    ("material", "micro_f1"): ("Material micro-F1, %", "of the named material classes"),
    ("material", "unparseable"): ("Unreadable answers on materials, %", "counted as wrong"),
    ("description", "description_score"): (
        "Description score, %",
        "mean of identity accuracy, material micro-F1 and function accuracy",
    ),
    ("description", "identity_accuracy"): ("Identity accuracy, %", "of the described object"),
    ("description", "micro_f1"): ("Material micro-F1 of descriptions, %", ""),
    ("description", "function_accuracy"): ("Function accuracy, %", "of the described use"),
    ("function", "function_score"): (
        "Function score, %",
        "mean of the two micro-F1 below: what it was for, what restoring it takes",
    ),
    ("function", "function_f1"): ("Function micro-F1, %", ""),
    ("function", "restoration_f1"): ("Restoration-material micro-F1, %", ""),
    ("damage", "accuracy"): (
        "Right answers about the damage, %",
        "what can be seen now; recovery has nothing to add here and the gate keeps it out",
    ),
}
# The one metric of each task that stands for it: in paired tests, sentences and charts.
HEADLINES = (
    ("detection", "map"),
    ("retrieval", "r_at_1"),
    ("feature_recovery", "mse"),
    ("feature_recovery", "cosine"),
    ("material", "micro_f1"),
    ("description", "description_score"),
    ("description", "identity_accuracy"),
    ("function", "function_score"),
    ("damage", "accuracy"),
)
# Errors and cosines are printed as they are, everything else is a share, printed in percent.
_PLAIN = ("mse", "cosine")
_LOWER = ("mse", "unparseable", "misclassified_share")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One entry: the number, its interval in small print, whether it is the best of its column."""

    text: str
    small: str = ""
    best: bool = False


@dataclasses.dataclass(frozen=True)
class Line:
    """A row of a table; `kind` is the condition's, for styling ("" for none)."""

    title: str
    cells: tuple[Cell, ...]
    kind: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """Attributes:
    title, note: above the table.
    head: first the title of the line titles, then one a column.
    lines: its rows.
    """

    title: str
    note: str
    head: tuple[str, ...]
    lines: tuple[Line, ...]

    def markdown(self) -> str:
        """The table as GitHub Markdown, titled."""
        rows = [
            "| " + " | ".join(_escape(h) for h in self.head) + " |",
            "| " + " | ".join(["---", *["---:"] * (len(self.head) - 1)]) + " |",
        ]
        for line in self.lines:
            cells = [
                (f"**{c.text}**" if c.best else c.text) + (f" ({c.small})" if c.small else "")
                for c in line.cells
            ]
            rows.append("| " + " | ".join(_escape(t) for t in (line.title, *cells)) + " |")
        note = f"{self.note}\n\n" if self.note else ""
        return f"### {self.title}\n\n{note}" + "\n".join(rows) + "\n"


def severity_table(results: Evaluation, task: str, metric: str) -> Table | None:
    """Conditions down, severities across; the best fair condition of a column is marked."""
    if not results.has(task, metric):
        return None
    title, note = METRICS[task, metric]
    note = note.format(target=results.target)
    severities = [
        s
        for s in results.severities()
        if any(results.row(task, c.name, s, metric) for c in results.conditions)
    ]
    best = {s: _best(results, task, metric, s) for s in severities}
    lines = []
    for condition in results.conditions:
        # Controls answer no questions: where a condition has nothing to show, it has no line.
        if not any(results.row(task, condition.name, s, metric) for s in severities):
            continue
        cells = []
        for severity in severities:
            row = results.row(task, condition.name, severity, metric)
            cells.append(
                Cell("–")
                if row is None
                else Cell(
                    number(metric, row["value"]), interval(metric, row), row in best[severity]
                )
            )
        lines.append(Line(condition.title, tuple(cells), condition.kind))
    heads = [results.pooled if s == ALL else s for s in severities]
    counts = [_count(results, task, metric, s) for s in severities]
    heads = [f"{head} (n={n})" for head, n in zip(heads, counts, strict=True)]
    return Table(title, note, ("Condition", *heads), tuple(lines))


def comparison_table(results: Evaluation, task: str, metric: str) -> Table | None:
    """Paired differences, pooled over all levels, with interval and p-value."""
    relative = metric == "mse"
    rivals = [
        rival
        for rival in results.conditions
        if rival.name in ("base", "mean_shift", "ridge")
        and any(
            results.comparison(task, c.name, rival.name, ALL, metric) for c in results.conditions
        )
    ]
    lines = []
    for condition in results.of_kind("frm", "control", "oracle"):
        found = [results.comparison(task, condition.name, r.name, ALL, metric) for r in rivals]
        if not any(found):
            continue
        cells = [Cell("–") if one is None else difference(metric, one, relative) for one in found]
        lines.append(Line(condition.title, tuple(cells), condition.kind))
    if not lines:
        return None
    unit = METRICS[task, metric][0].replace(", %", ", points")
    if relative:
        unit += ", relative"
    heads = tuple(f"against {rival.title}" for rival in rivals)
    return Table(
        f"Paired differences: {unit}",
        "",
        ("Condition", *heads),
        tuple(lines),
    )


def group_table(results: Evaluation) -> Table | None:
    """Hazards and everyday objects as two groups: pooled R@1, and MSE."""
    groups = [g for g in dict.fromkeys(r["group"] for r in results.rows) if g != ALL]
    columns = [
        (g, task, metric)
        for task, metric in (("retrieval", "r_at_1"), ("feature_recovery", "mse"))
        for g in groups
        if results.has(task, metric)
    ]
    if not columns:
        return None
    lines = []
    for condition in results.conditions:
        cells = []
        for group, task, metric in columns:
            row = results.row(task, condition.name, ALL, metric, group)
            cells.append(
                Cell("–")
                if row is None
                else Cell(number(metric, row["value"]), interval(metric, row))
            )
        lines.append(Line(condition.title, tuple(cells), condition.kind))
    heads = []
    for group, task, metric in columns:
        n = max(
            (
                r["n"]
                for c in results.conditions
                if (r := results.row(task, c.name, ALL, metric, group))
            ),
            default=0,
        )
        heads.append(f"{METRICS[task, metric][0]}: {group} (n={n})")
    return Table(
        "Two groups of objects",
        f"Pooled over {results.pooled}. Hazards are the types that responders must find and "
        "secure.",
        ("Condition", *heads),
        tuple(lines),
    )


def is_share(metric: str) -> bool:
    """Whether values are shares, printed in percent."""
    return not metric.startswith(_PLAIN)


def number(metric: str, value: float) -> str:
    """A value as printed: percent for recalls, three decimals for the rest."""
    return f"{100 * value:.1f}" if is_share(metric) else f"{value:.3f}"


def signed(metric: str, value: float, relative: bool = False) -> str:
    """A difference as printed, always with its sign; relative ones in percent."""
    scale, digits, unit = 1.0, 3, ""
    if relative:
        scale, digits, unit = 100.0, 1, "%"
    elif is_share(metric):
        scale, digits = 100.0, 1
    text = f"{value * scale:+.{digits}f}"
    if float(text) == 0:
        text = text.replace("+", "").replace("-", "")
    return text.replace("-", "−") + unit


def interval(metric: str, row: Mapping[str, Any]) -> str:
    """A row's interval as printed, "" where it has none or none that would show."""
    if row["low"] is None:
        return ""
    low, high = number(metric, row["low"]), number(metric, row["high"])
    return "" if low == high == number(metric, row["value"]) else f"{low}–{high}"


def p_value(p: float) -> str:
    """A p-value as printed."""
    return "p<0.001" if p < 0.001 else f"p={p:.3f}"


def difference(metric: str, one: Mapping[str, Any], relative: bool, p: bool = True) -> Cell:
    """A paired test as a cell: the difference, its interval and, where asked for, its p."""
    prefix = "relative" if relative else "difference"
    if one[prefix] is None:
        return Cell("–")
    low, high = (
        (one["relative_low"], one["relative_high"]) if relative else (one["low"], one["high"])
    )
    small = (
        ""
        if low is None
        else f"{signed(metric, low, relative)} to {signed(metric, high, relative)}"
    )
    if p:
        small = f"{small}, {p_value(one['p'])}".removeprefix(", ")
    return Cell(signed(metric, one[prefix], relative), small)


def _best(results: Evaluation, task: str, metric: str, severity: str) -> list[Mapping[str, Any]]:
    # Oracles and the ceiling do not compete; what prints equal shares the mark.
    fair = [
        row
        for c in results.of_kind("base", "frm", "control")
        if (row := results.row(task, c.name, severity, metric))
    ]
    if len(fair) < 2:
        return []
    top = (min if metric in _LOWER else max)(row["value"] for row in fair)
    return [row for row in fair if number(metric, row["value"]) == number(metric, top)]


def _count(results: Evaluation, task: str, metric: str, severity: str) -> str:
    counts = {
        row["n"] for c in results.conditions if (row := results.row(task, c.name, severity, metric))
    }
    low, high = min(counts), max(counts)
    return f"{low}" if low == high else f"{low}–{high}"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
