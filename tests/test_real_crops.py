"""Real crops against TRACE's pristine images, on a tiny host (paper Table 5)."""

from __future__ import annotations

import dataclasses
import json
import zlib

import numpy as np
import pytest
from PIL import Image
from support import tiny_host as tiny

from trace_jax import report
from trace_jax.data import manifest
from trace_jax.data.feature_cache import FeatureCache
from trace_jax.errors import UserError
from trace_jax.metrics import retrieval
from trace_jax.report.evaluation import Evaluation
from trace_jax.runs import evaluate, real_crops, scoring
from trace_jax.types import Example

TYPES = ("mug", "chair", "drum")
COLOURS = {"mug": (220, 30, 30), "chair": (30, 220, 30), "drum": (30, 30, 220), "sofa": (9, 9, 9)}


def example(folder, path, kind, identity, severity, split="test", view=0, colour=None):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(zlib.crc32(path.encode()))
    pixels = np.clip(np.array(colour or COLOURS[kind]) + rng.integers(-9, 9, (20, 20, 3)), 0, 255)
    Image.fromarray(pixels.astype(np.uint8)).save(folder / path)
    return Example(path, identity, kind, "", severity, split, view=view)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("crops")
    rows = []
    for kind in TYPES:
        for number in range(4):
            split = "train" if number < 2 else "test"
            for state in ("pristine", "L1", "L3"):
                name = f"images/{kind}{number}_{state}.png"
                rows.append(example(root / "trace", name, kind, f"{kind}-{number}", state, split))
    manifest.write(root / "trace", manifest.DatasetInfo("objects", "trace_toy", "1.0.0", ""), rows)
    tiny.make_cache(root / "trace", root / "cache")
    at = root / "crops"
    crops = [
        # Looks like a mug and is one; looks like a drum and is a mug: one right, one wrong.
        example(at, "images/a.png", "mug", "real-1", "L2"),
        example(at, "images/b.png", "mug", "real-2", "L4", colour=COLOURS["drum"]),
        example(at, "images/c.png", "chair", "real-3", "L3"),
        example(at, "images/c0.png", "chair", "real-3", "pristine"),  # brings its reference
        example(at, "images/d.png", "drum", "drum-0", "L3"),  # an identity of TRACE's
        example(at, "images/e.png", "sofa", "real-4", "L2"),  # no such class in the gallery
        example(at, "images/f.png", "chair", "real-5", "L0"),  # too little damage for Table 5
    ]
    manifest.write(at, manifest.DatasetInfo("crops", "crops_toy", "1.0.0", ""), crops)
    return root


def config(root, **changes):
    return evaluate.EvaluateConfig(
        **{
            "frm": ("none",), "data": root / "trace", "cache": root / "cache", "gallery": "all",
            "host": "tiny", "batch_size": 4, "resamples": 50, "out": root / "out",
            "command": "bin/eval --crops=crops",
        }
        | changes
    )  # fmt: skip


def load(*_args, **_kwargs):
    return tiny.TinyHost()


def value(folder, severity, metric="r_at_1", condition="base"):
    raw = json.loads((folder / "results.json").read_text())
    (found,) = [
        r
        for r in raw["rows"]
        if (r["severity"], r["metric"], r["condition"]) == (severity, metric, condition)
    ]
    assert found["dataset"] == "crops_toy"
    return found["value"], found["n"]


