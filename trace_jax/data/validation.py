"""Faults that no single row shows: rows against one another, the vocabulary, the pictures.

Each damage is told once: a row that could not be read is not missed again as a missing level, a
picture that does not open is not blamed for its hash too.
"""

from __future__ import annotations

import concurrent.futures
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from trace_jax import files, images
from trace_jax.data.faults import Fault
from trace_jax.data.rows import Row, is_reference, subject_of
from trace_jax.types import LEVELS, PRISTINE, Example, SceneExample

Numbered = Sequence[tuple[int, Row]]  # line number and row

_THREADS = 8


def structure_faults(rows: Numbered, kind: str, broken: Collection[str] = ()) -> list[Fault]:
    """What makes rows unusable together: repeated paths, a subject in two splits, no reference.

    A subject is an identity (objects, crops) or a layout (scenes). Every identity of objects has
    exactly one pristine row of view 0. Crops of real scenes may lack it (paper, section 3), and
    scenes too (see `completeness_faults`); two are too many for all.

    Args:
      rows: the rows that could be read.
      kind: of the data set.
      broken: subjects of rows that could not be read; what they lack is not known.
    """
    faults: list[Fault] = []
    first_of_path: dict[str, int] = {}
    pristine: dict[str, int] = {}
    first_line: dict[str, int] = {}
    word = "layout" if kind == "scenes" else "identity"
    for line, row in rows:
        subject = subject_of(row)
        first_line.setdefault(subject, line)
        if row.path in first_of_path:
            what = f"path {row.path!r} is line {first_of_path[row.path]}'s too"
            faults.append(_fault("duplicate-path", line, what))
        first_of_path.setdefault(row.path, line)
        if is_reference(row):
            if subject in pristine:
                what = (
                    f"{word} {subject!r} has its pristine row of view 0 on line "
                    f"{pristine[subject]} already"
                )
                faults.append(_fault("duplicate-pristine", line, what))
            pristine.setdefault(subject, line)
    faults += _split_faults(rows, word)
    if kind == "objects":
        for subject, line in first_line.items():
            if subject not in pristine and subject not in broken:
                what = f"identity {subject!r} has no pristine row of view 0"
                faults.append(_fault("missing-pristine", line, what))
    return sorted(faults, key=line_order)


def completeness_faults(rows: Numbered, kind: str, broken: Collection[str] = ()) -> list[Fault]:
    """Trajectories without one of the set's levels or with one twice; layouts without their pair.

    The levels a trajectory must have are those that occur in the set. A layout needs a pristine
    row and a degraded one. Such a set can be read, so only `manifest.inspect` asks.
    """
    if kind == "scenes":
        return _pair_faults(rows, broken)
    if kind != "objects":
        return []
    objects = [(line, row) for line, row in rows if isinstance(row, Example)]
    present = {row.severity for _, row in objects}
    wanted = [level for level in LEVELS if level in present]
    states: dict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)  # of a trajectory
    first: dict[tuple[str, int], int] = {}
    faults, twice, paths = [], set(), set()
    for line, row in objects:
        # A repeated path has been told of; it is the same picture, not a level given twice.
        if row.severity == PRISTINE or row.path in paths:
            continue
        paths.add(row.path)
        key, state = (row.identity, row.draw), (row.severity, row.view)
        first.setdefault(key, line)
        if state in states[key]:
            twice.add(key)
            what = f"identity {row.identity!r} has {row.severity} of draw {row.draw} already"
            faults.append(_fault("duplicate-level", line, what))
        states[key].add(state)
    burnt = {identity for identity, _ in states} | set(broken)
    for line, row in objects:
        if wanted and is_reference(row) and row.identity not in burnt:
            what = f"identity {row.identity!r}: all of its levels are missing"
            faults.append(_fault("missing-level", line, what))
    for key, line in first.items():
        # A level given twice is most likely a missing one under a wrong name: one fault.
        if key[0] in broken or key in twice:
            continue
        found = {severity for severity, _ in states[key]}
        for level in wanted:
            if level not in found:
                what = f"identity {key[0]!r}: level {level} of draw {key[1]} is missing"
                faults.append(_fault("missing-level", line, what))
    return faults


