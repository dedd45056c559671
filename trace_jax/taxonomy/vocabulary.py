"""The vocabulary of TRACE, read from the data files beside this module and checked on load.

materials.toml, functions.toml, severity.toml and the files of object_types/ name their sources. `load()`
reads them once; `read(folder)` reads another copy, so that a user's own lists can stand in.
"""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trace_jax.errors import FaultsError, UserError

NAME = "trace-first-light-1"
GROUPS: tuple[str, ...] = ("hazard", "everyday")
METRICS: tuple[str, ...] = (
    "soot_coverage",
    "surface_failure",
    "deformation",
    "structural_integrity",
)
NUM_MATERIALS, NUM_FUNCTIONS = 11, 20
_FILES = ("materials.toml", "functions.toml", "severity.toml")
_TYPES = "object_types"


@dataclasses.dataclass(frozen=True)
class ObjectType:
    """One type of object.

    Attributes:
      name: e.g. "gas_cylinder".
      group: "hazard" or "everyday".
      functions: one or two function tags.
      parts: part name -> materials it may be made of (a repeated one is likelier).
    """

    name: str
    group: str
    functions: tuple[str, ...]
    parts: Mapping[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class SeverityLevel:
    """One rung of the ladder.

    Attributes:
      name: "L0".."L4".
      title: e.g. "mild surface damage".
      ranges: metric -> (low, high), fractions, Table 6.
    """

    name: str
    title: str
    ranges: Mapping[str, tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Taxonomy:
    """The whole vocabulary, frozen.

    Attributes:
      name: version of the vocabulary, stored in data sets and checkpoints.
      object_types: names, in file order. materials: in order of failure. functions: names.
      severity: the ladder, L0 to L4.
      metrics: metric -> its definition with its denominator.
      types: name -> ObjectType.
      failure_order: material -> rank, 1 fails first (paper B.1).
    """

    name: str
    object_types: tuple[str, ...]
    materials: tuple[str, ...]
    functions: tuple[str, ...]
    severity: tuple[SeverityLevel, ...]
    metrics: Mapping[str, str]
    types: Mapping[str, ObjectType]
    failure_order: Mapping[str, int]

    def type(self, name: str) -> ObjectType:
        """The type called `name`.

        Raises:
          UserError: there is none.
        """
        if name not in self.types:
            raise UserError(
                f"object type {name!r} is not in the taxonomy. "
                f"Known: {', '.join(self.object_types)}."
            )
        return self.types[name]

    def group_of(self, name: str) -> str:
        """ "hazard" or "everyday".

        Raises:
          UserError: the type is unknown.
        """
        return self.type(name).group


@functools.cache
def load() -> Taxonomy:
    """The taxonomy that ships with the package."""
    return read(Path(__file__).parent)


def read(folder: Path) -> Taxonomy:
    """Reads and checks a folder with the three files and the folder object_types.

    Raises:
      UserError: a file is missing or is not TOML.
      FaultsError: every fault in the contents.
    """
    raw = {name: _read(folder / name) for name in _FILES}
    materials, functions = raw["materials.toml"], raw["functions.toml"]
    severity = raw["severity.toml"]
    types, faults = _read_types(folder / _TYPES)
    faults += [
        *_check_counts(materials, functions),
        *_check_severity(severity),
        *_check_types(types, set(materials), set(functions)),
    ]
    if faults:
        raise FaultsError(f"{folder}: the taxonomy is not usable", faults, "Mend the files named.")
    levels = tuple(
        SeverityLevel(
            level,
            row["name"],
            MappingProxyType({m: (float(row[m][0]), float(row[m][1])) for m in METRICS}),
        )
        for level, row in severity["levels"].items()
    )
    by_name = {
        name: ObjectType(
            name,
            row["group"],
            tuple(row["functions"]),
            MappingProxyType({part: tuple(found) for part, found in row["parts"].items()}),
        )
        for name, row in types.items()
    }
    order = {name: int(row["failure_order"]) for name, row in materials.items()}
    return Taxonomy(
        name=NAME,
        object_types=tuple(by_name),
        materials=tuple(materials),
        functions=tuple(functions),
        severity=levels,
        metrics=MappingProxyType(dict(severity["metrics"])),
        types=MappingProxyType(by_name),
        failure_order=MappingProxyType(order),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: not found. A taxonomy folder holds {', '.join(_FILES)}.") from (
            error
        )
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: is not readable TOML ({error}). Mend the file.") from error


def _read_types(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Every table of the folder's `*.toml`, files by name, tables as they stand; and the faults."""
    found: dict[str, Any] = {}
    faults: list[str] = []
    if not folder.is_dir():
        raise UserError(f"{folder}: not found. A taxonomy has a folder of object types.")
    for path in sorted(folder.glob("*.toml")):
        if path.name.startswith("."):
            continue
        tables = _read(path)
        faults += [f"{path.name}: {name} is defined twice" for name in tables if name in found]
        found.update(tables)
    return found, faults


def _check_counts(materials: Mapping[str, Any], functions: Mapping[str, Any]) -> list[str]:
    faults = []
    if len(materials) != NUM_MATERIALS:
        faults.append(f"materials.toml: {len(materials)} materials, the paper has {NUM_MATERIALS}")
    if len(functions) != NUM_FUNCTIONS:
        faults.append(f"functions.toml: {len(functions)} functions, the paper has {NUM_FUNCTIONS}")
    orders = [row.get("failure_order") for row in materials.values()]
    if not all(isinstance(o, int) for o in orders):
        faults.append("materials.toml: every material needs a failure_order")
    elif orders != sorted(orders):
        faults.append("materials.toml: materials must stand in their order of failure")
    return faults


def _check_severity(severity: Mapping[str, Any]) -> list[str]:
    faults = []
    levels = severity.get("levels", {})
    if tuple(levels) != ("L0", "L1", "L2", "L3", "L4"):
        faults.append(f"severity.toml: levels are {list(levels)}, must be L0..L4 in order")
    missing = [m for m in METRICS if m not in severity.get("metrics", {})]
    faults += [f"severity.toml: metric {m} has no definition" for m in missing]
    for level, row in levels.items():
        for metric in METRICS:
            bounds = row.get(metric)
            if not (
                isinstance(bounds, list) and len(bounds) == 2 and 0 <= bounds[0] < bounds[1] <= 1
            ):
                faults.append(
                    f"severity.toml: {level}.{metric} is {bounds}, not 0 <= low < high <= 1"
                )
        if "name" not in row:
            faults.append(f"severity.toml: {level} has no name")
    if not faults:
        # Where the paper's ranges are monotone, so are ours; surface_failure is not (Table 6).
        for metric, sign in (
            ("soot_coverage", 1),
            ("deformation", 1),
            ("structural_integrity", -1),
        ):
            middles = [sign * sum(row[metric]) for row in levels.values()]
            if middles != sorted(middles):
                faults.append(f"severity.toml: {metric} does not run one way over the levels")
    return faults


def _check_types(types: Mapping[str, Any], materials: set[str], functions: set[str]) -> list[str]:
    faults = []
    for name, row in types.items():
        where = f"object_types: {name}"
        if not isinstance(row, dict):
            faults.append(f"{where} is not a table")
            continue
        if row.get("group") not in GROUPS:
            faults.append(f"{where}: group {row.get('group')!r} is not one of {', '.join(GROUPS)}")
        tags = row.get("functions", [])
        if not 1 <= len(tags) <= 2:
            faults.append(f"{where}: {len(tags)} function tags, must be one or two")
        faults += [f"{where}: unknown function {tag!r}" for tag in tags if tag not in functions]
        parts = row.get("parts", {})
        if not parts:
            faults.append(f"{where}: no parts")
        for part, made_of in parts.items():
            if not made_of:
                faults.append(f"{where}: part {part} has no material")
            faults += [
                f"{where}: part {part} has unknown material {m!r}"
                for m in made_of
                if m not in materials
            ]
    return faults
