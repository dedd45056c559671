"""What must hold of the data files of a taxonomy; each breach is one line."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping
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
    "type": ("plural_only", "cuts", "openings", "modifiers"),
    "material": ("forms", "joints", "fillers", "negations"),
    "function": ("fillers",),
}


def faults(tables: Tables, counts: Mapping[str, int]) -> list[str]:
    """Every fault of the raw tables that `reading.read_tables` gives.

    A list of types that need not be the paper's (no "object_types" in `counts`) may leave COCO
    categories, hints of scenes and identities without a type.
    """
    complete = "object_types" in counts
    return [
        *_counts(tables, counts),
        *rule_faults(tables["words"]),
        *_materials(tables["materials"], tables["severity"]),
        *_words("functions.toml", tables["functions"], ("meaning", "source")),
        *_severity(tables["severity"]),
        *_types(tables),
        *_coco(tables["coco"], tables["object_types"], complete),
        *_scenes(tables["scenes"], tables["object_types"], complete),
        *_identities(tables["identities"], tables["object_types"], complete),
    ]


def rule_faults(rules: Tables) -> list[str]:
    """Faults of words.toml."""
    found = []
    if not _is_texts(rules.get("articles")):
        found.append("words.toml: articles must be a list of words")
    for table in ("spelling", "singular"):
        row = rules.get(table)
        if not isinstance(row, dict) or not all(map(_is_text, row.values())):
            found.append(f"words.toml: {table} must give a word for each word")
    for table, fields in _RULES.items():
        row = rules.get(table)
        for field in fields:
            if not isinstance(row, dict) or not _is_texts(row.get(field)):
                found.append(f"words.toml: {table}.{field} must be a list of words")
    return found


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


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _words(file: str, rows: Tables, texts: tuple[str, ...]) -> Iterable[str]:
    for name, row in rows.items():
        for field in texts:
            if not _is_text(row.get(field)):
                yield f"{file}: {name} has no {field}"
        if not _is_texts(row.get("words")):
            yield f"{file}: {name} needs words, a list of phrases"


def _materials(materials: Tables, severity: Tables) -> Iterable[str]:
    yield from _words("materials.toml", materials, ("includes",))
    orders = [row.get("failure_order") for row in materials.values()]
    if not all(isinstance(order, int) for order in orders):
        yield "materials.toml: every material needs a failure_order"
    elif orders != sorted(orders):
        yield "materials.toml: materials must stand in their order of failure"
    steps = severity.get("failure_order", [])
    if not steps or not _is_texts(steps):
        yield "severity.toml: failure_order must list what fails before what"
    elif set(orders) != set(range(1, len(steps) + 1)):
        yield f"materials.toml: failure_order must use every rank from 1 to {len(steps)}"


def _severity(severity: Tables) -> Iterable[str]:
    levels = severity.get("levels", {})
    if tuple(levels) != LEVELS:
        yield f"severity.toml: levels are {list(levels)}, must be L0..L4 in order"
    for metric in METRICS:
        if not _is_text(severity.get("metrics", {}).get(metric)):
            yield f"severity.toml: metric {metric} has no definition"
    sound = True
    for level, row in levels.items():
        for field in ("name", "description"):
            if not _is_text(row.get(field)):
                yield f"severity.toml: {level} has no {field}"
        for metric in METRICS:
            if not _is_range(row.get(metric), 0, 1):
                sound = False
                found = f"{level}.{metric} is {row.get(metric)}"
                yield f"severity.toml: {found}, not 0 <= low < high <= 1"
    # Where the paper's ranges are monotone, so are ours; surface_failure is not (Table 6).
    for metric, sign in (("soot_coverage", 1), ("deformation", 1), ("structural_integrity", -1)):
        middles = [sign * sum(row[metric]) for row in levels.values()] if sound else []
        if middles != sorted(middles):
            yield f"severity.toml: {metric} does not run one way over the levels"


def _is_range(value: Any, least: float, most: float) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(v, int | float) and not isinstance(v, bool) for v in value)
        and least <= value[0] < value[1] <= most
    )


def _types(tables: Tables) -> Iterable[str]:
    known: dict[str, Callable[[Any], bool]] = {
        "group": lambda v: v in GROUPS,
        "functions": lambda v: _is_texts(v) and 1 <= len(v) <= 2,
        "coco": lambda v: v in tables["coco"].get("mapped", {}),
        "synonyms": _is_texts,
        "aliases": _is_texts,
        "failure": _is_text,
        "size_m": lambda v: _is_range(v, 0.005, LARGEST),
        "placement": lambda v: _is_texts(v) and bool(v) and set(v) <= set(PLACEMENTS),
        "environments": lambda v: (
            _is_texts(v) and bool(v) and set(v) <= set(tables["scenes"].get("environments", {}))
        ),
        "parts": lambda v: isinstance(v, dict) and bool(v),
    }
    optional = {"coco", "aliases"}
    for name, row in tables["object_types"].items():
        where = f"object_types: {name}"
        if not isinstance(row, dict):
            yield f"{where} is not a table"
            continue
        for field in row.keys() - known.keys():
            yield f"{where}: unknown field {field!r}"
        for field, holds in known.items():
            if field not in row:
                if field not in optional:
                    yield f"{where}: has no {field}"
            elif not holds(row[field]):
                yield f"{where}: {field} {row[field]!r} is not allowed"
        for tag in row.get("functions", ()):
            if tag not in tables["functions"]:
                yield f"{where}: unknown function {tag!r}"
        if isinstance(row.get("parts"), dict):
            yield from _parts(where, row["parts"], tables["materials"])


def _parts(where: str, parts: Tables, materials: Tables) -> Iterable[str]:
    for part, made_of in parts.items():
        if not _is_texts(made_of) or not made_of:
            yield f"{where}: part {part} has no material"
            continue
        for material in made_of:
            if material not in materials:
                yield f"{where}: part {part} has unknown material {material!r}"


def _coco(coco: Tables, types: Tables, complete: bool) -> Iterable[str]:
    mapped, excluded = coco.get("mapped", {}), coco.get("excluded", {})
    for name, row in excluded.items():
        if not isinstance(row, dict) or not _is_text(row.get("reason")):
            yield f"coco.toml: excluded {name!r} needs a reason"
        if name in mapped:
            yield f"coco.toml: {name!r} is mapped and excluded"
    ids = [*mapped.values(), *(r.get("id") for r in excluded.values() if isinstance(r, dict))]
    for number, times in collections.Counter(ids).items():
        if not isinstance(number, int) or not 1 <= number <= 90:
            yield f"coco.toml: id {number!r} is not a COCO id, 1 to 90"
        elif times > 1:
            yield f"coco.toml: id {number} stands {times} times"
    if len(mapped) + len(excluded) != COCO_SIZE:
        yield f"coco.toml: {len(mapped)} mapped and {len(excluded)} excluded, COCO has {COCO_SIZE}"
    claimed = {row.get("coco") for row in types.values() if isinstance(row, dict)}
    for name in mapped if complete else ():
        if name not in claimed:
            yield f"coco.toml: no type has the COCO category {name!r}"


def _scenes(scenes: Tables, types: Tables, complete: bool) -> Iterable[str]:
    environments, rows = scenes.get("environments", {}), scenes.get("scene_types", {})
    for name, row in rows.items():
        where = f"scenes.toml: {name}"
        if row.get("environment") not in environments:
            yield f"{where}: environment {row.get('environment')!r} is unknown"
        for field in ("title", "phrase"):
            if not _is_text(row.get(field)):
                yield f"{where} has no {field}"
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
        if not isinstance(row, dict):
            yield f"{where} is not an object"
            continue
        kind = str(row.get("object_type"))
        if kind not in types:
            yield f"{where}: object type {kind!r} is unknown"
            continue
        counts[kind] += 1
        name = f"{kind}-{counts[kind]:03d}"
        if row.get("name") != name:
            yield f"{where}: name is {row.get('name')!r}, the {counts[kind]}. {kind} is {name}"
        for field in ("style", "manufacturing"):
            if not _is_text(row.get(field)):
                yield f"{where}: {name} has no {field}"
        colours = row.get("colourway", [])
        if not _is_texts(colours) or not 1 <= len(colours) <= 3:
            yield f"{where}: colourway of {name} must be one to three words"
        yield from _made_of(f"{where}: {name}", row.get("materials"), types[kind].get("parts", {}))
    for kind in types if complete else ():
        if counts[kind] < FEWEST_IDENTITIES:
            yield f"identities.jsonl: {kind} has {counts[kind]}, a type needs {FEWEST_IDENTITIES}"


def _made_of(where: str, materials: Any, parts: Tables) -> Iterable[str]:
    if not isinstance(materials, dict) or materials.keys() != parts.keys():
        yield f"{where}: materials must name each of the parts {', '.join(parts)}"
        return
    for part, material in materials.items():
        if material not in parts[part]:
            yield f"{where}: {part} of {material!r} is not one of {', '.join(parts[part])}"
