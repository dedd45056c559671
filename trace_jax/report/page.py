"""The report: one static HTML file with everything inlined, and the same tables as Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from trace_jax import files
from trace_jax.report import dialogues, figures, paper, pictures, scenes, tables, words
from trace_jax.report.evaluation import ANSWERS_FILE, RECORDS_FILE, RESULTS_FILE, Evaluation

PAGE_FILE = "report.html"
MARKDOWN_FILE = "results.md"

_CHARTS = (
    ("detection", "map", "mAP@0.5:0.95, %", 100.0),
    ("detection", "map_gain", "mAP gain over base, points", 100.0),
    ("detection", "misclassified_share", "misclassified, % of localised", 100.0),
    ("retrieval", "r_at_1", "R@1, %", 100.0),
    ("retrieval", "r_at_1_gain", "R@1 gain over base, points", 100.0),
    ("feature_recovery", "mse", "mean squared error", 1.0),
    ("feature_recovery", "cosine", "mean token cosine", 1.0),
    ("material", "micro_f1", "material micro-F1, %", 100.0),
    ("description", "description_score", "description score, %", 100.0),
    ("description", "identity_accuracy", "identity accuracy, %", 100.0),
    ("function", "function_score", "function score, %", 100.0),
    ("damage", "accuracy", "right about the damage, %", 100.0),
)


def write(folder: str | Path, *, links: Mapping[str, str] | None = None) -> Path:
    """Writes `results.md` and `report.html` into a results folder.

    Args:
      links: title -> path of other reports, from this folder, shown at the top.
      folder: holds `results.json`, and `records.jsonl` for pictures. Images and training curves
        are found through paths in the meta; what has moved away is left out with a note.

    Returns:
      The path of the HTML page.

    Raises:
      UserError: results are missing or unreadable.
    """
    results = Evaluation.read(folder)
    files.write_text(results.folder / MARKDOWN_FILE, markdown(results))
    page = results.folder / PAGE_FILE
    files.write_text(page, html(results, links or {}))
    return page


def markdown(results: Evaluation) -> str:
    """The headline sentences and every table as GitHub Markdown."""
    meta = results.meta
    parts = [
        f"# {meta['host']['name']} on {meta['data']['name']}, split {meta['split']}\n",
        words.setting(results) + "\n",
        *(
            (f"**{title}.** " if title else "") + " ".join(sentences) + "\n"
            for title, sentences in words.story(results)
        ),
        words.ceiling(results) + "\n",
        *(table.markdown() for table in _tables(results)),
    ]
    if meta["notes"]:
        parts.append("## Notes\n\n" + "".join(f"- {note}\n" for note in meta["notes"]))
    parts.append(f"> {words.notice(results)}\n")
    return "\n".join(parts)


def html(results: Evaluation, links: Mapping[str, str]) -> str:
    """The page as text; links as of `write`."""
    album = pictures.Album(results)
    room = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(room),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    changes = [
        pictures.changes(results, album, condition)
        for condition in results.of_kind("frm")
        if results.records and results.has("retrieval", "r_at_1")
    ]
    sheet = pictures.contact_sheet(results, album)
    return environment.get_template("page.html.j2").render(
        css=Markup((room / "page.css").read_text(encoding="utf-8")),
        meta=results.meta,
        links=links,
        notice=words.notice(results),
        crops=results.crops,
        pooled=results.pooled,
        setting=words.setting(results),
        cards=words.cards(results),
        story=words.story(results),
        ceiling=words.ceiling(results),
        conditions=[
            (c, Markup(figures.swatch(figures.style_of(results, c)))) for c in results.conditions
        ],
        columns=pictures.severities_shown(results),
        sheet=sheet,
        charts=[Markup(chart) for chart in _charts(results)],
        severity_tables=[
            (title, found)
            for task, title in tables.TASKS.items()
            if (found := _severity_tables(results, task))
        ],
        comparisons=_comparisons(results),
        groups=tables.group_table(results),
        paper=paper.tables(results),
        paper_source=paper.PAPER["source"],
        dialogues=dialogues.shown(results, album),
        scenes=scenes.sheets(results),
        detection=_detection(results),
        changes=changes,
        curves=_curves(results),
        facts=_facts(results.meta),
        described=[(c, _described(results.meta, c.name)) for c in results.conditions],
        missing=album.missing,
        downloads=[
            name
            for name in (RESULTS_FILE, MARKDOWN_FILE, RECORDS_FILE, ANSWERS_FILE)
            if (results.folder / name).is_file()
        ],
    )


def _severity_tables(results: Evaluation, task: str) -> list[tables.Table]:
    found = [
        tables.severity_table(results, own, metric) for own, metric in tables.METRICS if own == task
    ]
    return [table for table in found if table]


def _comparisons(results: Evaluation) -> list[tables.Table]:
    found = [
        tables.comparison_table(results, task, metric)
        for task, metric in tables.HEADLINES
        if results.has(task, metric)
    ]
    return [table for table in found if table]


def _tables(results: Evaluation) -> list[tables.Table]:
    groups = tables.group_table(results)
    return [
        *(table for task in tables.TASKS for table in _severity_tables(results, task)),
        *_comparisons(results),
        *([groups] if groups else []),
        *_detection(results),
        *paper.tables(results),
    ]


def _detection(results: Evaluation) -> list[tables.Table]:
    found = (scenes.confusion_table(results), scenes.category_table(results))
    return [table for table in found if table]


def _charts(results: Evaluation) -> list[str]:
    drawn = [figures.severity_chart(results, *chart) for chart in _CHARTS]
    return [chart for chart in drawn if chart]


def _curves(results: Evaluation) -> list[dict[str, Any]]:
    """Training curves of every condition (and the host) whose log can be found."""
    found = []
    for one in results.meta["curves"]:
        path = results.file(one["path"])
        rows = [] if path is None else _metric_rows(path)
        charts = figures.training_charts(rows) if rows else []
        if charts:
            legend = [
                (name, Markup(figures.swatch(style)))
                for name, style in figures.training_names(rows)
            ]
            title = next((c.title for c in results.conditions if c.name == one["name"]), None)
            found.append(
                {
                    "name": title or one["name"],
                    "charts": [Markup(c) for c in charts],
                    "legend": legend,
                }
            )
    return found


def _metric_rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            break  # a run that was killed may leave half a line at the end
        if isinstance(row, dict) and "step" in row and "kind" in row:
            rows.append(row)
    return rows


def _facts(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was run, as pairs of label and value."""
    host, data, statistics = meta["host"], meta["data"], meta["statistics"]
    shape = "×".join(str(n) for n in host["shape"])
    versions = ", ".join(f"{name} {version}" for name, version in meta["versions"].items())
    limit = "" if meta["limit"] is None else f", limited to {meta['limit']} identities"
    counts = ", ".join(f"{s}: {n}" for s, n in meta["queries"].items())
    gallery = (
        f"{meta['gallery_size']} pristine images ({meta['gallery']})"
        if meta["gallery_size"]
        else "none"
    )
    return [
        ("Date", meta["created"]),
        ("Command", meta["command"]),
        ("Host", f"{host['name']}, tap {host['tap']}, tokens {shape}"),
        ("Host weights", host["weights_hash"]),
        ("Data", f"{data['name']} {data['version']}"),
        ("Data hash", data["hash"]),
        ("Split", f"{meta['split']}, {meta['identities']} identities{limit}"),
        ("Queries", counts),
        ("Gallery", gallery),
        (
            "Intervals",
            f"{100 * statistics['confidence']:.0f}% bootstrap by identity, "
            f"{statistics['resamples']} resamples, seed {statistics['seed']}",
        ),
        *_answer_facts(meta),
        ("Time", ", ".join(f"{name} {value:.1f} s" for name, value in meta["seconds"].items())),
        ("Versions", versions),
        ("Machine", meta["machine"]),
    ]


def _answer_facts(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How questions were asked, where any were."""
    if "answers" not in meta:
        return []
    given = meta["answers"]
    speed = given["tokens_per_second"]
    pace = "" if speed is None else f", {speed:.0f} tokens a second"
    return [
        (
            "Questions",
            f"{', '.join(given['tasks'])}; gate {given['gate']}, judge {given['judge']}, DeepStack "
            f"{given['deepstack']}; {given['batch_size']} images a call{pace}",
        ),
        *(("Not asked about", one) for one in given["skipped"]),
    ]


def _described(meta: Mapping[str, Any], name: str) -> str:
    """Where a condition's parameters come from."""
    one = next((c for c in meta["conditions"] if c["name"] == name), None)
    if one is None:
        return ""
    parts = [one["origin"]]
    if one["sha256"]:
        parts.append(f"sha256 {one['sha256'][:16]}…")
    if one["num_params"]:
        parts.append(f"{one['num_params']:,} parameters")
    return "; ".join(part for part in parts if part)
