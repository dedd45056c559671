"""What must hold of the data files of a taxonomy; each breach is one line."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trace_jax.taxonomy.vocabulary import GROUPS, LEVELS, METRICS, PLACEMENTS

# The paper's numbers (section 3, C.5).
COUNTS: Mapping[str, int] = {
    "object_types": 189,
    "materials": 11,
    "functions": 20,
    "coco_categories": 55,
    "environments": 4,
    "scene_types": 30,
    "identities": 499,
}
COCO_SIZE = 80  # categories, ids 1 to 90
LARGEST = 10.0  # metres, the longest side of a type
FEWEST_IDENTITIES = 2  # of a type

Tables = Mapping[str, Any]
_RULES = {
    "articles": [str],
    "spelling": {"*": str},
    "singular": {"*": str},
    "type": {"plural_only": [str], "cuts": [str], "openings": [str], "modifiers": [str]},
    "material": {"forms": [str], "joints": [str], "fillers": [str], "negations": [str]},
    "function": {"fillers": [str]},
}
# What each table looks like: [x] is a list of x, {"*": x} a table of any names; other tables have
# these fields and no other. Which fields must be there is for the checks below.
_SHAPES: Mapping[str, Any] = {
    "words": _RULES,
    "materials": {"*": {"failure_order": int, "includes": str, "words": [str]}},
    "functions": {"*": {"source": str, "meaning": str, "words": [str]}},
    "severity": {
        "failure_order": [str],
        "metrics": {"*": str},
        "levels": {"*": {"name": str, "description": str} | dict.fromkeys(METRICS, [float])},
    },
    "coco": {"mapped": {"*": int}, "excluded": {"*": {"id": int, "reason": str}}},
    "scenes": {
        "environments": {"*": str},
        "scene_types": {
            "*": {"environment": str, "title": str, "phrase": str, "objects": [str]},
        },
    },
    "object_types": {
        "*": {
            "group": str,
            "functions": [str],
            "coco": str,
            "synonyms": [str],
            "aliases": [str],
            "failure": str,
            "size_m": [float],
            "placement": [str],
            "environments": [str],
            "parts": {"*": [str]},
        }
    },
    "identities": [
        {
            "name": str,
            "object_type": str,
            "style": str,
            "manufacturing": str,
            "colourway": [str],
            "materials": {"*": str},
        }
    ],
}
_FILES = {"object_types": "object_types", "identities": "identities.jsonl"}
_NAMES = {int: "a whole number", float: "a number", str: "text"}


def shape_faults(tables: Tables) -> list[str]:
    """Everything in the raw tables that is not of its shape, and rules of words.toml that miss."""
    found = [
        fault
        for name, shape in _SHAPES.items()
        for fault in _shape_faults(_FILES.get(name, f"{name}.toml"), tables[name], shape)
    ]
    return found or list(_rules(tables["words"]))


def content_faults(tables: Tables, counts: Mapping[str, int]) -> list[str]:
    """Everything wrong in the contents of raw tables that have no `shape_faults`.

    A list of types that need not be the paper's (no "object_types" in `counts`) may leave COCO
    categories, hints of scenes and identities without a type.
    """
    complete = "object_types" in counts
    return [
        *_counts(tables, counts),
        *_materials(tables["materials"], tables["severity"]),
        *_words("functions.toml", tables["functions"], ("meaning", "source")),
        *_severity(tables["severity"]),
        *_types(tables),
        *_coco(tables["coco"], tables["object_types"], complete),
        *_scenes(tables["scenes"], tables["object_types"], complete),
        *_identities(tables["identities"], tables["object_types"], complete),
    ]


def _shape_faults(where: str, value: Any, shape: Any) -> Iterable[str]:
    if _fits(value, shape):
        return
    if isinstance(shape, type):
        yield f"{where} is {value!r}, must be {_NAMES[shape]}"
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{where} is {value!r}, must be a list"
            return
        for number, item in enumerate(value, 1):
            yield from _shape_faults(f"{where}, row {number}", item, shape[0])
    elif not isinstance(value, dict):
        yield f"{where} is {value!r}, must be a table"
    else:
        for field, item in value.items():
            known = shape.get("*") or shape.get(field)
            if known is None:
                yield f"{where}: unknown field {field!r}"
            else:
                yield from _shape_faults(f"{where}: {field}", item, known)


def _fits(value: Any, shape: Any) -> bool:
    if isinstance(shape, type):
        return _is_a(value, shape)
    if isinstance(shape, list):
        inner = shape[0]
        return isinstance(value, list) and all([_fits(item, inner) for item in value])
    if not isinstance(value, dict):
        return False
    inner = shape.get("*")
    if inner:
        return all([_fits(item, inner) for item in value.values()])
    return value.keys() <= shape.keys() and all([_fits(v, shape[k]) for k, v in value.items()])


def _is_a(value: Any, kind: type) -> bool:
    if kind is str:
        return isinstance(value, str) and bool(value.strip())
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (kind is float and isinstance(value, float))


def _rules(rules: Tables) -> Iterable[str]:
    for table, shape in _RULES.items():
        if table not in rules:
            yield f"words.toml: has no {table}"
        elif isinstance(shape, dict) and "*" not in shape:
            for field in shape.keys() - rules[table].keys():
                yield f"words.toml: {table} has no {field}"


def _counts(tables: Tables, counts: Mapping[str, int]) -> Iterable[str]:
    found = {
        "object_types": tables["object_types"],
        "materials": tables["materials"],
        "functions": tables["functions"],
        "coco_categories": tables["coco"].get("mapped", {}),
        "environments": tables["scenes"].get("environments", {}),
        "scene_types": tables["scenes"].get("scene_types", {}),
        "identities": tables["identities"],
    }
    for name, wanted in counts.items():
        if len(found[name]) != wanted:
            yield f"{len(found[name])} {name.replace('_', ' ')}, the paper has {wanted}"


def _missing(where: str, row: Tables, fields: Iterable[str]) -> Iterable[str]:
    for field in fields:
        if field not in row:
            yield f"{where} has no {field}"


def _words(file: str, rows: Tables, fields: tuple[str, ...]) -> Iterable[str]:
    for name, row in rows.items():
        yield from _missing(f"{file}: {name}", row, (*fields, "words"))


def _materials(materials: Tables, severity: Tables) -> Iterable[str]:
    yield from _words("materials.toml", materials, ("includes", "failure_order"))
    orders = [row.get("failure_order", 0) for row in materials.values()]
    if orders != sorted(orders):
        yield "materials.toml: materials must stand in their order of failure"
    steps = severity.get("failure_order", ())
    if not steps:
        yield "severity.toml: failure_order must list what fails before what"
    elif set(orders) != set(range(1, len(steps) + 1)):
        yield f"materials.toml: failure_order must use every rank from 1 to {len(steps)}"


def _severity(severity: Tables) -> Iterable[str]:
    levels = severity.get("levels", {})
    if tuple(levels) != LEVELS:
        yield f"severity.toml: levels are {list(levels)}, must be L0..L4 in order"
    yield from _missing("severity.toml: metrics", severity.get("metrics", {}), METRICS)
    sound = True
    for level, row in levels.items():
        yield from _missing(f"severity.toml: {level}", row, ("name", "description"))
        for metric in METRICS:
            if not _is_range(row.get(metric, ()), 0, 1):
                sound = False
                found = f"{level}.{metric} is {row.get(metric)}"
                yield f"severity.toml: {found}, not 0 <= low < high <= 1"
    # Where the paper's ranges are monotone, so are ours; surface_failure is not (Table 6).
    for metric, sign in (("soot_coverage", 1), ("deformation", 1), ("structural_integrity", -1)):
        middles = [sign * sum(row[metric]) for row in levels.values()] if sound else []
        if middles != sorted(middles):
            yield f"severity.toml: {metric} does not run one way over the levels"


def _is_range(value: Sequence[float], least: float, most: float) -> bool:
    return len(value) == 2 and least <= value[0] < value[1] <= most


def _types(tables: Tables) -> Iterable[str]:
    environments = tables["scenes"].get("environments", {})
    allowed: dict[str, Callable[[Any], bool]] = {
        "group": lambda v: v in GROUPS,
        "functions": lambda v: 1 <= len(v) <= 2,
        "coco": lambda v: v in tables["coco"].get("mapped", {}),
        "synonyms": lambda v: True,
        "failure": lambda v: True,
        "size_m": lambda v: _is_range(v, 0.005, LARGEST),
        "placement": lambda v: bool(v) and set(v) <= set(PLACEMENTS),
        "environments": lambda v: bool(v) and set(v) <= environments.keys(),
        "parts": bool,
    }
    for name, row in tables["object_types"].items():
        where = f"object_types: {name}"
        yield from _missing(where, row, [field for field in allowed if field != "coco"])
        for field, holds in allowed.items():
            if field in row and not holds(row[field]):
                yield f"{where}: {field} {row[field]!r} is not allowed"
        for tag in row.get("functions", ()):
            if tag not in tables["functions"]:
                yield f"{where}: unknown function {tag!r}"
        for part, made_of in row.get("parts", {}).items():
            if not made_of:
                yield f"{where}: part {part} has no material"
            for material in made_of:
                if material not in tables["materials"]:
                    yield f"{where}: part {part} has unknown material {material!r}"


def _coco(coco: Tables, types: Tables, complete: bool) -> Iterable[str]:
    mapped, excluded = coco.get("mapped", {}), coco.get("excluded", {})
    for name, row in excluded.items():
        yield from _missing(f"coco.toml: excluded {name!r}", row, ("id", "reason"))
        if name in mapped:
            yield f"coco.toml: {name!r} is mapped and excluded"
    ids = [*mapped.values(), *(row["id"] for row in excluded.values() if "id" in row)]
    for number, times in collections.Counter(ids).items():
        if not 1 <= number <= 90:
            yield f"coco.toml: id {number!r} is not a COCO id, 1 to 90"
        elif times > 1:
            yield f"coco.toml: id {number} stands {times} times"
    if len(mapped) + len(excluded) != COCO_SIZE:
        yield f"coco.toml: {len(mapped)} mapped and {len(excluded)} excluded, COCO has {COCO_SIZE}"
    claimed = {row.get("coco") for row in types.values()}
    for name in mapped if complete else ():
        if name not in claimed:
            yield f"coco.toml: no type has the COCO category {name!r}"


def _scenes(scenes: Tables, types: Tables, complete: bool) -> Iterable[str]:
    environments, rows = scenes.get("environments", {}), scenes.get("scene_types", {})
    for name, row in rows.items():
        where = f"scenes.toml: {name}"
        yield from _missing(where, row, ("title", "phrase"))
        if row.get("environment") not in environments:
            yield f"{where}: environment {row.get('environment')!r} is unknown"
        for kind in row.get("objects", ()):
            if complete and kind not in types:
                yield f"{where}: object {kind!r} is not a type"
    used = {row.get("environment") for row in rows.values()}
    for name in environments:
        if name not in used:
            yield f"scenes.toml: environment {name} has no scene type"


def _identities(rows: list[Any], types: Tables, complete: bool) -> Iterable[str]:
    counts: collections.Counter[str] = collections.Counter()
    for number, row in enumerate(rows, 1):
        where = f"identities.jsonl line {number}"
        kind = row.get("object_type", "")
        if kind not in types:
            yield f"{where}: object type {kind!r} is unknown"
            continue
        counts[kind] += 1
        name = f"{kind}-{counts[kind]:03d}"
        if row.get("name") != name:
            yield f"{where}: name is {row.get('name')!r}, the {counts[kind]}. {kind} is {name}"
        yield from _missing(f"{where}: {name}", row, ("style", "manufacturing"))
        if not 1 <= len(row.get("colourway", ())) <= 3:
            yield f"{where}: colourway of {name} must be one to three words"
        parts, materials = types[kind].get("parts", {}), row.get("materials", {})
        if materials.keys() != parts.keys():
            yield f"{where}: materials of {name} must name each of the parts {', '.join(parts)}"
        for part, material in materials.items():
            if material not in parts.get(part, (material,)):
                yield f"{where}: {part} of {material!r} is not one of {', '.join(parts[part])}"
    for kind in types if complete else ():
        if counts[kind] < FEWEST_IDENTITIES:
            yield f"identities.jsonl: {kind} has {counts[kind]}, a type needs {FEWEST_IDENTITIES}"