def test_by_class_and_by_identity(world, monkeypatch, capsys):
    monkeypatch.chdir(world)
    by_class, by_identity = real_crops.run(config(world), world / "crops", load_host=load)
    assert value(by_class, "L2") == (1.0, 1)
    assert value(by_class, "L4") == (0.0, 1)  # looks like another class
    assert value(by_class, "L3") == (1.0, 2)
    assert value(by_class, "all") == (0.75, 4)
    assert value(by_class, "pristine") == (1.0, 1)  # the reference asks for its class
    raw = json.loads((by_class / "results.json").read_text())
    assert {r["task"] for r in raw["rows"]} == {"retrieval"}
    conditions = {r["condition"] for r in raw["rows"]}
    assert conditions == {"base", "mean_shift", "mean_shift_oracle", "ridge", "pristine"}
    meta = raw["meta"]
    assert meta["gallery_size"] == 12 and meta["crops"]["chance"] == pytest.approx(1 / 3)
    notes = " ".join(meta["notes"])
    assert "1 crops are of classes without" in notes and "sofa (1)" in notes
    assert "approximate" in notes and "1 crops are of classes" in capsys.readouterr().out
    # Identity: the chair's own reference and TRACE's drum-0; the mugs have none.
    assert value(by_identity, "all")[1] == 2
    meta = json.loads((by_identity / "results.json").read_text())["meta"]
    assert meta["gallery_size"] == 13 and "2 crops have no pristine" in " ".join(meta["notes"])
    for folder in (by_class, by_identity):
        text = report.write(folder).read_text()
        assert "real post-fire photographs" in text and "data:image/webp" in text
        levels = "L2–L4" if folder == by_class else "L3"
        assert f"pooled over {levels};" in text and "L0–L4" not in text
        assert "pictures are synthetic;" not in text and "Beside the paper" not in text
        markdown = (folder / "results.md").read_text()
        target = "class" if folder == by_class else "object"
        assert f"the right {target} comes first" in markdown and f"{levels} (n=" in markdown
        scoring.score(folder)  # rescoring needs neither features nor models


def test_selection_by_hand(world, monkeypatch):
    monkeypatch.chdir(world)
    real_crops.run(config(world), world / "crops", load_host=load)
    crops = FeatureCache.open(world / "runs/cache/tiny/last_hidden_state/crops_toy")
    trace = FeatureCache.open(world / "cache")
    by_class, by_identity = real_crops.select(crops, trace, "test", "split")
    assert len(by_class.gallery) == 6  # test identities alone; a mug, a chair and a drum class
    # drum-0 is of the training split, so only the chair's own reference is left.
    assert [crops.rows[i].path for i in by_identity.rows] == ["images/c.png", "images/c0.png"]
    assert by_identity.pristine_view == 0 and by_identity.chance == 1 / 7
    one = real_crops.select(crops, trace, "test", "all", limit=1)[0]
    assert len(one.rows) == 1 and len(one.gallery) == 12  # one crop, all classes
    assert any("Only 1 of 4 crops ask" in note for note in one.notes)
    assert any("sofa (1)" in note for note in one.notes)
    with pytest.raises(UserError, match=r"no crop of split 'val' .* 2 at L2 of split 'test'"):
        real_crops.select(crops, trace, "val", "all")


def make_crops(root, name, rows):
    """A crops folder of (file, type, identity, severity, draw)."""
    made = [
        dataclasses.replace(
            example(root / name, f"images/{file}.png", kind, identity, severity), draw=draw
        )
        for file, kind, identity, severity, draw in rows
    ]
    manifest.write(root / name, manifest.DatasetInfo("crops", name, "1.0.0", ""), made)
    return root / name