def consistency_faults(rows: Numbered, kind: str, blamed: Collection[int] = ()) -> list[Fault]:
    """Rows of one subject that tell different things of it.

    Args:
      rows: the rows.
      kind: of the data set.
      blamed: lines whose labels are at fault already.
    """
    names = ("environment", "scene_type") if kind == "scenes" else ("object_type",)
    word = "layout" if kind == "scenes" else "identity"
    faults = []
    for name in names:
        groups: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for line, row in rows:
            if line not in blamed:
                groups[subject_of(row)].append((line, getattr(row, name)))
        for subject, told in groups.items():
            usual = _usual([value for _, value in told])
            first = next(line for line, value in told if value == usual)
            for line, value in told:
                if value != usual:
                    what = (
                        f"{word} {subject!r} is of {name} {value!r} here and of "
                        f"{usual!r} on line {first}"
                    )
                    faults.append(_fault(f"mixed-{word}", line, what))
    return faults


def picture_faults(
    folder: Path,
    rows: Numbered,
    *,
    decode: bool,
    advance: Callable[[], None] = lambda: None,
) -> list[Fault]:
    """Missing files, files that are not what their row pins, and pictures that do not open.

    Args:
      folder: the data folder.
      rows: the rows.
      decode: open the pictures; a scene's size is compared only then.
      advance: called after each row.
    """

    def look(item: tuple[int, Row]) -> list[Fault]:
        line, row = item
        return [
            _fault(fault.name, line, f"{row.path} {fault}")
            for fault in _picture_faults(folder / row.path, row, decode)
        ]

    faults = []
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        for found in pool.map(look, rows):
            faults += found
            advance()
    return faults


def stray_faults(folder: Path, rows: Numbered, suffixes: Collection[str]) -> list[Fault]:
    """Pictures under images/ that no row names."""
    named = {row.path for _, row in rows}
    found = (
        path.relative_to(folder).as_posix()
        for path in sorted((folder / "images").rglob("*"))
        if path.suffix.lower() in suffixes and not path.name.startswith(".")
    )
    return [
        Fault("stray-image", f"{path}: no row names this picture")
        for path in found
        if path not in named
    ]


def line_order(fault: Fault) -> tuple[int, str]:
    """Sort key: faults of whole files first, by their text, then by line in the order found."""
    return (fault.line, "" if fault.line else str(fault))


def _fault(name: str, line: int, text: str) -> Fault:
    return Fault(name, text).at("manifest.jsonl", line)


def _usual(values: Sequence[str]) -> str:
    """The commonest value, the first of several: what differs from it is the odd one out."""
    return Counter(values).most_common(1)[0][0]


def _split_faults(rows: Numbered, word: str) -> list[Fault]:
    groups: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for line, row in rows:
        groups[subject_of(row)].append((line, row.split))
    faults = []
    for subject, told in groups.items():
        usual = _usual([split for _, split in told])
        first = next(line for line, split in told if split == usual)
        for line, split in told:
            if split != usual:
                here = f"{word} {subject!r} is in split {split!r} here"
                what = f"{here} and in {usual!r} on line {first}"
                faults.append(_fault(f"{word}-in-two-splits", line, what))
    return faults


def _pair_faults(rows: Numbered, broken: Collection[str]) -> list[Fault]:
    first: dict[str, int] = {}
    states: Mapping[str, set[bool]] = defaultdict(set)
    for line, row in rows:
        first.setdefault(subject_of(row), line)
        states[subject_of(row)].add(is_reference(row))
    return [
        _fault(
            "missing-pair",
            line,
            f"layout {layout!r} has no {'degraded' if True in states[layout] else PRISTINE} row",
        )
        for layout, line in first.items()
        if len(states[layout]) == 1 and layout not in broken
    ]


def _picture_faults(path: Path, row: Row, decode: bool) -> list[Fault]:
    if not path.is_file():
        return [Fault("missing-file", "is missing")]
    size = None
    if decode:
        try:
            size = images.open_rgb(path).size
        except images.BadImageError as error:
            return [Fault("unreadable-image", str(error))]
    faults = []
    if row.sha256 and files.sha256_file(path) != row.sha256:
        faults.append(Fault("hash-disagrees", "is not the file that its 'sha256' pins"))
    elif size and isinstance(row, SceneExample) and size != (row.width, row.height):
        what = f"is {size[0]} x {size[1]} pixels, its row says {row.width} x {row.height}"
        faults.append(Fault("size-disagrees", what))
    return faults
