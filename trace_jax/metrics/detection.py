"""Detection scored the COCO way (paper C.1): class-aware mAP@0.5:0.95 on mapped categories.

Matching is pycocotools' own (`COCOeval.evaluate`), so the numbers are COCO's; what is ours:

- Ids of images and categories may be anything that can be told apart (gaps, 0, texts): they are
  numbered before pycocotools sees them, which counts annotation id 0 as "no match".
- Truth without a mapped category is kept as a region to be ignored in every category: a detection
  that finds it is neither right nor wrong. Predictions of unmapped categories are dropped.
- No predictions at all is a score of 0 for categories with truth, not an error.
- Intervals resample images.
- The misclassification share (Figure 1): of the detections that localise a mapped object
  (IoU >= 0.5 with some truth, whatever the class), how many name another category.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

IOUS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
AREAS = ("all", "small", "medium", "large")
_ROWS = 64  # draws computed at once


@dataclasses.dataclass(frozen=True)
class Truth:
    """One object that is there.

    Attributes:
      image: id of its image.
      box: x, y, width, height in pixels.
      category: mapped category, or None: a region to be ignored.
      crowd: a region of many objects of the category (COCO's iscrowd).
      area: pixels, the box's where None; decides between small, medium and large.
    """

    image: Hashable
    box: tuple[float, float, float, float]
    category: Hashable | None
    crowd: bool = False
    area: float | None = None


@dataclasses.dataclass(frozen=True)
class Detection:
    """One predicted box; `category` is a mapped category or anything else, which is dropped."""

    image: Hashable
    box: tuple[float, float, float, float]
    category: Hashable
    score: float


@dataclasses.dataclass(frozen=True)
class Scores:
    """What COCO reports, 0-1; NaN where nothing counts.

    Attributes:
      map, map_50, map_75: average precision over categories with truth.
      ar: average recall at `max_dets`.
      by_area: map of small (below 32^2 pixels), medium and large (from 96^2) objects.
      by_category: map of each category with truth.
      misclassified_share: see the module.
      localised: detections that share rests on.
      max_dets: detections an image that count.
    """

    map: float
    map_50: float
    map_75: float
    ar: float
    by_area: Mapping[str, float]
    by_category: Mapping[Hashable, float]
    misclassified_share: float
    localised: int
    max_dets: int


@dataclasses.dataclass(frozen=True)
class Difference:
    """mAP minus a rival's.

    Attributes:
      gain: the difference and its 95% interval.
      relative: the same as shares of the rival's mAP; NaN where that is 0.
      p: two-sided, from the share of draws on the other side of 0.
    """

    gain: tuple[float, float, float]
    relative: tuple[float, float, float]
    p: float


class Evaluator:
    """Matches once; then scores any subset of images, and intervals by image.

    Args:
      images: ids of all images, also those without objects.
      categories: the mapped categories.
      truths, detections: see the classes.
      max_dets: 100 as COCO has it; RF-DETR's own code counts 500.
    """

    def __init__(
        self,
        images: Sequence[Hashable],
        categories: Sequence[Hashable],
        truths: Sequence[Truth],
        detections: Sequence[Detection],
        *,
        max_dets: int = 100,
    ) -> None:
        self.images = list(dict.fromkeys(images))
        self.categories = list(dict.fromkeys(categories))
        self.max_dets = max_dets
        self._number = {name: k for k, name in enumerate(self.images)}
        place = {name: k for k, name in enumerate(self.categories)}
        strangers = {t.image for t in truths} | {d.image for d in detections}
        strangers -= set(self._number)
        if strangers:
            raise ValueError(
                f"boxes of images that are not there: {sorted(map(str, strangers))[:5]}"
            )
        kept = [d for d in detections if d.category in place]
        self._matched = self._match(truths, kept, place)
        self._localised = self._mistaken(truths, kept, place)
        self._kept: dict[Any, np.ndarray] = {}

    # ---- scores

    def scores(self, images: Sequence[Hashable] | None = None) -> Scores:
        """Scores of some images, or all."""
        chosen = np.zeros(len(self.images))
        for name in self.images if images is None else images:
            chosen[self._number[name]] = 1
        precision, recall = self._curves(chosen[None])
        whole = precision[0, 0]  # [categories, ious]
        wrong, total = self._localised[:, 0] @ chosen, self._localised[:, 1] @ chosen
        has = ~np.isnan(whole[:, 0])
        return Scores(
            map=_mean(whole),
            map_50=_mean(whole[:, 0]),
            map_75=_mean(whole[:, 5]),
            ar=_mean(recall[0, 0]),
            by_area={name: _mean(precision[0, k]) for k, name in enumerate(AREAS) if k},
            by_category={
                name: float(whole[k].mean()) for k, name in enumerate(self.categories) if has[k]
            },
            misclassified_share=float(wrong / total) if total else float("nan"),
            localised=int(total),
            max_dets=self.max_dets,
        )

    def interval(
        self,
        images: Sequence[Hashable] | None = None,
        *,
        resamples: int = 500,
        seed: int = 0,
    ) -> tuple[float, float, float]:
        """mAP of some images with its 95% percentile interval over resampled images."""
        values = self._maps(images, resamples, seed)
        return (values[0], *_bounds(values[1:]))

    def difference(
        self,
        rival: Evaluator,
        images: Sequence[Hashable] | None = None,
        *,
        resamples: int = 500,
        seed: int = 0,
    ) -> Difference:
        """mAP against a rival's on the same images; images are drawn alike on both sides."""
        if self.images != rival.images:
            raise ValueError("both evaluators must be of the same images")
        own, theirs = (e._maps(images, resamples, seed) for e in (self, rival))
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = (own - theirs) / theirs
        relative[~np.isfinite(relative)] = np.nan
        gains = own - theirs
        drawn = gains[1:][~np.isnan(gains[1:])]
        tail = min(np.count_nonzero(drawn <= 0), np.count_nonzero(drawn >= 0))
        return Difference(
            (gains[0], *_bounds(gains[1:])),
            (relative[0], *_bounds(relative[1:])),
            min(1.0, 2 * (1 + tail) / (1 + len(drawn))),
        )

    def _draws(self, images: Sequence[Hashable] | None, resamples: int, seed: int) -> np.ndarray:
        """How often each image counts: once in the first row, then as drawn. [1 + R, images]."""
        members = np.array([self._number[n] for n in (self.images if images is None else images)])
        counts = np.zeros((1 + resamples, len(self.images)))
        counts[0, members] = 1
        rng = np.random.default_rng([seed, len(members)])
        for row in counts[1:]:
            np.add.at(row, rng.choice(members, len(members)), 1)
        return counts

    def _maps(self, images: Sequence[Hashable] | None, resamples: int, seed: int) -> np.ndarray:
        """mAP of the images, then of every draw of them: [1 + R]. Kept: intervals and every
        difference ask for the same.
        """
        key = (None if images is None else tuple(images), resamples, seed)
        if key not in self._kept:
            parts = np.array_split(self._draws(images, resamples, seed), 1 + resamples // _ROWS)
            self._kept[key] = np.concatenate(
                [[_mean(row) for row in self._curves(part, areas=1)[0][:, 0]] for part in parts]
            )
        return self._kept[key]

    def _curves(self, counts: np.ndarray, areas: int = 4) -> tuple[np.ndarray, np.ndarray]:
        """Average precision and recall [rows, areas, categories, ious]; NaN without truth."""
        shape = (len(counts), areas, len(self.categories), len(IOUS))
        precision, recall = np.full(shape, np.nan), np.full(shape, np.nan)
        for (area, category), found in self._matched.items():
            if area < areas:
                precision[:, area, category], recall[:, area, category] = found.curves(counts)
        return precision, recall

    # ---- matching

    def _match(
        self, truths: Sequence[Truth], kept: Sequence[Detection], place: Mapping[Hashable, int]
    ) -> dict[tuple[int, int], _Matches]:
        annotations: list[dict[str, Any]] = []
        for truth in truths:
            names = [truth.category] if truth.category in place else self.categories
            for name in names:
                # An unmapped object is a crowd of every category: what finds it is not counted.
                ignored = truth.category not in place
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": self._number[truth.image],
                        "category_id": place[name],
                        "bbox": list(truth.box),
                        "area": truth.area
                        if truth.area is not None
                        else truth.box[2] * truth.box[3],
                        "iscrowd": int(truth.crowd or ignored),
                    }
                )
        predicted = [
            {
                "id": k,
                "image_id": self._number[d.image],
                "category_id": place[d.category],
                "bbox": list(d.box),
                "area": d.box[2] * d.box[3],
                "score": float(d.score),
                "iscrowd": 0,
            }
            for k, d in enumerate(kept, start=1)
        ]
        with contextlib.redirect_stdout(io.StringIO()):
            run = COCOeval(self._coco(annotations), self._coco(predicted), "bbox")
            run.params.maxDets = [1, 10, self.max_dets]
            run.evaluate()
        count = len(self.images)
        matched = {}
        for category in range(len(self.categories)):
            for area in range(len(AREAS)):
                start = (category * len(AREAS) + area) * count
                found = [(k, e) for k, e in enumerate(run.evalImgs[start : start + count]) if e]
                if found:
                    matched[area, category] = _Matches.of(found, count, self.max_dets)
        return matched

    def _coco(self, annotations: list[dict[str, Any]]) -> COCO:
        coco = COCO()
        coco.dataset = {
            "info": {},
            "images": [{"id": k} for k in range(len(self.images))],
            "annotations": annotations,
            "categories": [{"id": k} for k in range(len(self.categories))],
        }
        coco.createIndex()
        return coco

    def _mistaken(
        self, truths: Sequence[Truth], kept: Sequence[Detection], place: Mapping[Hashable, int]
    ) -> np.ndarray:
        """Per image [images, 2]: detections that localise but misname, and all that localise."""
        found = np.zeros((len(self.images), 2))
        there: dict[Hashable, list[Truth]] = {}
        for truth in truths:
            if truth.category in place and not truth.crowd:
                there.setdefault(truth.image, []).append(truth)
        by_image: dict[Hashable, list[Detection]] = {}
        for detection in kept:
            by_image.setdefault(detection.image, []).append(detection)
        for image, mine in by_image.items():
            mine = sorted(mine, key=lambda d: -d.score)[: self.max_dets]
            objects = there.get(image, [])
            if not objects:
                continue
            overlap = iou([d.box for d in mine], [t.box for t in objects])
            best = overlap.argmax(axis=1)
            number = self._number[image]
            for row, detection in enumerate(mine):
                if overlap[row, best[row]] >= 0.5:
                    found[number, 1] += 1
                    found[number, 0] += detection.category != objects[best[row]].category
        return found


