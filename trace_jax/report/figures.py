"""Line charts as inline SVG: text stays text, colours follow the page's light or dark scheme.

Series differ in colour, dash and marker, so neither colour blindness nor a grey print merges them.
Colours are CSS classes of page.css (Okabe-Ito hues).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from html import escape

from trace_jax.report.evaluation import Condition, Evaluation
from trace_jax.types import LEVELS, PRISTINE

WIDTH, HEIGHT = 460, 310
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 12, 14, 44

# Styles by condition; FRMs under names of their own take the spare ones in turn.
_STYLES = {"base": 0, "frm": 1, "frm_plus": 2, "mean_shift": 3, "mean_shift_oracle": 4}
_STYLES |= {"ridge": 5, "pristine": 6}
_SPARE = (7, 8, 9)
_DASHES = ("", "", "", "7 4", "2 4", "7 3 2 3", "1 4", "", "7 4", "2 4")
_MARKERS = (
    *("circle", "square", "triangle", "diamond", "diamond"),
    *("cross", "circle", "triangle", "square", "cross"),
)


@dataclasses.dataclass(frozen=True)
class Series:
    """A line: x positions, values, optional intervals, and which style it has."""

    name: str
    style: int
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()


def style_of(results: Evaluation, condition: Condition) -> int:
    """A condition's style number, the same in every chart of a page."""
    if condition.name in _STYLES:
        return _STYLES[condition.name]
    others = [c.name for c in results.conditions if c.name not in _STYLES]
    return _SPARE[others.index(condition.name) % len(_SPARE)]


def severity_chart(results: Evaluation, task: str, metric: str, title: str, scale: float) -> str:
    """Conditions over severity with 95% whiskers; "" where fewer than two severities have rows.

    Args:
      results: the evaluation.
      task, metric: whose rows.
      title: of the vertical axis.
      scale: what values are multiplied with, 100 for percent.
    """
    severities = [
        s
        for s in (PRISTINE, *LEVELS)
        if any(results.row(task, c.name, s, metric) for c in results.conditions)
    ]
    if len(severities) < 2:
        return ""
    shown = [
        c
        for c in results.conditions
        if any(results.row(task, c.name, s, metric) for s in severities)
        # The ceiling's gain over base is no gain of a method, and would set the scale.
        and not (c.kind == "pristine" and metric.endswith("_gain"))
    ]
    series = []
    for index, condition in enumerate(shown):
        # Whiskers of different conditions stand side by side, not on top of one another.
        shift = (index - (len(shown) - 1) / 2) * min(0.05, 0.4 / max(len(shown), 1))
        points = [
            (at + shift, row)
            for at, s in enumerate(severities)
            if (row := results.row(task, condition.name, s, metric))
        ]
        series.append(
            Series(
                condition.title,
                style_of(results, condition),
                tuple(x for x, _ in points),
                tuple(scale * row["value"] for _, row in points),
                tuple(_times(scale, row["low"]) for _, row in points),
                tuple(_times(scale, row["high"]) for _, row in points),
            )
        )
    ticks = {float(i): s for i, s in enumerate(severities)}
    return chart(series, title, "severity", (-0.4, len(severities) - 0.6), ticks)


def chart(
    series: Sequence[Series],
    y_title: str,
    x_title: str,
    x_range: tuple[float, float],
    x_ticks: Mapping[float, str],
) -> str:
    """A line chart as one `<svg>` element.

    Args:
      series: at least one, with at least one point.
      y_title, x_title: axis titles.
      x_range: what the horizontal axis spans.
      x_ticks: label of each tick position.
    """
    values = [v for s in series for v in (*s.y, *s.low, *s.high) if v is not None]
    y_ticks = ticks(min(values), max(values))
    bottom, top = y_ticks[0], y_ticks[-1]

    def px(x: float) -> float:
        span = (x_range[1] - x_range[0]) or 1.0
        return _LEFT + (x - x_range[0]) / span * (WIDTH - _LEFT - _RIGHT)

    def py(y: float) -> float:
        return HEIGHT - _BOTTOM - (y - bottom) / (top - bottom) * (HEIGHT - _TOP - _BOTTOM)

    parts = []
    digits = max(0, -math.floor(math.log10(y_ticks[1] - y_ticks[0]) + 1e-9))
    for y in y_ticks:
        label = f"{y:.{digits}f}".replace("-", "−")
        parts.append(
            f'<line class="grid{" zero" if abs(y) < 1e-12 else ""}" x1="{_LEFT}" '
            f'x2="{WIDTH - _RIGHT}" y1="{py(y):.1f}" y2="{py(y):.1f}"/>'
            f'<text x="{_LEFT - 7}" y="{py(y) + 4:.1f}" text-anchor="end">{label}</text>'
        )
    for x, label in x_ticks.items():
        parts.append(
            f'<text x="{px(x):.1f}" y="{HEIGHT - _BOTTOM + 18}" text-anchor="middle">'
            f"{escape(label)}</text>"
        )
    parts.append(
        f'<text class="axis" x="{(_LEFT + WIDTH - _RIGHT) / 2:.1f}" y="{HEIGHT - 6}" '
        f'text-anchor="middle">{escape(x_title)}</text>'
        f'<text class="axis" transform="translate(13 {(HEIGHT - _BOTTOM + _TOP) / 2:.1f}) '
        f'rotate(-90)" text-anchor="middle">{escape(y_title)}</text>'
    )
    for one in series:
        points = [(px(x), py(y)) for x, y in zip(one.x, one.y, strict=True)]
        parts.append(f'<g class="s{one.style}"><title>{escape(one.name)}</title>')
        for (x, _), low, high in zip(points, one.low, one.high, strict=False):
            if low is not None and high is not None:
                parts.append(
                    f'<line class="whisker" x1="{x:.1f}" x2="{x:.1f}" '
                    f'y1="{py(low):.1f}" y2="{py(high):.1f}"/>'
                )
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(
            f'<polyline class="line" points="{path}" stroke-dasharray="{_DASHES[one.style]}"/>'
        )
        if len(points) <= 12:
            parts += [_marker(one.style, x, y) for x, y in points]
        parts.append("</g>")
    label = escape(f"{y_title} by {x_title}")
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        + "".join(parts)
        + "</svg>"
    )


