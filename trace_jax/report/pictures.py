"""Pictures of the report: which ones, and each as a small data URI."""

from __future__ import annotations

import base64
import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from trace_jax.images import BadImageError, open_rgb
from trace_jax.report.evaluation import Condition, Evaluation
from trace_jax.types import LEVELS, PRISTINE

SIDE = 160  # pixels: sharp at 80 CSS pixels on a dense screen


@dataclasses.dataclass(frozen=True)
class Picture:
    """One image of the page; `uri` is "" where the file could not be read."""

    uri: str
    alt: str
    caption: str = ""
    mark: str = ""  # "right", "wrong" or ""


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One line of the contact sheet: an object, its group, its images by severity."""

    title: str
    group: str
    pictures: tuple[Picture, ...]


@dataclasses.dataclass(frozen=True)
class Change:
    """A query whose first answer changed between base and an FRM."""

    title: str
    pictures: tuple[Picture, ...]


@dataclasses.dataclass(frozen=True)
class Changes:
    """How the first answers changed under one FRM, with some shown.

    Attributes:
      right, wrong: how many queries became right, became wrong.
      by_level: severity -> (became right, became wrong).
      became_right, became_wrong: those shown.
    """

    condition: Condition
    right: int
    wrong: int
    by_level: dict[str, tuple[int, int]]
    became_right: tuple[Change, ...]
    became_wrong: tuple[Change, ...]


class Album:
    """Turns paths of the data set into pictures; counts what was missing."""

    def __init__(self, results: Evaluation) -> None:
        self._results = results
        self._uris: dict[str, str] = {}

    @property
    def missing(self) -> int:
        """Images asked for that could not be read."""
        return sum(1 for uri in self._uris.values() if not uri)

    def picture(self, path: str, alt: str, caption: str = "", mark: str = "") -> Picture:
        """One picture, read once however often it is shown."""
        if path not in self._uris:
            self._uris[path] = self._encode(path)
        return Picture(self._uris[path], alt, caption, mark)

    def _encode(self, path: str) -> str:
        found = self._results.picture(path)
        if found is None:
            return ""
        try:
            image = open_rgb(found)
        except BadImageError:
            return ""
        image.thumbnail((SIDE, SIDE))
        return data_uri(image)


def data_uri(image: Image.Image) -> str:
    """A picture as the source of an <img>, inlined."""
    stream = io.BytesIO()
    image.save(stream, "WEBP", quality=86)
    return "data:image/webp;base64," + base64.b64encode(stream.getvalue()).decode("ascii")


def severities_shown(results: Evaluation) -> list[str]:
    """Columns of the contact sheet."""
    found = {r["severity"] for r in results.records}
    return [s for s in (PRISTINE, *LEVELS) if s in found]


def contact_sheet(results: Evaluation, album: Album, count: int = 10) -> list[Trajectory]:
    """Trajectories of identities spread evenly over the object types, in the order of types."""
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for record in results.records:
        if record["condition"] == "base" and record["view"] == 0 and record["draw"] == 0:
            rows.setdefault(record["identity"], {})[record["severity"]] = record
    chosen = _spread(
        list(rows), {i: next(iter(r.values()))["object_type"] for i, r in rows.items()}, count
    )
    columns = severities_shown(results)
    sheet = []
    for identity in chosen:
        mine = rows[identity]
        first = next(iter(mine.values()))
        title = plain(first["object_type"])
        pictures = tuple(
            album.picture(mine[s]["path"], f"{title}, {s}") if s in mine else Picture("", "")
            for s in columns
        )
        sheet.append(Trajectory(title, first["group"], pictures))
    return sheet


def changes(results: Evaluation, album: Album, condition: Condition, count: int = 8) -> Changes:
    """Queries whose first answer changed; those shown are taken from every level in turn."""
    by_path = {r["path"]: r for r in _queries(results, "base")}
    pairs = [
        (by_path[r["path"]], r) for r in _queries(results, condition.name) if r["path"] in by_path
    ]
    right = [(b, f) for b, f in pairs if b["rank"] > 0 and f["rank"] == 0]
    wrong = [(b, f) for b, f in pairs if b["rank"] == 0 and f["rank"] > 0]
    levels = {
        level: (
            sum(b["severity"] == level for b, _ in right),
            sum(b["severity"] == level for b, _ in wrong),
        )
        for level in LEVELS
        if any(b["severity"] == level for b, _ in pairs)
    }
    return Changes(
        condition,
        len(right),
        len(wrong),
        levels,
        tuple(_change(results, album, condition, b, f) for b, f in _in_turn(right, count)),
        tuple(_change(results, album, condition, b, f) for b, f in _in_turn(wrong, count)),
    )


def plain(name: str) -> str:
    """A taxonomy name as words."""
    return name.replace("_", " ")


def _queries(results: Evaluation, condition: str) -> list[Mapping[str, Any]]:
    return [
        r
        for r in results.records
        if r["condition"] == condition and r["severity"] in LEVELS and r["rank"] is not None
    ]


def _change(
    results: Evaluation,
    album: Album,
    condition: Condition,
    base: Mapping[str, Any],
    frm: Mapping[str, Any],
) -> Change:
    kind = plain(base["object_type"])
    truth = next(
        (r["path"] for r in results.records if r["identity"] == base["identity"]
         and r["severity"] == PRISTINE and r["view"] == 0 and r["condition"] == "base"),
        "",
    )  # fmt: skip
    pictures = [album.picture(base["path"], f"{kind} burnt at {base['severity']}", "query")]
    for record, title in ((base, "Base"), (frm, condition.title)):
        identity, path, _ = record["nearest"][0]
        mark = "right" if record["rank"] == 0 else "wrong"
        pictures.append(album.picture(path, f"{title} says {identity}: {mark}", title, mark))
    if truth:  # a crop may have none
        pictures.append(album.picture(truth, f"truth: {base['identity']}", "truth"))
    return Change(f"{kind}, {base['severity']}", tuple(pictures))


def _in_turn(
    pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], count: int
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    # By rule, not by eye: level by level in turn, every object type and identity as rarely as
    # possible, the first by path.
    left = sorted(pairs, key=lambda pair: pair[0]["path"])
    types: dict[str, int] = {}
    chosen: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
    while left and len(chosen) < count:
        for level in LEVELS:
            here = [pair for pair in left if pair[0]["severity"] == level]
            if here and len(chosen) < count:
                best = min(here, key=lambda pair: types.get(pair[0]["object_type"], 0))
                left.remove(best)
                kind = best[0]["object_type"]
                types[kind] = types.get(kind, 0) + 1
                chosen.append(best)
    return sorted(chosen, key=lambda pair: (pair[0]["severity"], pair[0]["path"]))


def _spread(names: list[str], kinds: Mapping[str, str], count: int) -> list[str]:
    first: dict[str, str] = {}
    for name in sorted(names):
        first.setdefault(kinds[name], name)
    ordered = [first[kind] for kind in sorted(first)]
    ordered += [name for name in sorted(names) if name not in set(ordered)]
    if len(first) >= count:  # one of a type, evenly through the alphabet of types
        ordered = ordered[: len(first)]
        return [ordered[round(i * (len(ordered) - 1) / max(count - 1, 1))] for i in range(count)]
    return sorted(ordered[:count], key=lambda name: (kinds[name], name))
