"""What the host says about some burnt objects, before and after recovery, beside the truth."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from trace_jax.report.evaluation import Evaluation
from trace_jax.report.pictures import Album, Picture, plain
from trace_jax.types import LEVELS, PRISTINE

# Asked about what the object was; the damage questions have answers too short to look at.
_TASKS = ("description", "material")


@dataclasses.dataclass(frozen=True)
class Dialogue:
    """One burnt image, what each condition answers about it, and the truth.

    Attributes:
      title: object type and severity.
      pictures: burnt, then pristine where it is known.
      answers: (task, condition's title, words).
      truth: type, materials and use.
    """

    title: str
    pictures: tuple[Picture, ...]
    answers: tuple[tuple[str, str, str], ...]
    truth: str


def shown(results: Evaluation, album: Album, count: int = 6) -> list[Dialogue]:
    """Objects spread evenly over the types, severities in turn; none picked by hand."""
    titles = {c.name: c.title for c in results.conditions}
    by_path: dict[str, dict[tuple[str, str], Mapping[str, Any]]] = {}
    for one in results.answers:
        by_path.setdefault(one["path"], {})[one["task"], one["condition"]] = one
    burnt = {
        level: sorted(
            (next(iter(rows.values())) for rows in by_path.values()
             if next(iter(rows.values()))["severity"] == level),
            key=lambda row: (row["object_type"], row["path"]),
        )
        for level in LEVELS
    }  # fmt: skip
    levels = [level for level, rows in burnt.items() if rows]
    pristine = {
        row["identity"]: path
        for path, rows in by_path.items()
        if (row := next(iter(rows.values())))["severity"] == PRISTINE
    }
    found = []
    for number in range(count if levels else 0):
        level = levels[number % len(levels)]
        rows = burnt[level]
        row = rows[number * len(rows) // count]
        kind = plain(row["object_type"])
        pictures = [album.picture(row["path"], f"{kind} burnt at {level}", level)]
        if row["identity"] in pristine:
            pictures.append(
                album.picture(pristine[row["identity"]], f"the {kind} as it was", "was")
            )
        given = by_path[row["path"]]
        said = [
            (task, titles.get(condition, condition), given[task, condition]["answer"])
            for task in _TASKS
            for condition in titles
            if (task, condition) in given
        ]
        truth = (
            f"{kind}; {', '.join(row['materials'])}; "
            f"{', '.join(plain(tag) for tag in row['functions'])}"
        )
        found.append(Dialogue(f"{kind}, {level}", tuple(pictures), tuple(said), truth))
    return found
