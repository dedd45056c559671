"""Reads the data files of a taxonomy folder; what is wrong in them is reported all together."""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trace_jax.errors import FaultsError, UserError
from trace_jax.taxonomy import checks
from trace_jax.taxonomy.normalise import Normaliser
from trace_jax.taxonomy.vocabulary import (
    METRICS,
    IdentityRow,
    ObjectType,
    SceneType,
    SeverityLevel,
    Taxonomy,
)

NAME = "trace-1"
TABLES = ("words", "materials", "functions", "severity", "coco", "scenes")
TYPES, IDENTITIES = "object_types", "identities.jsonl"


@functools.cache
def load() -> Taxonomy:
    """The taxonomy that ships with the package."""
    return read(Path(__file__).parent)


def read(folder: Path, counts: Mapping[str, int] = checks.COUNTS) -> Taxonomy:
    """Reads and checks a folder of data files, so that a user's own lists can stand in.

    Args:
      folder: holds words, materials, functions, severity, coco and scenes (each `.toml`),
        identities.jsonl and the folder object_types with one table a type.
      counts: how many rows each list must have; the paper's numbers. Lists left out may have any
        number.

    Raises:
      UserError: a file is missing or cannot be read.
      FaultsError: every fault in the contents.
    """
    tables, twice = read_tables(folder)
    _refuse(folder, checks.shape_faults(tables))
    normaliser = _normaliser(tables)
    _refuse(folder, [*twice, *checks.content_faults(tables, counts), *normaliser.faults])
    return _build(tables, normaliser)


def _refuse(folder: Path, faults: list[str]) -> None:
    if faults:
        raise FaultsError(f"{folder}: the taxonomy is not usable", faults, "Mend the files named.")


def read_tables(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The raw tables by name, with "object_types" and "identities"; and types defined twice.

    Raises:
      UserError: a file is missing or cannot be read.
    """
    tables: dict[str, Any] = {name: _toml(folder / f"{name}.toml") for name in TABLES}
    tables["object_types"], faults = _types(folder / TYPES)
    tables["identities"] = _lines(folder / IDENTITIES)
    return tables, faults


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(
            f"{path}: not found. A taxonomy folder holds "
            f"{', '.join(f'{name}.toml' for name in TABLES)}, {IDENTITIES} and {TYPES}/."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}). Mend the file.") from error


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: is not readable TOML ({error}). Mend the file.") from error


def _lines(path: Path) -> list[Any]:
    rows = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise UserError(f"{path}: line {number} is not JSON ({error}). Mend it.") from error
    return rows


def _types(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Every table of the folder's `*.toml`: files by name, tables as they stand in them."""
    found: dict[str, Any] = {}
    faults: list[str] = []
    if not folder.is_dir():
        raise UserError(f"{folder}: not found. It holds the object types, one table a type.")
    for path in sorted(folder.glob("*.toml")):
        if path.name.startswith("."):
            continue
        tables = _toml(path)
        faults += [f"{TYPES}/{path.name}: {n} is defined twice" for n in tables if n in found]
        found.update(tables)
    return found, faults


def _normaliser(tables: Mapping[str, Any]) -> Normaliser:
    def phrases(table: str, field: str, named: bool) -> Iterator[tuple[str, str]]:
        for name, row in tables[table].items():
            if named:
                yield name, name
            yield from ((phrase, name) for phrase in row.get(field, ()))

    return Normaliser(
        tables["words"],
        phrases("materials", "words", True),
        phrases("functions", "words", True),
        phrases("object_types", "synonyms", True),
        phrases("object_types", "aliases", False),
    )


def _build(tables: Mapping[str, Any], normaliser: Normaliser) -> Taxonomy:
    severity, coco, scenes = tables["severity"], tables["coco"], tables["scenes"]
    types = {name: _type(name, row) for name, row in tables["object_types"].items()}
    scene_types = {
        name: SceneType(
            name,
            row["environment"],
            row["title"],
            row["phrase"],
            tuple(kind for kind in row.get("objects", ()) if kind in types),
        )
        for name, row in scenes["scene_types"].items()
    }
    ids = dict(coco["mapped"]) | {name: row["id"] for name, row in coco["excluded"].items()}
    ids = dict(sorted(ids.items(), key=lambda item: item[1]))
    return Taxonomy(
        name=NAME,
        object_types=tuple(types),
        materials=tuple(tables["materials"]),
        functions=tuple(tables["functions"]),
        coco_categories=tuple(name for name in ids if name in coco["mapped"]),
        coco_excluded=MappingProxyType({n: row["reason"] for n, row in coco["excluded"].items()}),
        environments=tuple(scenes["environments"]),
        scene_types=tuple(scene_types),
        severity=tuple(_level(name, row) for name, row in severity["levels"].items()),
        metrics=MappingProxyType(dict(severity["metrics"])),
        types=MappingProxyType(types),
        scene_type_of=MappingProxyType(scene_types),
        identities=tuple(_identity(row) for row in tables["identities"]),
        failure_order=MappingProxyType(
            {name: row["failure_order"] for name, row in tables["materials"].items()}
        ),
        failure_steps=tuple(severity["failure_order"]),
        meanings=MappingProxyType({n: row["meaning"] for n, row in tables["functions"].items()}),
        coco_ids=MappingProxyType(ids),
        normaliser=normaliser,
    )


def _type(name: str, row: Mapping[str, Any]) -> ObjectType:
    low, high = row["size_m"]
    return ObjectType(
        name=name,
        group=row["group"],
        functions=tuple(row["functions"]),
        parts=MappingProxyType({part: tuple(found) for part, found in row["parts"].items()}),
        coco=row.get("coco"),
        synonyms=tuple(row.get("synonyms", ())),
        aliases=tuple(row.get("aliases", ())),
        failure=row["failure"],
        size_m=(float(low), float(high)),
        placement=tuple(row["placement"]),
        environments=tuple(row["environments"]),
    )


def _level(name: str, row: Mapping[str, Any]) -> SeverityLevel:
    ranges = {metric: (float(row[metric][0]), float(row[metric][1])) for metric in METRICS}
    return SeverityLevel(name, row["name"], row["description"], MappingProxyType(ranges))


def _identity(row: Mapping[str, Any]) -> IdentityRow:
    return IdentityRow(
        row["name"],
        row["object_type"],
        row["style"],
        row["manufacturing"],
        tuple(row["colourway"]),
        MappingProxyType(dict(row["materials"])),
    )