def swatch(style: int) -> str:
    """A short piece of a series' line with its marker, for legends."""
    return (
        f'<svg class="swatch s{style}" viewBox="0 0 34 14" aria-hidden="true">'
        f'<polyline class="line" points="1,7 33,7" stroke-dasharray="{_DASHES[style]}"/>'
        f"{_marker(style, 17, 7)}</svg>"
    )


def training_charts(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Charts of a `metrics.jsonl`: loss, MSE and retrieval on held-out identities, where logged."""
    return [_training(curves, title) for title, curves in _training_curves(rows)]


def training_names(rows: Sequence[Mapping[str, object]]) -> list[tuple[str, int]]:
    """Legend of `training_charts`: series name and style."""
    return list(
        dict.fromkeys(
            (name, style)
            for _, curves in _training_curves(rows)
            for name, (style, _) in curves.items()
        )
    )


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round, evenly spaced numbers that enclose low and high, at least two."""
    if high - low < 1e-12:
        margin = abs(high) * 0.1 or 1.0
        low, high = low - margin, high + margin
    raw = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def _training(curves: Mapping[str, tuple[int, list[tuple[float, float]]]], title: str) -> str:
    last = max(x for _, points in curves.values() for x, _ in points)
    series = [
        Series(name, style, tuple(x for x, _ in points), tuple(y for _, y in points))
        for name, (style, points) in curves.items()
    ]
    marks = {x: f"{x:,.0f}" for x in ticks(0.0, max(last, 1.0), 4)}
    return chart(series, title, "step", (0.0, max(marks)), marks)


def _training_curves(
    rows: Sequence[Mapping[str, object]],
) -> list[tuple[str, dict[str, tuple[int, list[tuple[float, float]]]]]]:
    """(title, {kind: (style, points)}) of each chart that has points."""
    kinds = list(dict.fromkeys(str(row["kind"]) for row in rows))
    styles = {"train": 1, "val": 2} | {
        kind: 3 + index for index, kind in enumerate(k for k in kinds if k not in ("train", "val"))
    }
    found = []
    for key, title in (("loss", "loss"), ("mse", "mean squared error"), ("r_at_1", "R@1")):
        curves = {}
        for kind in kinds:
            points = [
                (float(row["step"]), float(value))  # type: ignore[arg-type]
                for row in rows
                if row["kind"] == kind
                and isinstance(value := row.get(key), int | float)
                and math.isfinite(value)
            ]
            if len(points) > 1:
                names = {"train": "training", "val": "held-out identities"}
                label = names[kind] if kind in names else kind
                curves[label] = (styles[kind] % len(_DASHES), _thinned(points))
        if curves:
            found.append((title, curves))
    return found


def _thinned(points: list[tuple[float, float]], most: int = 240) -> list[tuple[float, float]]:
    """Means of neighbours, so that a long run stays a small picture."""
    size = -(-len(points) // most)
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def _times(scale: float, value: float | None) -> float | None:
    return None if value is None else scale * value


def _marker(style: int, x: float, y: float) -> str:
    shape = _MARKERS[style]
    if shape == "circle":
        return f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="3.6"/>'
    if shape == "cross":
        return f'<path class="line" d="M{x - 3.6:.1f} {y - 3.6:.1f}l7.2 7.2m0 -7.2l-7.2 7.2"/>'
    offsets = {
        "square": ((-3.3, -3.3), (3.3, -3.3), (3.3, 3.3), (-3.3, 3.3)),
        "triangle": ((0, -4.4), (4.2, 3.2), (-4.2, 3.2)),
        "diamond": ((0, -4.6), (4.6, 0), (0, 4.6), (-4.6, 0)),
    }[shape]
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in offsets)
    return f'<polygon class="mark" points="{points}"/>'
