"""Scenes with boxes drawn in: the truth, what the frozen detector finds, and what after FRM."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from trace_jax import files, taxonomy
from trace_jax.images import BadImageError, open_rgb
from trace_jax.report.evaluation import Evaluation
from trace_jax.report.pictures import Picture, data_uri
from trace_jax.report.tables import Cell, Line, Table
from trace_jax.types import LEVELS, PRISTINE

TRUTH_FILE, PREDICTIONS = "truth.json", "predictions"
LEAST_SCORE = 0.3  # below, boxes clutter a picture
_SIDE, _LINE = 420, 2  # pixels: width of a picture as drawn, of a box's line
_RIGHT, _WRONG, _LOOSE, _TRUE = "#1a9850", "#d73027", "#9a9a9a", "#2c7fb8"


@dataclasses.dataclass(frozen=True)
class Sheet:
    """One place: its severities down, truth and conditions across.

    Attributes:
      title: scene type.
      head: titles of the columns.
      lines: (severity, pictures).
    """

    title: str
    head: tuple[str, ...]
    lines: tuple[tuple[str, tuple[Picture, ...]], ...]


def sheets(results: Evaluation, count: int = 2) -> list[Sheet]:
    """Places spread evenly over those with every severity; none picked by hand."""
    if not (results.folder / TRUTH_FILE).is_file():
        return []
    truth = files.read_json(results.folder / TRUTH_FILE)
    boxes: dict[int, list[Mapping[str, Any]]] = {}
    for one in truth["annotations"]:
        boxes.setdefault(one["image_id"], []).append(one)
    layouts: dict[str, dict[str, Mapping[str, Any]]] = {}
    for image in truth["images"]:
        layouts.setdefault(image["layout"], {})[image["severity"]] = image
    most = max(len(rows) for rows in layouts.values())
    whole = [name for name in sorted(layouts) if len(layouts[name]) == most]
    shown = [whole[(2 * k + 1) * len(whole) // (2 * count)] for k in range(min(count, len(whole)))]
    conditions = [c for c in results.of_kind("base", "finetuned", "frm")
                  if (results.folder / PREDICTIONS / f"{c.name}.json").is_file()]  # fmt: skip
    needed = {image["id"] for name in shown for image in layouts[name].values()}
    found = {
        c.name: _by_image(files.read_json(results.folder / PREDICTIONS / f"{c.name}.json"), needed)
        for c in conditions
    }
    names = {number: name for name, number in _ids().items()}
    sheets = []
    for layout in dict.fromkeys(shown):
        lines = []
        for severity in (PRISTINE, *LEVELS):
            if severity not in layouts[layout]:
                continue
            image = layouts[layout][severity]
            own = boxes.get(image["id"], [])
            pictures = [_drawn(results, image, [(b["bbox"], names.get(b["category_id"], "") or
                        b["object_type"], _TRUE) for b in own], f"truth, {severity}")]  # fmt: skip
            for c in conditions:
                marked = _marked(found[c.name].get(image["id"], []), own, names)
                pictures.append(_drawn(results, image, marked, f"{c.title}, {severity}"))
            lines.append((severity, tuple(pictures)))
        first = next(iter(layouts[layout].values()))
        sheets.append(
            Sheet(
                first["scene_type"].replace("_", " "),
                ("truth", *(c.title for c in conditions)),
                tuple(lines),
            )
        )
    return sheets


def confusion_table(results: Evaluation, count: int = 8) -> Table | None:
    """What localised objects are taken for, most often first, by condition."""
    given = results.meta.get("confusions")
    if not given:
        return None
    titles = {c.name: c.title for c in results.conditions}
    lines = []
    for name, rows in given.items():
        told = "; ".join(f"{is_} as {said} {n}×" for is_, said, n in rows[:count])
        lines.append(Line(titles.get(name, name), (Cell(told or "none"),)))
    return Table(
        "What is taken for what",
        f"Detections of burnt objects with IoU of at least 0.5 and a score of at least "
        f"{LEAST_SCORE} that name another category.",
        ("Condition", "is, named, how often"),
        tuple(lines),
    )


def category_table(results: Evaluation) -> Table | None:
    """Average precision of each category over L0-L4, categories down."""
    given = results.meta.get("by_category")
    if not given:
        return None
    titles = {c.name: c.title for c in results.conditions}
    categories = sorted({name for found in given.values() for name in found})
    lines = [
        Line(
            category,
            tuple(
                Cell(f"{100 * found[category]:.1f}" if category in found else "–")
                for found in given.values()
            ),
        )
        for category in categories
    ]
    heads = tuple(titles.get(name, name) for name in given)
    return Table(
        "Average precision by category, %",
        f"mAP@0.5:0.95 over {results.pooled}; categories without an object have no line.",
        ("Category", *heads),
        tuple(lines),
    )


def _ids() -> dict[str, int]:
    known = taxonomy.load()
    return {name: known.coco_id(name) for name in known.coco_categories}


def _by_image(
    found: Sequence[Mapping[str, Any]], needed: set[int]
) -> dict[int, list[Mapping[str, Any]]]:
    rows: dict[int, list[Mapping[str, Any]]] = {}
    for one in found:
        if one["image_id"] in needed and one["score"] >= LEAST_SCORE:
            rows.setdefault(one["image_id"], []).append(one)
    return rows


def _marked(
    found: Sequence[Mapping[str, Any]], truth: Sequence[Mapping[str, Any]], names: Mapping[int, str]
) -> list[tuple[Sequence[float], str, str]]:
    """Boxes with label and colour: right, misnamed, or on nothing."""
    marked = []
    for one in found:
        best = max(truth, key=lambda t: _iou(one["bbox"], t["bbox"]), default=None)
        colour = _LOOSE
        if best is not None and _iou(one["bbox"], best["bbox"]) >= 0.5:
            colour = _RIGHT if best["category_id"] == one["category_id"] else _WRONG
        label = f"{names.get(one['category_id'], '?')} {one['score']:.2f}"
        marked.append((one["bbox"], label, colour))
    return marked


def _iou(a: Sequence[float], b: Sequence[float]) -> float:
    wide = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    tall = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    if wide <= 0 or tall <= 0:
        return 0.0
    return wide * tall / (a[2] * a[3] + b[2] * b[3] - wide * tall)


def _drawn(
    results: Evaluation,
    image: Mapping[str, Any],
    boxes: Sequence[tuple[Sequence[float], str, str]],
    alt: str,
) -> Picture:
    path = results.picture(image["file_name"])
    if path is None:
        return Picture("", alt)
    try:
        picture = open_rgb(path)
    except BadImageError:
        return Picture("", alt)
    scale = _SIDE / picture.width
    picture = picture.resize((_SIDE, round(picture.height * scale)), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(picture)
    font = ImageFont.load_default(11)
    for (x, y, w, h), label, colour in boxes:
        left, top, right, low = (scale * v for v in (x, y, x + w, y + h))
        pen.rectangle((left, top, right, low), outline=colour, width=_LINE)
        at = (left + 2, max(top - 13, 0))
        pen.rectangle(pen.textbbox(at, label, font=font), fill=colour)
        pen.text(at, label, fill="white", font=font)
    return Picture(data_uri(picture), alt)
