"""Handed cases 2 and 3: files without `info`, no predictions at all; a stand-in detector."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from trace_jax import report
from trace_jax.data import manifest
from trace_jax.data.manifest import DatasetInfo
from trace_jax.runs import detect, evaluate
from trace_jax.types import SceneBox, SceneExample

BOX = (8.0, 8.0, 24.0, 24.0)
CHAIR = 62  # COCO's id


class Stub:
    """Says the same of every picture: `found` as (label, score), all at BOX."""

    def __init__(self, found):
        self.found = found
        self.spec = SimpleNamespace(
            name="rf_detr",
            tap=SimpleNamespace(name="backbone", tokens=4, dim=8),
            weights_hash="0" * 64,
            source=None,
        )
        self.model = SimpleNamespace(stages=(3, 6, 9, 12))

    def preprocess(self, pictures):
        return len(pictures)

    def tap(self, count):
        return count

    def resume(self, count):
        x, y, w, h = BOX
        return SimpleNamespace(
            boxes=np.tile(np.array([x, y, x + w, y + h], np.float32), (count, len(self.found), 1)),
            scores=np.tile(np.array([s for _, s in self.found], np.float32), (count, 1)),
            labels=np.tile(np.array([n for n, _ in self.found], np.int32), (count, 1)),
        )


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data" / "images").mkdir(parents=True)
    rows = []
    for number, severity in enumerate(("pristine", "L2")):
        path = f"images/{number}.png"
        Image.new("RGB", (64, 48), (90, 90, 90)).save(tmp_path / "data" / path)
        boxes = (SceneBox(BOX, "chair", "chair"),)
        rows.append(
            SceneExample(path, "room", "residential", "kitchen", severity, "test", 64, 48, boxes)
        )
    manifest.write(tmp_path / "data", DatasetInfo("scenes", "one", "1", "trace-1"), rows)
    return tmp_path / "data"


def _run(data, out, found):
    config = evaluate.EvaluateConfig(
        frm=("none",), host="rf_detr", data=data, out=out, batch_size=2, resamples=10
    )
    return detect.run(config, load_host=lambda *_, **__: Stub(found), embedded=data)


def _map(out, severity):
    rows = json.loads((out / "results.json").read_text())["rows"]
    return next(r["value"] for r in rows if (r["severity"], r["metric"]) == (severity, "map"))


def test_no_predictions_score_zero_and_the_report_is_written(data, tmp_path):
    # Slot 0 is no category: what a detector says of it is dropped, and nothing is left.
    out = _run(data, tmp_path / "out", [(0, 0.9)])
    assert json.loads((out / "predictions" / "base.json").read_text()) == []
    assert _map(out, "all") == _map(out, "pristine") == 0.0
    assert report.write(out).stat().st_size > 10_000


def test_truth_of_three_keys_is_enough(data, tmp_path):
    out = _run(data, tmp_path / "out", [(CHAIR, 0.9)])
    assert _map(out, "all") == 1.0
    truth = json.loads((out / "truth.json").read_text())
    bare = {key: truth[key] for key in ("images", "annotations", "categories")}
    (out / "truth.json").write_text(json.dumps(bare), encoding="utf-8")
    detect.rescore(out, resamples=10, seed=0)
    assert _map(out, "all") == 1.0


def test_predictions_are_on_disk_before_scoring(data, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise KeyError("info")

    monkeypatch.setattr(detect.detection, "Scored", broken)
    with pytest.raises(KeyError):
        _run(data, tmp_path / "out", [(CHAIR, 0.9)])
    found = json.loads((tmp_path / "out" / "predictions" / "base.json").read_text())
    assert [one["category_id"] for one in found] == [CHAIR, CHAIR]
    monkeypatch.undo()
    assert _map(_run(data, tmp_path / "out", [(CHAIR, 0.9)]), "all") == 1.0
