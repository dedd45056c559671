"""Detection from scenes to a report at toy size: conditions, files, resume, scores again."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pytest
from PIL import Image
from support.pages import Page

import converters
from configs.nano import rf_detr_frm
from trace_jax import hosts, report
from trace_jax.data import manifest
from trace_jax.data.manifest import DatasetInfo
from trace_jax.errors import UserError
from trace_jax.runs import cache, detect, evaluate, train
from trace_jax.types import LEVELS, PRISTINE, SceneBox, SceneExample

pytestmark = pytest.mark.usefixtures("compile_once")

CONFIG = {
    "model_type": "rf_detr",
    "backbone_config": {
        "model_type": "rf_detr_dinov2", "hidden_size": 16, "image_size": 64, "patch_size": 8,
        "num_hidden_layers": 12, "num_attention_heads": 2, "num_windows": 2,
        "out_features": ["stage3", "stage6", "stage9", "stage12"],
    },
    "d_model": 16, "num_queries": 8, "group_detr": 2, "decoder_self_attention_heads": 2,
    "decoder_cross_attention_heads": 2, "decoder_n_points": 2, "decoder_layers": 2,
    "decoder_ffn_dim": 16, "num_labels": 91,
}  # fmt: skip
BOXES = (("chair", "chair", (4, 6, 20, 22)), ("bottle", "bottle", (30, 30, 10, 24)),
         ("generator", "", (40, 4, 18, 18)))  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Weights, six layouts before and after a fire, and an FRM trained on their features."""
    root = tmp_path_factory.mktemp("detect")
    host = hosts.build("rf_detr", CONFIG, jax.random.key(0))
    converters.save_host(host, root / "host")
    rows = []
    (root / "data" / "images").mkdir(parents=True)
    for number in range(6):
        split = ("train", "val", "test")[number % 3]
        for place, severity in enumerate((PRISTINE, *LEVELS)):
            pixels = np.full((64, 64, 3), 220 - 36 * place, np.uint8)
            for k, (_, _, (x, y, w, h)) in enumerate(BOXES):
                pixels[y : y + h, x : x + w] = (40 + 60 * k, 200 - 30 * place, 20 * number)
            path = f"images/{number}_{severity}.png"
            Image.fromarray(pixels).save(root / "data" / path)
            boxes = tuple(SceneBox(box, name, coco) for name, coco, box in BOXES)
            rows.append(
                SceneExample(path, f"room-{number}", "residential", "kitchen", severity, split, 64,
                             64, boxes)
            )  # fmt: skip
    manifest.write(root / "data", DatasetInfo("scenes", "rooms", "1.0.0", "trace-1"), rows)
    cached = cache.run(
        cache.CacheConfig(
            host="rf_detr", weights=str(root / "host"), data=root / "data", out=root / "cache",
            batch_size=4,
        ),
        load_host=converters.load_host,
    )  # fmt: skip
    page = rf_detr_frm.get_config()
    page.host.name, page.host.weights = "rf_detr", str(root / "host")
    page.data.cache = str(cached.folder)
    page.data.batch_size = page.data.val_batch_size = 4
    page.frm.num_heads, page.epochs, page.evals_per_epoch = 2, 1, 1
    trained = train.run(page, load_host=converters.load_host, workdir=root / "train")
    return root, trained.best or trained.last


def _config(world, out, **changes):
    root, frm = world
    values = {
        "frm": (f"frm={frm}",), "host": "rf_detr", "data": root / "data", "batch_size": 4,
        "weights": str(root / "host"), "out": out, "resamples": 20, "command": "bin/eval",
    }  # fmt: skip
    return evaluate.EvaluateConfig(**{**values, **changes})


def _run(config):
    return detect.run(config, load_host=converters.load_host, embedded=config.data)


@pytest.fixture(scope="module")
def results(world, tmp_path_factory):
    root, frm = world
    out = tmp_path_factory.mktemp("results") / "out"
    # The same weights stand for fine-tuned ones: they must score as the frozen host does.
    tuned = {"finetuned": str(root / "host"), "finetuned_frm": (f"frm={frm}",)}
    return _run(_config(world, out, **tuned))


