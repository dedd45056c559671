"""One row of `manifest.jsonl` as JSON and back, with every fault of a row reported at once."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from trace_jax.types import SEVERITIES, SPLITS, Example, PartMaterial

_REQUIRED = ("path", "identity", "object_type", "variant", "severity", "split")
_TEXT = (*_REQUIRED, "caption", "sha256")
_COUNTS = ("view", "draw")
_KNOWN = {field.name for field in dataclasses.fields(Example)}
_NEVER_EMPTY = ("path", "identity", "object_type")


def to_json(example: Example) -> dict[str, Any]:
    """An example as a JSON object; every field is spelled out."""
    return dataclasses.asdict(example) | {
        "materials": [dataclasses.asdict(m) for m in example.materials],
        "functions": list(example.functions),
        "metrics": {name: float(value) for name, value in example.metrics.items()},
    }


def dumps(example: Example) -> str:
    """An example as one line of JSON with sorted keys, without the newline."""
    return json.dumps(to_json(example), sort_keys=True, ensure_ascii=False, separators=(", ", ": "))


def loads(line: str) -> tuple[Example | None, list[str]]:
    """Reads one line of JSON.

    Returns:
      The example and no faults, or None and every fault of the line.
    """
    repeated: list[str] = []

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                repeated.append(f"field {key!r} is written twice")
            seen[key] = value
        return seen

    try:
        raw = json.loads(line, object_pairs_hook=once)
    except (json.JSONDecodeError, RecursionError) as error:
        return None, [f"is not JSON ({error})"]
    return from_json(raw, repeated)


def from_json(raw: Any, faults: list[str] | None = None) -> tuple[Example | None, list[str]]:
    """Turns a parsed JSON value into an example.

    Args:
      raw: any JSON value.
      faults: faults found already; the row is unusable when there are any.

    Returns:
      The example and no faults, or None and every fault.
    """
    faults = list(faults or [])
    if not isinstance(raw, dict):
        return None, [*faults, f"must be a JSON object, is {type(raw).__name__}"]
    faults += [f"unknown field {name!r}" for name in sorted(set(raw) - _KNOWN)]
    faults += [f"field {name!r} is missing" for name in _REQUIRED if name not in raw]
    for name in _TEXT:
        if name in raw:
            faults += _text_faults(name, raw[name])
    for name in _COUNTS:
        value = raw.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            faults.append(f"{name!r} must be a whole number from 0, is {value!r}")
    faults += _choice_faults(raw, "severity", SEVERITIES)
    faults += _choice_faults(raw, "split", SPLITS)
    if isinstance(raw.get("path"), str):
        faults += _path_faults(raw["path"])
    faults += _hash_faults(raw.get("sha256", ""))
    faults += _list_faults(raw)
    faults += _metric_faults(raw.get("metrics", {}))
    if faults:
        return None, faults
    fields = dict(raw)
    fields["materials"] = tuple(PartMaterial(**m) for m in raw.get("materials", ()))
    fields["functions"] = tuple(raw.get("functions", ()))
    fields["metrics"] = {name: float(v) for name, v in raw.get("metrics", {}).items()}
    return Example(**fields), []


def _text_faults(name: str, value: Any) -> list[str]:
    if not isinstance(value, str):
        return [f"{name!r} must be text, is {value!r}"]
    if name in _NEVER_EMPTY and not value.strip():
        return [f"{name!r} is empty"]
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return [f"{name!r} {value!r} cannot be written as UTF-8; rename the file or the label"]
    return []


def _choice_faults(raw: dict[str, Any], name: str, known: tuple[str, ...]) -> list[str]:
    value = raw.get(name)
    if not isinstance(value, str) or value in known:
        return []
    return [f"unknown {name} {value!r}; known: {', '.join(known)}"]


def _path_faults(path: str) -> list[str]:
    if "\0" in path or "\n" in path:
        return [f"path {path!r} has a control character"]
    if path.startswith("/") or (len(path) > 1 and path[1] == ":"):
        return [f"path {path!r} is absolute; give it relative to the data folder"]
    if "\\" in path:
        return [f"path {path!r} has a backslash; separate folders by '/'"]
    parts = path.split("/")
    if ".." in parts:
        return [f"path {path!r} leaves the data folder"]
    if "" in parts or "." in parts:
        # Two spellings of one file would pass as two rows.
        return [f"path {path!r} is not in its plain form (an empty or '.' component)"]
    return []


def _hash_faults(value: Any) -> list[str]:
    if not isinstance(value, str) or not value:
        return []
    if len(value) != 64 or set(value) - set("0123456789abcdef"):
        return [f"'sha256' must be 64 lower-case hex digits, is {value!r}"]
    return []


def _list_faults(raw: dict[str, Any]) -> list[str]:
    faults = []
    materials = raw.get("materials", [])
    if not isinstance(materials, list):
        faults.append(f"'materials' must be a list, is {materials!r}")
        materials = []
    for item in materials:
        if (
            not isinstance(item, dict)
            or set(item) != {"part", "material"}
            or not all(isinstance(text, str) and text for text in item.values())
        ):
            faults.append(f'a material must be {{"part": text, "material": text}}, is {item!r}')
    functions = raw.get("functions", [])
    if not isinstance(functions, list) or not all(isinstance(f, str) and f for f in functions):
        faults.append(f"'functions' must be a list of names, is {functions!r}")
    return faults


def _metric_faults(metrics: Any) -> list[str]:
    if not isinstance(metrics, dict):
        return [f"'metrics' must be an object, is {metrics!r}"]
    faults = []
    for name, value in metrics.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            faults.append(f"metric {name!r} must be a number, is {value!r}")
        elif not math.isfinite(value) or not 0 <= value <= 1:
            faults.append(f"metric {name!r} must lie in 0-1, is {value!r}")
    return faults
