"""Faults that no single row shows: rows against one another, the vocabulary, the pictures."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from trace_jax import files, images, taxonomy
from trace_jax.types import PRISTINE, Example

Numbered = Sequence[tuple[int, Example]]  # line number and row

_LINE = re.compile(r"^manifest\.jsonl:(\d+):")


def line_order(fault: str) -> tuple[int, str]:
    """Sort key: faults of whole files first, then by line; lines keep their text as tie-break."""
    found = _LINE.match(fault)
    return (int(found[1]) if found else 0, "" if found else fault)


def structure_faults(rows: Numbered, kind: str) -> list[str]:
    """Duplicate paths, identities in two splits, identities without exactly one pristine view 0.

    Crops of real scenes may lack a pristine picture (paper, section 3), objects may not.
    """
    faults: list[str] = []
    first_of_path: dict[str, int] = {}
    first_of_identity: dict[str, tuple[int, str]] = {}
    pristine: dict[str, int] = {}
    for line, row in rows:
        where = f"manifest.jsonl:{line}"
        if row.path in first_of_path:
            faults.append(f"{where}: path {row.path!r} is line {first_of_path[row.path]}'s too")
        first_of_path.setdefault(row.path, line)
        first, split = first_of_identity.setdefault(row.identity, (line, row.split))
        if split != row.split:
            faults.append(
                f"{where}: identity {row.identity!r} is in split {row.split!r} here and in "
                f"{split!r} on line {first}"
            )
        if row.severity == PRISTINE and row.view == 0:
            if row.identity in pristine:
                faults.append(
                    f"{where}: identity {row.identity!r} has its pristine row of view 0 on line "
                    f"{pristine[row.identity]} already"
                )
            pristine.setdefault(row.identity, line)
    for identity, (line, _) in first_of_identity.items():
        if identity not in pristine and kind != "crops":
            faults.append(
                f"manifest.jsonl:{line}: identity {identity!r} has no pristine row of view 0"
            )
    return sorted(faults, key=line_order)


def vocabulary_faults(rows: Numbered, name: str) -> list[str]:
    """Labels that the vocabulary does not know.

    Args:
      rows: the rows.
      name: the vocabulary that `dataset.json` names. Only the one that ships with this package is
        known here; labels of another, or of none (""), are not checked.
    """
    known = taxonomy.load()
    if name != known.name:
        return []
    types, materials, functions = map(set, (known.object_types, known.materials, known.functions))
    lines: dict[str, list[int]] = defaultdict(list)
    for line, row in rows:
        if row.object_type not in types:
            lines[f"object type {row.object_type!r}"].append(line)
        for item in row.materials:
            if item.material not in materials:
                lines[f"material {item.material!r}"].append(line)
        for function in row.functions:
            if function not in functions:
                lines[f"function {function!r}"].append(line)
    return [
        f"manifest.jsonl:{line}: {what} is not in taxonomy {name!r}"
        for what, where in lines.items()
        for line in where
    ]


def picture_faults(folder: Path, rows: Numbered, *, decode: bool) -> list[str]:
    """Missing files, files that are not what their row pins, and pictures that do not open."""
    faults = []
    for line, row in rows:
        path = folder / row.path
        where = f"manifest.jsonl:{line}: {row.path}"
        if not path.is_file():
            faults.append(f"{where} is missing")
            continue
        if row.sha256 and files.sha256_file(path) != row.sha256:
            faults.append(f"{where} is not the file that its 'sha256' pins")
        if decode:
            try:
                images.open_rgb(path)
            except images.BadImageError as error:
                faults.append(f"{where} {error}")
    return faults
