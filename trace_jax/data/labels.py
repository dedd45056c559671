"""Labels of rows against the vocabulary that their data set names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from trace_jax import taxonomy
from trace_jax.data.faults import Fault
from trace_jax.data.validation import Numbered
from trace_jax.types import SceneBox, SceneExample

Found = Iterator[tuple[str, str]]  # name and text of a fault


def is_known(name: str) -> bool:
    """Whether labels of a vocabulary can be checked: only the package's own is at hand."""
    return name == taxonomy.load().name


def label_faults(rows: Numbered, name: str) -> list[Fault]:
    """Labels that the vocabulary does not know, and COCO names that are not their type's.

    Args:
      rows: the rows.
      name: the vocabulary that `dataset.json` names. Labels of one that is not `is_known`, or of
        none (""), are not checked.
    """
    if not is_known(name):
        return []
    known = taxonomy.load()
    strangers = _strangers(known)
    return [
        Fault(kind, text).at("manifest.jsonl", line)
        for line, row in rows
        for kind, text in (
            _scene_faults(known, strangers, row)
            if isinstance(row, SceneExample)
            else _object_faults(strangers, row)
        )
    ]


def _strangers(known: Any) -> Callable[[str, str, str], Found]:
    sets = {
        "type": set(known.object_types),
        "material": set(known.materials),
        "function": set(known.functions),
        "metric": set(known.metrics),
        "coco": set(known.coco_categories),
        "environment": set(known.environments),
        "scene-type": set(known.scene_types),
    }

    def strangers(kind: str, what: str, value: str) -> Found:
        if value not in sets[kind]:
            yield f"unknown-{kind}", f"{what} {value!r} is not in taxonomy {known.name!r}"

    return strangers


def _object_faults(strangers: Callable[[str, str, str], Found], row: Any) -> Found:
    yield from strangers("type", "object type", row.object_type)
    for item in row.materials:
        yield from strangers("material", "material", item.material)
    for function in row.functions:
        yield from strangers("function", "function", function)
    for metric in row.metrics:
        yield from strangers("metric", "metric", metric)


def _scene_faults(
    known: Any, strangers: Callable[[str, str, str], Found], row: SceneExample
) -> Found:
    if row.environment:
        yield from strangers("environment", "environment", row.environment)
    if row.scene_type:
        yield from strangers("scene-type", "scene type", row.scene_type)
    if row.environment in known.environments and row.scene_type in known.scene_types:
        wanted = known.scene_type_of[row.scene_type].environment
        if row.environment != wanted:
            text = f"scene type {row.scene_type!r} is {wanted}, not {row.environment}"
            yield "environment-disagrees", text
    for number, box in enumerate(row.boxes):
        for kind, text in _box_faults(known, strangers, box):
            yield kind, f"box {number}: {text}"


def _box_faults(known: Any, strangers: Callable[[str, str, str], Found], box: SceneBox) -> Found:
    yield from strangers("type", "object type", box.object_type)
    for material in box.materials:
        yield from strangers("material", "material", material)
    if box.coco and box.coco not in known.coco_categories:
        yield from strangers("coco", "COCO category", box.coco)
    elif box.object_type in known.types:
        wanted = known.coco_of(box.object_type) or ""
        if box.coco != wanted:
            text = f"{box.object_type!r} is {wanted or 'none'!r} in COCO's words, not {box.coco!r}"
            yield "coco-disagrees", text
