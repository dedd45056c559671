"""The statistics page of a data folder, after the paper's Figures 6 to 8.

One static HTML file: how many of what (types, materials, functions, severity, scenes, boxes), the
severity metrics against Table 6, a contact sheet, and the sheet that sets common image corruptions
beside what fire does to the same object.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trace_jax import files, images, taxonomy
from trace_jax.report import corruptions
from trace_jax.report.pictures import data_uri
from trace_jax.types import LEVELS, PRISTINE, SEVERITIES, Example, SceneExample

_CSS = Path(__file__).parent / "page.css"
_BARS = 40  # rows of a bar chart before the rest is summed up
_SHOWN = 12  # objects of the contact sheet
# Paper section 3: mentions of the most frequent material classes.
_PAPER_MENTIONS = {"plastic": 1315, "metal": 948, "fabric": 390, "wood": 287}


@dataclasses.dataclass(frozen=True)
class Bar:
    """One bar: its label, its length, and a few words beside it."""

    label: str
    value: float
    note: str = ""


class DataFolder(Protocol):
    """What is shown: a data.manifest.Dataset; the report itself reads no data folders."""

    @property
    def info(self) -> Any: ...
    @property
    def rows(self) -> Sequence[Any]: ...
    @property
    def examples(self) -> Sequence[Example]: ...
    @property
    def scenes(self) -> Sequence[SceneExample]: ...
    def path(self, row: Any) -> Path: ...


def write(data: DataFolder, out: str | Path) -> Path:
    """Writes the page of a data folder; see the module."""
    files.write_text(Path(out), page(data))
    return Path(out)


def page(data: DataFolder) -> str:
    """The page as text."""
    scenes = data.info.kind == "scenes"
    sections = _scene_sections(data) if scenes else _object_sections(data)
    body = "".join(f"<section><h2>{escape(t)}</h2>{content}</section>" for t, content in sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(data.info.name)}: statistics</title><style>"
        f"{_CSS.read_text(encoding='utf-8')}{_STYLE}</style></head><body><header>"
        f'<p class="eyebrow">Data set</p><h1>{escape(data.info.name)}</h1>'
        f'<p class="lead">{escape(_lead(data))}</p></header><main>{body}</main></body></html>'
    )


_STYLE = """
.bars{display:grid;grid-template-columns:max-content 1fr;gap:2px 10px;max-width:46em}
.bars .bar{background:var(--accent,#b5562c);height:1em;min-width:1px;border-radius:2px}
.bars .row{display:flex;gap:8px;align-items:center}.bars small{opacity:.7}
.sheet td{padding:2px;text-align:center}.sheet img{width:96px;height:96px;object-fit:contain}
.inside{font-weight:600}.counts{width:auto}.counts td,.counts th{padding-right:2em}
.ladder td small{white-space:normal;display:inline-block}
"""


def _lead(data: DataFolder) -> str:
    if data.info.kind == "scenes":
        layouts = len({row.layout for row in data.scenes})
        boxes = sum(len(row.boxes) for row in data.scenes)
        return f"{len(data.rows):,} scenes of {layouts:,} layouts, {boxes:,} boxes."
    rows = data.examples
    identities = {row.identity for row in rows}
    types = {row.object_type for row in rows}
    return f"{len(rows):,} images of {len(identities):,} identities of {len(types)} types."


def bars(rows: Iterable[Bar]) -> str:
    """A bar chart as HTML; the longest bar fills its column."""
    rows = list(rows)
    if not rows:
        return "<p>none</p>"
    longest = max(row.value for row in rows) or 1.0
    lines = [
        f"<span>{escape(row.label)}</span><span class='row'><span class='bar' "
        f"style='width:{75 * row.value / longest:.2f}%'></span>"
        f"<small>{escape(_beside(row))}</small></span>"
        for row in rows
    ]
    return f"<div class='bars'>{''.join(lines)}</div>"


def _beside(row: Bar) -> str:
    number = f"{row.value:,.0f}" if row.value else ""
    return " · ".join(text for text in (number, row.note) if text)


def counted(counts: Mapping[str, int], notes: Mapping[str, str] | None = None) -> list[Bar]:
    """Counts as bars, most frequent first, the tail summed up."""
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    notes = notes or {}
    shown = [
        Bar(name.replace("_", " "), count, notes.get(name, "")) for name, count in order[:_BARS]
    ]
    rest = order[_BARS:]
    if rest:
        fewest, most = rest[-1][1], rest[0][1]
        total = sum(count for _, count in rest)
        shown.append(Bar(f"{len(rest)} more", 0, f"{fewest} to {most} each, {total:,} in all"))
    return shown


def _object_sections(data: DataFolder) -> list[tuple[str, str]]:
    rows = data.examples
    first = {row.identity: row for row in reversed(rows)}
    types = taxonomy.load().types
    groups = Counter(
        types[row.object_type].group if row.object_type in types else "unknown"
        for row in first.values()
    )
    materials = Counter(part.material for row in first.values() for part in row.materials)
    paper = {name: f"paper: {count:,} mentions" for name, count in _PAPER_MENTIONS.items()}
    sections = [
        ("Object types", bars(counted(Counter(row.object_type for row in first.values())))),
        ("Groups", bars(counted(groups))),
        ("Materials, mentions by part", bars(counted(materials, paper))),
        ("Functions", bars(counted(Counter(f for row in first.values() for f in row.functions)))),
        ("Severity and splits", _cross(rows)),
    ]
    if any(row.metrics for row in rows):
        sections.append(("Severity metrics against Table 6", ladder(rows)))
    sections.append(("Objects", _sheet(data)))
    compared = _corruption_sheet(data)
    if compared:
        sections.append(("Image corruption and physical transformation", compared))
    return sections


def _scene_sections(data: DataFolder) -> list[tuple[str, str]]:
    rows = data.scenes
    boxes = [box for row in rows for box in row.boxes]
    per_image = Counter(str(len(row.boxes)) for row in rows)
    order = sorted(per_image, key=int)
    seen = [100 * box.visible for box in boxes]
    return [
        ("Environments", bars(counted(Counter(row.environment or "unknown" for row in rows)))),
        ("Scene types", bars(counted(Counter(row.scene_type or "unknown" for row in rows)))),
        ("Severity and splits", _cross(rows)),
        ("Boxes an image", bars(Bar(n, per_image[n]) for n in order)),
        ("Width of a box, % of the image", bars(shares(_widths(rows), range(0, 101, 10), "%"))),
        ("Part of the object that is seen", bars(shares(seen, range(0, 101, 20), "%"))),
        ("COCO categories", bars(counted(Counter(b.coco or "no COCO category" for b in boxes)))),
        ("Object types", bars(counted(Counter(b.object_type for b in boxes)))),
        ("Materials", bars(counted(Counter(m for b in boxes for m in b.materials)))),
        ("Scenes", _scene_sheet(data)),
    ]


def _widths(rows: Sequence[SceneExample]) -> list[float]:
    return [min(100 * box.box[2] / row.width, 100.0) for row in rows for box in row.boxes]


def _cross(rows: Sequence[Example | SceneExample]) -> str:
    splits = [s for s in ("train", "val", "test") if any(row.split == s for row in rows)]
    counts = Counter((row.severity, row.split) for row in rows)
    head = "".join(f"<th>{s}</th>" for s in splits)
    lines = "".join(
        f"<tr><th>{severity}</th>"
        + "".join(f"<td>{counts[severity, s]:,}</td>" for s in splits)
        + "</tr>"
        for severity in SEVERITIES
        if any(counts[severity, s] for s in splits)
    )
    head = f"<thead><tr><th></th>{head}</tr></thead>"
    return _scroll(f"<table class='counts'>{head}<tbody>{lines}</tbody></table>")


def _scroll(table: str) -> str:
    """A table that a narrow window scrolls sideways, instead of the whole page."""
    return f"<div class='scroll'>{table}</div>"


def shares(values: Iterable[float], edges: Sequence[float], unit: str = "") -> list[Bar]:
    """A histogram as bars: how many values from each edge up to the next, the last one included."""
    counts, _ = np.histogram(np.array(list(values), np.float64), np.array(edges))
    return [
        Bar(f"{low:g} to {high:g}{unit}", int(count))
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    ]


def ladder(rows: Sequence[Example]) -> str:
    """Median, middle 90% and share inside Table 6's range of each metric at each level."""
    levels = taxonomy.load().severity
    lines = []
    for metric, meaning in taxonomy.load().metrics.items():
        cells = []
        for level in levels:
            found = [
                row.metrics[metric]
                for row in rows
                if row.severity == level.name and metric in row.metrics
            ]
            low, high = level.ranges[metric]
            if not found:
                cells.append("<td>–</td>")
                continue
            values = np.array(found)
            inside = float(np.mean((values >= low) & (values <= high)))
            cells.append(
                f"<td>{np.median(values):.2f} <small>{np.percentile(values, 5):.2f}–"
                f"{np.percentile(values, 95):.2f}</small><br><small>paper {low:.2f}–{high:.2f}, "
                f"<span class='inside'>{inside:.0%}</span> inside</small></td>"
            )
        title = escape(metric.replace("_", " "))
        lines.append(f"<tr><th title='{escape(meaning)}'>{title}</th>{''.join(cells)}</tr>")
    head = "".join(f"<th>{level.name}</th>" for level in levels)
    note = "Median, middle 90%, and the share of images inside the paper's range."
    return f"<p class='note'>{note}</p>" + _scroll(
        f"<table class='ladder'><thead><tr><th></th>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


def _trajectories(data: DataFolder) -> list[dict[str, Example]]:
    """Whole trajectories, evenly through the types."""
    by_identity: dict[str, dict[str, Example]] = defaultdict(dict)
    for row in data.examples:
        if row.view == 0 and row.draw == 0:
            by_identity[row.identity].setdefault(row.severity, row)
    whole = [
        found for found in by_identity.values() if all(s in found for s in (PRISTINE, *LEVELS))
    ]
    one_a_type = list({found[PRISTINE].object_type: found for found in reversed(whole)}.values())
    one_a_type.sort(key=lambda found: found[PRISTINE].object_type)
    step = max(1, len(one_a_type) // _SHOWN)
    return one_a_type[::step][:_SHOWN]


def _sheet(data: DataFolder) -> str:
    chosen = _trajectories(data)
    if not chosen:
        return "<p>no whole trajectory</p>"
    states = (PRISTINE, *LEVELS)
    lines = [
        "<tr><th>"
        + escape(found[PRISTINE].object_type.replace("_", " "))
        + "</th>"
        + "".join(_cell(data, found[s]) for s in states)
        + "</tr>"
        for found in chosen
    ]
    head = "".join(f"<th>{s}</th>" for s in states)
    return _scroll(f"<table class='sheet'><tr><th></th>{head}</tr>{''.join(lines)}</table>")


def _scene_sheet(data: DataFolder) -> str:
    by_layout: dict[str, dict[str, SceneExample]] = defaultdict(dict)
    for row in data.scenes:
        by_layout[row.layout].setdefault(row.severity, row)
    order = sorted(by_layout.values(), key=lambda found: (-len(found), min(found)))
    step = max(1, len(order) // 6)
    lines = [
        "<tr>"
        + "".join(_cell(data, found[s], wide=True) for s in SEVERITIES if s in found)
        + "</tr>"
        for found in order[::step][:6]
    ]
    return _scroll(f"<table class='sheet'>{''.join(lines)}</table>")


def _cell(data: DataFolder, row: Any, wide: bool = False) -> str:
    style = " style='width:150px;height:auto'" if wide else ""
    try:
        picture = images.open_rgb(data.path(row))
    except images.BadImageError:
        return "<td>not readable</td>"
    picture.thumbnail((256, 256))
    alt = escape(row.caption or row.path, quote=True)
    return f'<td><img{style} src=\'{data_uri(picture)}\' alt="{alt}" title="{alt}"></td>'


def _corruption_sheet(data: DataFolder) -> str:
    chosen = _trajectories(data)[:3]
    if not chosen:
        return ""
    lines = []
    for found in chosen:
        try:
            pristine = images.open_rgb(data.path(found[PRISTINE]))
        except images.BadImageError:
            continue
        burnt = "".join(_cell(data, found[s]) for s in (PRISTINE, *LEVELS))
        spoiled = "".join(
            f"<td><img src='{data_uri(change(pristine))}' alt=''><br><small>{name}</small></td>"
            for name, change in corruptions.CORRUPTIONS.items()
        )
        name = escape(found[PRISTINE].object_type.replace("_", " "))
        lines.append(f"<tr><th>{name}, fire</th>{burnt}</tr>")
        lines.append(f"<tr><th>{name}, corruption</th>{spoiled}</tr>")
    states = "".join(f"<th>{s}</th>" for s in (PRISTINE, *LEVELS))
    note = (
        "Common corruptions change how an intact object is recorded; fire changes the object "
        "(paper Figure 8)."
    )
    table = f"<table class='sheet'><tr><th></th>{states}</tr>{''.join(lines)}</table>"
    return f"<p class='note'>{note}</p>{_scroll(table)}"