def test_nothing_left_to_ask(world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mild = make_crops(tmp_path, "mild", [("a", "mug", "m", "L0", 0), ("b", "mug", "m", "L1", 0)])
    with pytest.raises(UserError, match="is at L2, L3, L4; there are 1 at L0 of split 'test'"):
        real_crops.run(config(world, out=tmp_path / "out"), mild, load_host=load)
    strange = make_crops(tmp_path, "strange", [("a", "sofa", "s", "L3", 0)])
    with pytest.raises(UserError, match="they are of sofa"):
        real_crops.run(config(world, out=tmp_path / "out"), strange, load_host=load)
    assert not list(tmp_path.rglob("results.json"))


def test_several_crops_of_one_object_and_no_reference(world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [("a", "mug", "m", "L3", 0), ("b", "mug", "m", "L3", 1), ("c", "drum", "d", "L3", 0)]
    # An identity called as one of TRACE's but of another class is none of TRACE's.
    rows.append(("d", "chair", "drum-0", "L4", 0))
    found = real_crops.run(
        config(world, out=tmp_path / "out", conditions=("ridge",)),
        make_crops(tmp_path, "many", rows),
        load_host=load,
        crops_cache=tmp_path / "elsewhere",
    )
    assert [folder.name for folder in found] == ["by_class"]
    assert (tmp_path / "elsewhere/manifest.json").exists()
    raw = json.loads((found[0] / "results.json").read_text())
    # Of the controls the one asked for; no ceiling without pristine references.
    assert {r["condition"] for r in raw["rows"]} == {"base", "ridge"}
    assert scoring.summary(found[0]).startswith("pooled over L3-L4  ")
    assert "no ceiling" in raw["meta"]["ceiling"] and raw["meta"]["identities"] == 3
    pairs = [c for c in raw["meta"]["comparisons"] if c["severity"] == "all"]
    assert {(c["n"], c["identities"]) for c in pairs} == {(4, 3)}  # resampled by identity
    assert any("No crops at L2" in note for note in raw["meta"]["notes"])
    assert "pooled over L3–L4" in report.write(found[0]).read_text()


def test_pictures_of_equal_path_are_told_apart(world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trace = manifest.read(world / "trace").rows
    path = next(r.path for r in trace if r.object_type == "mug" and r.severity == "pristine")
    name = path.removeprefix("images/").removesuffix(".png")
    crops = make_crops(tmp_path, "same", [(name, "mug", "m", "L3", 0)])
    (folder,) = real_crops.run(config(world, out=tmp_path / "out"), crops, load_host=load)
    results = Evaluation.read(folder)
    assert results.picture(path).resolve() == (crops / path).resolve()
    shown = {p for r in results.records for _, p, _ in r["nearest"] or ()}
    assert f"trace_toy:{path}" in shown
    assert results.picture(f"trace_toy:{path}").resolve() == (world / "trace" / path).resolve()


def test_refusals(world, monkeypatch):
    monkeypatch.chdir(world)
    with pytest.raises(UserError, match="holds objects"):
        real_crops.run(config(world), world / "trace", load_host=load)
    other = tiny.TinyHost(weights="w1")
    info = dataclasses.replace(manifest.read(world / "crops").info, name="other")
    for path in (world / "crops").rglob("*.png"):
        copy = world / "other" / path.relative_to(world / "crops")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    manifest.write(world / "other", info, manifest.read(world / "crops").rows)
    with pytest.raises(UserError, match="--crops_cache"):
        real_crops.run(config(world), world / "other", load_host=load, crops_cache=world / "cache")
    otherwise = tiny.TinyHost()
    otherwise.spec = dataclasses.replace(otherwise.spec, preprocessing={"size": 8})
    tiny.make_cache(world / "other", world / "otherwise", otherwise)
    with pytest.raises(UserError, match="prepared otherwise"):
        real_crops.run(
            config(world), world / "other", load_host=load, crops_cache=world / "otherwise"
        )
    with pytest.raises(UserError, match="weights_hash"):
        real_crops.run(config(world), world / "other", load_host=lambda *_a, **_k: other)


def test_search_by_label():
    gallery = np.eye(4)
    labels = np.array([0, 0, 1, 1])
    queries = np.array([[0.9, 0.1, 0.5, 0.0], [0.9, 0.1, 0.5, 0.0], [0.5, 0.5, 0.5, 0.5]])
    found = retrieval.search_labels(queries, gallery, np.array([0, 1, 0]), labels, k=2)
    # Label 1's best is third of four, but only one of the two before it is of another label ...
    assert found.rank.tolist() == [0, 1, 2]  # ... and ties never favour
    assert found.nearest.tolist() == [[0, 2], [0, 2], [2, 3]]
    assert found.similarity[1] == pytest.approx(0.5 / np.linalg.norm(queries[1]))
    # With one image a label it is the plain search.
    rng = np.random.default_rng(0)
    left, right, targets = rng.normal(size=(9, 5)), rng.normal(size=(6, 5)), np.arange(9) % 6
    plain = retrieval.search(left, right, targets)
    labelled = retrieval.search_labels(left, right, targets, np.arange(6), chunk=4)
    assert (plain.rank == labelled.rank).all() and (plain.nearest == labelled.nearest).all()
    with pytest.raises(ValueError, match="lacks the label"):
        retrieval.search_labels(queries, gallery, np.array([0, 1, 2]), labels)
    assert retrieval.search_labels(np.empty((0, 4)), gallery, [], labels).rank.shape == (0,)
