"""Detection scores: equal to pycocotools called directly, and cases worked by hand."""

from __future__ import annotations

import contextlib
import dataclasses
import io

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from trace_jax.metrics.detection import Detection, Evaluator, Truth, iou

BOX = (10.0, 10.0, 40.0, 40.0)


def one(truths, detections, categories=(1, 2, 3), images=("a",), **changes):
    return Evaluator(images, categories, truths, detections, **changes).scores()


def test_perfect_and_empty():
    truths = [Truth("a", BOX, 1), Truth("a", (60.0, 10.0, 20.0, 20.0), 2)]
    right = [Detection("a", t.box, t.category, 0.9) for t in truths]
    found = one(truths, right)
    assert found.map == found.map_50 == found.ar == 1.0
    assert found.by_category == {1: 1.0, 2: 1.0}  # category 3 has no truth: it does not count
    assert found.misclassified_share == 0.0 and found.localised == 2
    none = one(truths, [])
    assert none.map == 0.0 and np.isnan(none.misclassified_share)
    assert np.isnan(one([], right).map)


@pytest.mark.parametrize("ids", [(1, 2, 3), (0, 1, 2), (1, 44, 90), ("x", "y", "z")])
def test_any_ids_and_off_by_one(ids):
    """Handed case 1: ids from 0, with gaps, as texts; a shift by one slot is wholly wrong."""
    truths = [Truth(0, BOX, name) for name in ids[:2]]
    right = [Detection(0, BOX, name, 0.9) for name in ids[:2]]
    assert one(truths, right, ids, images=(0,)).map == 1.0
    shifted = [Detection(0, BOX, ids[k + 1], 0.9) for k in range(2)]
    found = one([truths[0]], [shifted[0]], ids, images=(0,))
    assert found.map == 0.0 and found.misclassified_share == 1.0


def test_crowds_unmapped_truth_and_unmapped_predictions():
    truths = [
        Truth("a", BOX, 1),
        Truth("a", (60.0, 60.0, 40.0, 40.0), 1, crowd=True),
        Truth("a", (120.0, 10.0, 40.0, 40.0), None),  # of a type that COCO has no category for
    ]
    found = [
        Detection("a", BOX, 1, 0.5),
        Detection("a", (62.0, 62.0, 20.0, 20.0), 1, 0.9),  # inside the crowd: ignored
        Detection("a", (120.0, 10.0, 40.0, 40.0), 1, 0.9),  # finds the unmapped object: ignored
        Detection("a", (200.0, 200.0, 9.0, 9.0), "unheard of", 0.99),  # dropped
    ]
    assert one(truths, found).map == 1.0
    found.append(Detection("a", (300.0, 300.0, 20.0, 20.0), 1, 0.95))  # a real false alarm
    assert one(truths, found).map == pytest.approx(0.5)


def test_at_most_so_many_detections_an_image_count():
    truths = [Truth("a", (20.0 * k, 0.0, 10.0, 10.0), 1) for k in range(150)]
    found = [Detection("a", t.box, 1, 1 - k / 200) for k, t in enumerate(truths)]
    assert one(truths, found).ar == pytest.approx(100 / 150)
    assert one(truths, found, max_dets=500).ar == 1.0


def test_subsets_by_image_and_intervals():
    truths = [Truth(k, BOX, 1) for k in range(20)]
    found = [Detection(k, BOX, 1, 0.9) for k in range(0, 20, 2)]
    run = Evaluator(range(20), [1], truths, found)
    assert run.scores(range(0, 20, 2)).map == 1.0 and run.scores(range(1, 20, 2)).map == 0.0
    value, low, high = run.interval(resamples=100)
    assert value == run.scores().map and low < value < high
    better = Evaluator(range(20), [1], truths, [Detection(k, BOX, 1, 0.9) for k in range(20)])
    one = better.difference(run, resamples=100)
    gain, low, high = one.gain
    assert one.relative[0] == gain / run.scores().map and 0 < one.p < 0.05
    assert run.difference(run, resamples=100).p == 1.0
    assert gain == pytest.approx(1 - value) and 0 < low <= gain <= high
    assert np.isnan(run.scores([]).map)
    with pytest.raises(ValueError, match="not there"):
        Evaluator([1], [1], truths, [])