def test_rows_of_every_condition(results):
    raw = json.loads((results / "results.json").read_text())
    rows = {(r["condition"], r["severity"], r["metric"]): r for r in raw["rows"]}
    assert {r["task"] for r in raw["rows"]} == {"detection"}
    for condition in ("base", "frm", "finetuned", "finetuned_frm"):
        for severity in (*LEVELS, "all", PRISTINE):
            assert rows[condition, severity, "map"]["n"] == (10 if severity == "all" else 2)
    assert rows["pristine", PRISTINE, "map"]["value"] == rows["base", PRISTINE, "map"]["value"]
    for severity in (*LEVELS, "all"):
        one, other = (rows[c, severity, "map"] for c in ("base", "finetuned"))
        assert one["value"] == other["value"]
        assert rows["finetuned", severity, "map_gain"]["value"] == 0.0
    told = {c["name"]: c["kind"] for c in raw["meta"]["conditions"]}
    assert told == {"base": "base", "frm": "frm", "finetuned": "finetuned",
                    "finetuned_frm": "frm", "pristine": "pristine"}  # fmt: skip
    assert raw["meta"]["queries"] == {s: 2 for s in (PRISTINE, *LEVELS)}


def test_files_are_what_cocos_tools_read(results):
    from pycocotools.coco import COCO

    truth = COCO(str(results / "truth.json"))
    found = truth.loadRes(str(results / "predictions" / "base.json"))
    assert len(truth.getImgIds()) == 12 and len(found.getAnnIds()) > 0
    names = {c["name"] for c in truth.loadCats(truth.getCatIds())}
    assert names == {"chair", "bottle", "generator"}
    categories = {row["category_id"] for row in found.dataset["annotations"]}
    assert categories <= set(range(1, 91))  # COCO's own ids, no slot numbers
    assert all(len(found.getAnnIds(imgIds=k)) <= 100 for k in truth.getImgIds())


def test_a_killed_run_goes_on_to_the_same_bytes(world, results, tmp_path, monkeypatch):
    whole = _run(_config(world, tmp_path / "whole"))
    inner, calls = detect._kept, 0

    def dying(*args):
        nonlocal calls
        calls += 1
        if calls == 7:
            raise KeyboardInterrupt
        return inner(*args)

    monkeypatch.setattr(detect, "_kept", dying)
    with pytest.raises(KeyboardInterrupt):
        _run(_config(world, tmp_path / "broken"))
    monkeypatch.setattr(detect, "_kept", inner)
    path = tmp_path / "broken" / "detections.jsonl"
    path.write_bytes(path.read_bytes()[:-9])  # and the last line is cut short
    resumed = _run(_config(world, tmp_path / "broken"))
    for name in ("truth.json", "predictions/base.json", "predictions/frm.json"):
        assert (resumed / name).read_bytes() == (whole / name).read_bytes()
    one, other = (json.loads((f / "results.json").read_text())["rows"] for f in (whole, resumed))
    assert one == other


def test_scores_again_from_the_files_alone(results):
    before = json.loads((results / "results.json").read_text())
    assert detect.is_results(results)
    detect.rescore(results, resamples=20, seed=0)
    after = json.loads((results / "results.json").read_text())
    assert after["rows"] == before["rows"]
    with pytest.raises(UserError, match="holds detections"):
        detect.rescore(results, task_names=("retrieval",), resamples=20, seed=0)


def test_the_report_shows_scenes_with_boxes(results):
    page = Page(report.write(results).read_text(encoding="utf-8"))
    words = " ".join(" ".join(page.words).split())
    for needed in ("mAP@0.5:0.95, %", "What is found", "What is taken for what",
                   "Average precision by category", "Fine-tuned + FRM", "kitchen"):  # fmt: skip
        assert needed in words, needed
    assert sum(r.startswith("data:image/webp") for r in page.references) >= 2 * 6 * 4
    assert "| Base |" in (results / "results.md").read_text(encoding="utf-8")


def test_unreadable_scenes_are_listed_and_left_out(world, tmp_path):
    import shutil

    root, _ = world
    shutil.copytree(root / "data", tmp_path / "data")
    (tmp_path / "data" / "images" / "2_L3.png").write_bytes(b"")
    config = _config(world, tmp_path / "out", data=tmp_path / "data", frm=("none",))
    raw = json.loads((_run(config) / "results.json").read_text())
    assert raw["meta"]["queries"]["L3"] == 1
    assert any("2_L3.png" in note for note in raw["meta"]["notes"])


def test_objects_are_no_scenes(world, tmp_path):
    with pytest.raises(UserError, match="no scene"):
        _run(dataclasses.replace(_config(world, tmp_path), split="nowhere"))
