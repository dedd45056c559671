"""One row of `manifest.jsonl` as JSON and back, with every fault of a row reported at once.

Rows of kind "scenes" are `types.SceneExample` (`scene_rows`), all others `types.Example`.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, overload

from trace_jax.data import fields, scene_rows
from trace_jax.data.faults import Fault
from trace_jax.types import PRISTINE, SEVERITIES, SPLITS, Example, PartMaterial, SceneExample

Row = Example | SceneExample

_REQUIRED = ("path", "identity", "object_type", "variant", "severity", "split")
# Younger than the first manifests: left out where empty, so that those keep their bytes.
_OMITTED_EMPTY = ("description", "failure_notes")
_TEXT = (*_REQUIRED, "caption", "sha256", *_OMITTED_EMPTY)
_COUNTS = ("view", "draw")
_KNOWN = {field.name for field in dataclasses.fields(Example)}
_NEVER_EMPTY = ("path", "identity", "object_type")


def subject_of(row: Row) -> str:
    """What a row shows a state of: its identity, or the layout of a scene."""
    return row.layout if isinstance(row, SceneExample) else row.identity


def view_of(row: Row) -> int:
    """Which view a row shows; a scene has one, view 0."""
    return 0 if isinstance(row, SceneExample) else row.view


def draw_of(row: Row) -> int:
    """Which fire a row shows; a layout burns once, draw 0."""
    return 0 if isinstance(row, SceneExample) else row.draw


def is_reference(row: Row) -> bool:
    """Whether a row is its subject's pristine reference."""
    return row.severity == PRISTINE and view_of(row) == 0


def kind_of(raw: Any) -> str:
    """ "scenes" for the JSON object of a scene's row, "objects" for any other value."""
    return "scenes" if isinstance(raw, dict) and "layout" in raw else "objects"


def to_json(row: Row) -> dict[str, Any]:
    """A row as a JSON object; every field is spelled out but those that older rows lack."""
    if isinstance(row, SceneExample):
        return scene_rows.to_json(row)
    raw = dataclasses.asdict(row) | {
        "materials": [dataclasses.asdict(m) for m in row.materials],
        "functions": list(row.functions),
        "metrics": {name: float(value) for name, value in row.metrics.items()},
    }
    return {name: value for name, value in raw.items() if value or name not in _OMITTED_EMPTY}


def dumps(row: Row) -> str:
    """A row as one line of JSON with sorted keys, without the newline."""
    return json.dumps(to_json(row), sort_keys=True, ensure_ascii=False, separators=(", ", ": "))


def parse(line: str) -> tuple[Any, list[Fault]]:
    """One line as a JSON value (None where it is none), and what is wrong with it as JSON."""
    repeated: list[Fault] = []

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                repeated.append(Fault("repeated-field", f"field {key!r} is written twice"))
            seen[key] = value
        return seen

    try:
        return json.loads(line, object_pairs_hook=once), repeated
    except (ValueError, RecursionError) as error:  # ValueError: also a number of 5,000 digits
        return None, [Fault("not-json", f"is not JSON ({error})")]


@overload
def loads(line: str) -> tuple[Example | None, list[Fault]]: ...
@overload
def loads(line: str, kind: str) -> tuple[Row | None, list[Fault]]: ...
def loads(line: str, kind: str = "objects") -> tuple[Row | None, list[Fault]]:
    """Reads one line of JSON as a row of a data set of that kind.

    Returns:
      The row and no faults, or None and every fault of the line.
    """
    raw, faults = parse(line)
    if raw is None and faults:
        return None, faults
    return from_json(raw, faults, kind)


@overload
def from_json(
    raw: Any, faults: list[Fault] | None = None
) -> tuple[Example | None, list[Fault]]: ...
@overload
def from_json(
    raw: Any, faults: list[Fault] | None = None, kind: str = ...
) -> tuple[Row | None, list[Fault]]: ...
def from_json(
    raw: Any, faults: list[Fault] | None = None, kind: str = "objects"
) -> tuple[Row | None, list[Fault]]:
    """Turns a parsed JSON value into a row.

    Args:
      raw: any JSON value.
      faults: faults found already; the row is unusable when there are any.
      kind: of the data set; "scenes" gives a `SceneExample`, the others an `Example`.

    Returns:
      The row and no faults, or None and every fault.
    """
    faults = list(faults or [])
    if not isinstance(raw, dict):
        what = f"must be a JSON object, is {type(raw).__name__}"
        return None, [*faults, Fault("not-object", what)]
    if kind == "scenes":
        return scene_rows.from_json(raw, faults)
    faults += fields.keys(raw, _REQUIRED, _KNOWN)
    for name in _TEXT:
        if name in raw:
            faults += fields.text(name, raw[name], empty=name not in _NEVER_EMPTY)
    for name in _COUNTS:
        faults += fields.count(name, raw.get(name, 0))
    faults += fields.choice("severity", raw.get("severity"), SEVERITIES)
    faults += fields.choice("split", raw.get("split"), SPLITS)
    faults += fields.path(raw.get("path"))
    faults += fields.sha256(raw.get("sha256", ""))
    faults += _material_faults(raw.get("materials", []))
    faults += fields.names("functions", raw.get("functions", []))
    faults += _metric_faults(raw.get("metrics", {}))
    if faults:
        return None, faults
    known = dict(raw)
    known["materials"] = tuple(PartMaterial(**m) for m in raw.get("materials", ()))
    known["functions"] = tuple(raw.get("functions", ()))
    known["metrics"] = {name: float(v) for name, v in raw.get("metrics", {}).items()}
    return Example(**known), []


def _material_faults(materials: Any) -> list[Fault]:
    if not isinstance(materials, list):
        return [Fault("wrong-type", f"'materials' must be a list, is {materials!r}")]
    return [
        Fault("wrong-type", f'a material must be {{"part": text, "material": text}}, is {item!r}')
        for item in materials
        if not isinstance(item, dict)
        or set(item) != {"part", "material"}
        or not all(isinstance(text, str) and text for text in item.values())
    ]


def _metric_faults(metrics: Any) -> list[Fault]:
    if not isinstance(metrics, dict):
        return [Fault("wrong-type", f"'metrics' must be an object, is {metrics!r}")]
    return [
        fault
        for name, value in metrics.items()
        for fault in fields.fraction(f"metric {name!r}", value)
    ]