def _direct(images, categories, truths, detections, max_dets):
    annotations = [
        {"id": k, "image_id": t.image, "category_id": t.category, "bbox": list(t.box),
         "area": t.box[2] * t.box[3], "iscrowd": int(t.crowd)}
        for k, t in enumerate(truths, start=1)
    ]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "info": {}, "images": [{"id": i} for i in images], "annotations": annotations,
            "categories": [{"id": c} for c in categories],
        }  # fmt: skip
        truth.createIndex()
        results = truth.loadRes(
            [{"image_id": d.image, "category_id": d.category, "bbox": list(d.box),
              "score": d.score} for d in detections]
        )  # fmt: skip
        run = COCOeval(truth, results, "bbox")
        run.params.maxDets = [1, 10, max_dets]
        run.evaluate()
        run.accumulate()
        run.summarize()
    return run


@pytest.mark.parametrize("seed", range(4))
def test_equals_pycocotools(seed):
    rng = np.random.default_rng(seed)
    images, categories = list(range(1, 13)), [1, 5, 17, 90]
    truths, found = [], []
    for image in images:
        for _ in range(int(rng.integers(0, 6))):
            box = (*rng.uniform(0, 200, 2), *rng.uniform(8, 140, 2))
            category = int(rng.choice(categories))
            truths.append(Truth(image, box, category, crowd=bool(rng.random() < 0.1)))
            for _ in range(int(rng.integers(0, 3))):
                moved = tuple(np.array(box) + rng.normal(0, 4, 4).clip(-6, 6))
                name = category if rng.random() < 0.7 else int(rng.choice(categories))
                found.append(Detection(image, moved, name, round(float(rng.random()), 2)))
    ours = Evaluator(images, categories, truths, found).scores()
    stats = _direct(images, categories, truths, found, 100).stats
    assert ours.map == pytest.approx(stats[0], abs=1e-12)
    assert ours.map_50 == pytest.approx(stats[1], abs=1e-12)
    assert ours.map_75 == pytest.approx(stats[2], abs=1e-12)
    for name, value in zip(("small", "medium", "large"), stats[3:6], strict=True):
        assert (value == -1 and np.isnan(ours.by_area[name])) or ours.by_area[
            name
        ] == pytest.approx(value, abs=1e-12)
    assert ours.ar == pytest.approx(stats[8], abs=1e-12)


def test_iou_by_hand():
    assert iou([(0, 0, 2, 2)], [(1, 1, 2, 2), (0, 0, 2, 2), (5, 5, 1, 1)]).tolist() == [
        [pytest.approx(1 / 7), 1.0, 0.0]
    ]


def test_a_draw_counts_an_image_as_often_as_it_was_drawn():
    rng = np.random.default_rng(5)
    truths, found = _random_case(rng, images=6, categories=3)
    counts = np.array([2, 0, 1, 3, 1, 0])
    run = Evaluator(range(6), range(3), truths, found)
    drawn, _ = run._curves(counts[None].astype(float), areas=1)
    # The same by hand: every copy is an image of its own.
    copies = [(k, n) for k in range(6) for n in range(counts[k])]
    by_hand = Evaluator(
        copies,
        range(3),
        [dataclasses.replace(t, image=c) for c in copies for t in truths if t.image == c[0]],
        [dataclasses.replace(d, image=c) for c in copies for d in found if d.image == c[0]],
    )
    np.testing.assert_allclose(
        np.nanmean(drawn[0, 0]), by_hand.scores().map, rtol=1e-12, atol=1e-12
    )


def _random_case(rng, images, categories):
    truths, found = [], []
    for image in range(images):
        for _ in range(4):
            x, y, w, h = rng.uniform(0, 60, 2).tolist() + rng.uniform(10, 30, 2).tolist()
            name = int(rng.integers(categories))
            truths.append(Truth(image, (x, y, w, h), name))
            for _ in range(3):
                dx, dy = rng.normal(0, 4, 2)
                found.append(Detection(image, (x + dx, y + dy, w, h), name, float(rng.random())))
    return truths, found
