"""Looking after data folders: check, split, COCO; the library body of `bin/data`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trace_jax import files, taxonomy
from trace_jax.data import builders, coco, manifest
from trace_jax.data.faults import Fault
from trace_jax.errors import FaultsError, UserError
from trace_jax.types import PRISTINE, SPLITS, SceneExample


def check(folder: str | Path, *, decode: bool = True) -> list[Fault]:
    """Every fault of a folder, see manifest.inspect, with a progress line."""
    return manifest.inspect(folder, decode=decode, progress=True)


def warnings(folder: str | Path) -> list[Fault]:
    """What is worth knowing of a folder and no fault, see manifest.warnings."""
    return manifest.warnings(folder)


def summary(folder: str | Path) -> str:
    """One line on a sound folder: its size, types, splits."""
    data = manifest.read(folder)
    subjects: dict[str, set[str]] = defaultdict(set)
    scenes = data.info.kind == "scenes"
    for row in data.rows:
        subjects[row.split].add(row.layout if scenes else row.identity)  # type: ignore[union-attr]
    splits = ", ".join(f"{s} {len(subjects[s])}" for s in SPLITS if subjects[s])
    total = sum(len(found) for found in subjects.values())
    what = "layouts" if scenes else "identities"
    types = ""
    if not scenes:
        types = f", {len({e.object_type for e in data.examples})} types"
    return (
        f"{folder}: sound; {data.info.name} {data.info.version}, {total} {what} ({splits})"
        f"{types}, {len(data.rows)} images"
    )


def assign_splits(folder: str | Path, out: str | Path | None, *, seed: int = 0) -> dict[str, int]:
    """Splits a manifest 80/10/10 by identity (layout for scenes), paper section 3.

    Rows may lack a split, or have any: all are set anew. Types are spread over the splits as far
    as their numbers allow; no identity is ever in two.

    Args:
      folder: the data folder.
      out: manifest to write, or None: the folder's own.
      seed: of the order.

    Returns:
      Identities by split.

    Raises:
      UserError: there is no manifest.
      FaultsError: lines that are no rows, or that name no identity and no layout.
    """
    path = Path(folder) / manifest.ROWS_FILE
    if not path.is_file():
        raise UserError(f"{path}: not found. Give the folder that holds it.")
    raw: list[dict[str, Any]] = []
    kinds: dict[str, str] = {}
    faults = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig"))
        except ValueError as error:  # UnicodeDecodeError, too
            faults.append(f"{manifest.ROWS_FILE}:{number}: is not JSON ({error})")
            continue
        subject = _subject(row)
        if subject is None:
            faults.append(f"{manifest.ROWS_FILE}:{number}: has neither 'identity' nor 'layout'")
            continue
        kinds[subject] = str(row.get("object_type") or row.get("scene_type") or "")
        raw.append(row)
    if not raw and not faults:
        faults.append(f"{manifest.ROWS_FILE}: has no rows")
    if faults:
        raise FaultsError(f"{folder}: cannot be split", faults)
    rng = np.random.default_rng([seed, 80])
    names = sorted(kinds)
    order = [names[k] for k in rng.permutation(len(names))]
    # Turn by turn through the types, so that the held-out ones are of as many types as can be.
    turn: dict[str, int] = defaultdict(int)
    place = {}
    for name in order:
        place[name] = turn[kinds[name]]
        turn[kinds[name]] += 1
    # Types with one identity stay in training where there are enough others to hold out.
    order.sort(key=lambda name: (turn[kinds[name]] == 1, place[name]))
    tenth = round(len(order) / 10)
    held = {
        **dict.fromkeys(order[:tenth], "val"),
        **dict.fromkeys(order[tenth : 2 * tenth], "test"),
    }
    counts = dict.fromkeys(SPLITS, 0)
    for name in names:
        counts[held.get(name, "train")] += 1
    lines = [
        json.dumps(
            {**row, "split": held.get(_subject(row) or "", "train")},
            sort_keys=True,
            ensure_ascii=False,
        )
        for row in raw
    ]
    files.write_text(Path(out) if out else path, "\n".join(lines) + "\n")
    return counts


def _subject(row: Any) -> str | None:
    """Identity or layout of a raw row, None where it has none."""
    if not isinstance(row, dict):
        return None
    found = row.get("layout") or row.get("identity")
    return found if isinstance(found, str) else None


def export_coco(folder: str | Path, out: str | Path) -> int:
    """Writes a folder of scenes as one COCO file; returns how many boxes it has."""
    raw = coco.export(manifest.read(folder).scenes)
    files.write_json(Path(out), raw)
    return len(raw["annotations"])


def import_coco(source: str | Path, root: str | Path, name: str) -> manifest.Dataset:
    """Writes dataset.json and manifest.jsonl for a COCO file into the folder of its images.

    Args:
      source: the COCO file.
      root: folder that its `file_name`s are relative to.
      name: of the data set.
    """
    raw = files.read_json(Path(source), "Give a COCO JSON file.")
    scenes = coco.read(raw, root)
    known = taxonomy.load()
    types = {box.object_type for scene in scenes for box in scene.boxes}
    info = manifest.DatasetInfo(
        kind="scenes",
        name=name,
        version="1.0.0",
        # Categories that the vocabulary lacks are no mistakes of the file's.
        taxonomy=known.name if types <= set(known.types) else "",
        provenance={
            "coco": Path(source).name,
            "categories": {str(c["id"]): str(c.get("name", "")) for c in raw["categories"]},
        },
        pairs=_are_paired(scenes),
    )
    return manifest.write(root, info, scenes)


def _are_paired(scenes: Sequence[SceneExample]) -> bool:
    states: dict[str, set[bool]] = defaultdict(set)
    for scene in scenes:
        states[scene.layout].add(scene.severity == PRISTINE)
    return all(len(found) == 2 for found in states.values())


def build(folder: str | Path, out: str | Path) -> Path:
    """Writes a data folder as a tensorflow-datasets set in ArrayRecord."""
    made = builders.builder(manifest.read(folder).info.kind).build(folder, out)
    return Path(made.data_path)
