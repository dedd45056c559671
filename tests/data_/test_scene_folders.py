"""Folders of scenes: every kind of fault by name, pairs, caches by reference."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest
from PIL import Image
from support import tiny_host as tiny

from trace_jax import files, taxonomy
from trace_jax.data import manifest
from trace_jax.data.feature_cache import FeatureCache
from trace_jax.data.pairs import pairs
from trace_jax.errors import FaultsError, UserError
from trace_jax.runs import queries
from trace_jax.types import SceneBox, SceneExample

BIN = Path(__file__).parents[2] / "bin"
SIZE = (48, 36)
STATES = ("pristine", "L1", "L3")


def make_scenes(folder, layouts=12, pairs=True):
    known = taxonomy.load()
    scene_type = known.scene_type_of["living_room"]
    rows = []
    for number in range(layouts):
        for state in STATES if pairs else ("L2",):
            path = f"images/{number:02d}/{state}.png"
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", SIZE, (number * 9, len(rows) % 256, 80)).save(folder / path)
            boxes = (
                SceneBox((4, 5, 20, 30.5), "chair", "chair", ("wood",), "charred", 0.8),
                SceneBox((30, 10, 8, 12), "aerosol_can", "", ("metal",), "sooted"),
            )
            rows.append(
                SceneExample(
                    path, f"layout-{number:02d}", scene_type.environment, scene_type.name, state,
                    ("train", "val", "test")[number % 3], *SIZE, boxes, "a room",
                    {"engine": "test", "inventory": ["piano"]}, files.sha256_file(folder / path),
                )
            )  # fmt: skip
    info = manifest.DatasetInfo("scenes", "rooms", "1.0.0", known.name, pairs=pairs)
    return manifest.write(folder, info, rows)


def test_round_trip(tmp_path):
    written = make_scenes(tmp_path)
    read = manifest.read(tmp_path)
    assert read.scenes == written.scenes and read.hash == written.hash
    assert manifest.inspect(tmp_path) == manifest.warnings(tmp_path) == []
    with pytest.raises(UserError, match="holds scenes"):
        _ = read.examples


def test_every_kind_of_damage_is_one_named_fault(tmp_path):
    make_scenes(tmp_path, 24)
    path = tmp_path / "manifest.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    wanted = {}

    def damage(name, change):
        row = rows[3 * len(wanted) + 1]  # each layout is damaged once, at its L1
        wanted[name] = row["layout"]
        change(row)

    def box(**changes):
        return lambda row: row["boxes"][0].update(changes)

    def other_split(row):
        row["split"] = "val" if row["split"] != "val" else "train"

    damage("box-outside", box(box=[30, 5, 20, 20]))
    damage("box-empty", box(box=[4, 5, 0, 20]))
    damage("unknown-type", box(object_type="spaceship"))
    damage("unknown-material", box(materials=["unobtainium"]))
    damage("unknown-coco", box(coco="spaceship"))
    damage("coco-disagrees", box(coco="couch"))
    damage("outside-0-1", box(visible=1.5))
    damage("unknown-scene-type", lambda row: row.update(scene_type="moon_base"))
    damage("unknown-environment", lambda row: row.update(environment="lunar"))
    damage("environment-disagrees", lambda row: row.update(environment="outdoor"))
    damage("mixed-layout", lambda row: row.update(scene_type="kitchen"))
    damage("layout-in-two-splits", other_split)
    damage("size-disagrees", lambda row: row.update(width=64))
    damage("wrong-type", lambda row: row.update(height="36"))
    damage("missing-field", lambda row: row.pop("severity"))
    damage("unknown-severity", lambda row: row.update(severity="L5"))
    damage("bad-path", lambda row: row.update(path="/etc/passwd"))
    damage("hash-disagrees", lambda row: row.update(sha256="0" * 64))
    damage("missing-file", lambda row: (tmp_path / row["path"]).unlink())
    damage(
        "unreadable-image",
        lambda row: (tmp_path / row["path"]).write_bytes(
            (tmp_path / row["path"]).read_bytes()[:50]
        ),
    )
    first = 3 * len(wanted)
    gone = [rows[first]]  # its pristine row: the layout has no pair
    (tmp_path / rows[first]["path"]).unlink()
    wanted["missing-pair"] = rows[first]["layout"]
    wanted["not-json"] = rows[first + 3]["layout"]
    lines = [json.dumps(row) for row in rows if row not in gone]
    lines[first + 2] = lines[first + 2][:-9]  # a line cut short: a pristine row
    # Its path was moved away, so no row names the picture any more.
    (tmp_path / "images/16/L1.png").unlink()
    path.write_text("\n".join(lines) + "\n")
    faults = manifest.inspect(tmp_path)
    assert sorted(fault.name for fault in faults) == sorted(wanted), "\n".join(
        fault.named for fault in faults
    )
    texts = lines
    for fault in faults:
        assert wanted[fault.name] in texts[fault.line - 1], fault.named
    done = subprocess.run([BIN / "data", "check", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [fault.named for fault in faults]


def test_a_release_without_pairs_gives_warnings(tmp_path):
    data = make_scenes(tmp_path, 3, pairs=False)
    assert manifest.inspect(tmp_path) == []
    assert [w.name for w in manifest.warnings(tmp_path)] == ["missing-pair"] * 3
    done = subprocess.run([BIN / "data", "check", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.count("warning: missing-pair: ") == 3
    assert "sound; rooms 1.0.0, 3 layouts" in done.stdout
    manifest.write(tmp_path, dataclasses.replace(data.info, pairs=True), data.rows)
    assert [f.name for f in manifest.inspect(tmp_path)] == ["missing-pair"] * 3
    with pytest.raises(FaultsError, match="kind 'scenes' alone"):
        manifest.write(tmp_path, dataclasses.replace(data.info, kind="crops"), data.rows)


def test_two_pristine_rows_of_a_layout(tmp_path):
    data = make_scenes(tmp_path, 2)
    twice = dataclasses.replace(data.rows[1], severity="pristine")
    with pytest.raises(FaultsError, match="already"):
        manifest.write(tmp_path, data.info, [data.rows[0], twice, *data.rows[2:]])


def test_rows_of_another_kind_are_refused(tmp_path):
    data = make_scenes(tmp_path, 1)
    with pytest.raises(FaultsError, match="'identity' is missing"):
        manifest.write(tmp_path, dataclasses.replace(data.info, kind="objects"), data.rows)


def test_caches_are_named_outside_the_hash(tmp_path):
    data = make_scenes(tmp_path, 1)
    named = {"host": "siglip2", "tap": "last_hidden_state", "cache": "features"}
    info = dataclasses.replace(data.info, embeddings=(named,))
    again = manifest.write(tmp_path, info, data.rows)
    assert again.hash == data.hash and manifest.read(tmp_path).info == info
    assert [w.name for w in manifest.warnings(tmp_path)] == ["missing-cache"]
    facts = {"host": "siglip2", "tap": "last_hidden_state", "dataset_hash": data.hash}
    files.write_json(tmp_path / "features/manifest.json", facts)
    assert manifest.inspect(tmp_path) == manifest.warnings(tmp_path) == []
    files.write_json(tmp_path / "features/manifest.json", facts | {"dataset_hash": "0" * 64})
    (fault,) = manifest.inspect(tmp_path)
    assert fault.name == "cache-disagrees" and "dataset_hash" in fault
    (tmp_path / "features/manifest.json").write_text("[")
    assert [f.name for f in manifest.inspect(tmp_path)] == ["cache-disagrees"]
    with pytest.raises(FaultsError, match="host, tap and cache"):
        manifest.write(tmp_path, dataclasses.replace(info, embeddings=({"host": "x"},)), data.rows)


def test_labels_of_another_vocabulary_are_a_warning(tmp_path):
    data = make_scenes(tmp_path, 1)
    manifest.write(tmp_path, dataclasses.replace(data.info, taxonomy="mine"), data.rows)
    assert [w.name for w in manifest.warnings(tmp_path)] == ["unchecked-labels"]


def test_scenes_have_cached_features_and_pairs(tmp_path):
    make_scenes(tmp_path / "data", 6)
    tiny.make_cache(tmp_path / "data", tmp_path / "cache")
    cache = FeatureCache.open(tmp_path / "cache")
    assert [row.path for row in cache.rows] == [
        row.path for row in manifest.read(tmp_path / "data").scenes
    ]
    assert cache.rows[0].boxes[0].object_type == "chair"
    found = pairs(cache, "train", ("L1", "L3"))
    assert found.identities == ("layout-00", "layout-03")
    for degraded, pristine in zip(found.degraded, found.pristine, strict=True):
        assert cache.rows[degraded].layout == cache.rows[pristine].layout
        assert cache.rows[pristine].severity == "pristine"
    assert len(pairs(cache, "train", draws=(0,))) == 4
    with pytest.raises(UserError, match="features of scenes"):
        queries.select(cache, "test", "split")