@dataclasses.dataclass(frozen=True)
class _Matches:
    """Detections of one category and size range, best first.

    Attributes:
      image: [n] number of the image of each. right, wrong: [ious, n] 0 or 1, both 0 where ignored.
      positives: [images] objects that count.
    """

    image: np.ndarray
    right: np.ndarray
    wrong: np.ndarray
    positives: np.ndarray

    @classmethod
    def of(cls, found: list[tuple[int, dict[str, Any]]], images: int, max_dets: int) -> _Matches:
        score = np.concatenate([e["dtScores"][:max_dets] for _, e in found])
        # The sort that pycocotools uses: ties keep the order of images.
        order = np.argsort(-score, kind="mergesort")
        image = np.concatenate(
            [np.full(min(len(e["dtScores"]), max_dets), k) for k, e in found]
        ).astype(int)
        hit = np.concatenate([e["dtMatches"][:, :max_dets] for _, e in found], axis=1) > 0
        ignored = np.concatenate([e["dtIgnore"][:, :max_dets] for _, e in found], axis=1) > 0
        positives = np.zeros(images)
        for k, e in found:
            positives[k] = np.count_nonzero(np.asarray(e["gtIgnore"]) == 0)
        return cls(
            image[order],
            (hit & ~ignored)[:, order].astype(float),
            (~hit & ~ignored)[:, order].astype(float),
            positives,
        )

    def curves(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Average precision and recall [rows, ious] where image k counts `counts[:, k]` times.

        COCO's average precision: precision made falling, read at 101 recalls, zero where recall is
        not reached. Precision peaks where a detection is right, so only those places are looked at.
        """
        rows = len(counts)
        positives = counts @ self.positives
        precision, recall = np.zeros((rows, len(IOUS))), np.zeros((rows, len(IOUS)))
        weight = counts[:, self.image]
        ranks: dict[bytes, np.ndarray] = {}
        for k in range(len(IOUS)):
            at = np.flatnonzero(self.right[k])
            if not len(at):
                continue
            counted = (self.right[k] + self.wrong[k]) > 0
            key = counted.tobytes()
            if key not in ranks:  # mostly the same at every overlap
                ranks[key] = np.cumsum(weight * counted, axis=1)
            right = np.cumsum(weight[:, at], axis=1)
            falling = right / np.maximum(ranks[key][:, at], np.spacing(1))
            falling = np.maximum.accumulate(falling[:, ::-1], axis=1)[:, ::-1]
            falling = np.column_stack([falling, np.zeros(rows)])
            reached = right / np.maximum(positives, np.spacing(1))[:, None]
            first = np.stack([np.searchsorted(r, RECALLS, side="left") for r in reached])
            precision[:, k] = np.take_along_axis(falling, first, axis=1).mean(axis=1)
            recall[:, k] = reached[:, -1]
        nothing = positives == 0
        precision[nothing], recall[nothing] = np.nan, np.nan
        return precision, recall


def confusions(
    truths: Sequence[Truth], detections: Sequence[Detection], *, least_score: float = 0.0
) -> dict[tuple[Hashable, Hashable], int]:
    """Detections that localise a mapped object (IoU >= 0.5), by (its category, the one named)."""
    found: dict[tuple[Hashable, Hashable], int] = {}
    there: dict[Hashable, list[Truth]] = {}
    for truth in truths:
        if truth.category is not None and not truth.crowd:
            there.setdefault(truth.image, []).append(truth)
    for one in detections:
        objects = there.get(one.image, [])
        if not objects or one.score < least_score:
            continue
        overlap = iou([one.box], [t.box for t in objects])[0]
        best = int(overlap.argmax())
        if overlap[best] >= 0.5:
            key = (objects[best].category, one.category)
            found[key] = found.get(key, 0) + 1
    return found


def iou(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> np.ndarray:
    """Overlap of boxes x, y, w, h: [n, m], intersection over union."""
    a, b = (np.asarray(boxes, float).reshape(-1, 4) for boxes in (first, second))
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, :2] + a[:, None, 2:], b[None, :, :2] + b[None, :, 2:])
    inside = np.prod(np.clip(high - low, 0, None), axis=-1)
    union = (a[:, 2] * a[:, 3])[:, None] + (b[:, 2] * b[:, 3])[None] - inside
    return np.divide(inside, union, out=np.zeros_like(inside), where=union > 0)


def _mean(values: np.ndarray) -> float:
    found = values[~np.isnan(values)]
    return float(found.mean()) if found.size else float("nan")


def _bounds(values: np.ndarray) -> tuple[float, float]:
    found = values[~np.isnan(values)]
    if len(found) < 2:
        return float("nan"), float("nan")
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)
