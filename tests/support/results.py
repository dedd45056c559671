"""A results folder of few numbers, written by the real scoring, for tests of the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from trace_jax import files
from trace_jax.runs import queries, scoring
from trace_jax.tasks import records as record_table
from trace_jax.tasks.records import Record
from trace_jax.types import LEVELS, PRISTINE

CONDITIONS = {
    "base": ("base", 0.0),
    "frm": ("frm", 0.35),
    "frm_plus": ("frm", 0.45),
    "mean_shift": ("control", 0.1),
    "mean_shift_oracle": ("oracle", 0.12),
    "ridge": ("control", 0.15),
}
TYPES = ("mug", "gas_cylinder", "chair", "<b>odd & end</b>")


def make_results(folder, data, *, identities=12, pictures=True, resamples=100, curves=True):
    """Writes records, run.json and results.json into `folder`, pictures into `data`.

    The worse the level, the rarer a hit; conditions hit by their strength, seeded.
    """
    folder, data = Path(folder), Path(data)
    rng = np.random.default_rng(0)
    names = [(f"{number:03d}", TYPES[number % len(TYPES)]) for number in range(identities)]
    luck = rng.uniform(size=(identities, len(LEVELS)))
    records = []
    for condition, (_, strength) in CONDITIONS.items():
        for number, (identity, kind) in enumerate(names):
            for severity, view in [(PRISTINE, 0), (PRISTINE, 1), *((s, 0) for s in LEVELS)]:
                level = LEVELS.index(severity) if severity in LEVELS else -1
                hit = level < 0 or luck[number, level] < 0.95 - 0.2 * level * (1 - strength)
                other = names[(number + 1) % identities][0]
                first = identity if hit else other
                records.append(
                    Record(
                        condition=condition,
                        path=_path(identity, severity, view),
                        shown=_path(identity, severity, view),
                        identity=identity,
                        object_type=kind,
                        group="hazard" if kind == "gas_cylinder" else "everyday",
                        severity=severity,
                        view=view,
                        draw=0,
                        tokens=4 if view == 0 else None,
                        mse=0.2 * (level + 1) * (1 - strength) if view == 0 else None,
                        cosine=1 - 0.1 * (level + 1) * (1 - strength) if view == 0 else None,
                        rank=0 if hit else 2,
                        similarity=0.9,
                        nearest=((first, _path(first, PRISTINE, 0), 0.95),),
                    )
                )
                if pictures and condition == "base":
                    path = data / _path(identity, severity, view)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    shade = max(0, 220 - 40 * (level + 1))
                    Image.new("RGB", (24, 20), (shade, shade // 2, 40)).save(path)
    base = [record for record in records if record.condition == "base"]
    records += queries.pristine_records(base, 1)
    record_table.write(folder / scoring.RECORDS_FILE, records)
    if curves:
        rows = [
            {"step": 0, "kind": "val", "r_at_1": 0.4, "mse": 0.6},
            *({"step": s, "kind": "train", "loss": 1 / s, "mse": 1 / s} for s in range(1, 900)),
            {"step": 900, "kind": "val", "r_at_1": 0.6, "mse": 0.4},
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows) + '{"step": 901, "ki'
        files.write_text(folder / "curves" / "frm.jsonl", text)
    files.write_json(folder / scoring.RUN_FILE, _run(data, identities))
    scoring.score(folder, resamples=resamples)
    return folder


def _path(identity, severity, view):
    return f"images/{identity}_{severity}_{view}.png"


def _run(data, identities):
    described = [
        {
            "name": name,
            "kind": kind,
            "about": "",
            "origin": f"made for a test, {name}",
            "sha256": "ab" * 32,
            "num_params": 1000,
        }
        for name, kind in [*((n, k) for n, (k, _) in CONDITIONS.items()), ("pristine", "pristine")]
    ]
    meta = {
        "created": "2026-01-01 00:00:00 +0000",
        "command": "bin/eval --frm=<x>",
        "versions": {"trace_jax": "0", "jax": "0"},
        "machine": "2 CPU cores",
        "data": {"name": "toy", "version": "1", "hash": "cd" * 32, "folders": [str(data)]},
        "host": {"name": "tiny", "tap": "t", "weights_hash": "ef" * 32, "shape": [4, 8]},
        "cache": {"folder": "cache", "dtype": "bfloat16", "code": "0"},
        "split": "test",
        "gallery": "split",
        "gallery_size": identities,
        "pristine_view": 1,
        "limit": None,
        "identities": identities,
        "queries": {**dict.fromkeys(LEVELS, identities), PRISTINE: identities},
        "conditions": described,
        "curves": [{"name": "frm", "path": "curves/frm.jsonl"}],
        "notes": ["A note of the run."],
        "seconds": {"measuring": 1.0},
    }
    return {"schema": scoring.SCHEMA, "plan": "", "conditions": {}, "meta": meta}
