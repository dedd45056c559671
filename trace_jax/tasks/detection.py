"""Degraded-object detection (paper C.1): class-aware COCO-mapped mAP@0.5:0.95 by severity.

Truth is what a scene's boxes say; a box whose type has no COCO category is a region to be ignored,
a prediction of a category that no type maps to is dropped (see metrics.detection). Every condition
is scored on the same images; differences resample images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from trace_jax.metrics.detection import Detection, Difference, Evaluator, Truth
from trace_jax.tasks.base import Comparison, Scope
from trace_jax.types import LEVELS, PRISTINE, Result, SceneExample

NAME = "detection"
ALL = "all"
PLAIN = ("map_50", "map_75", "ar", "misclassified_share")


def truths(scenes: Sequence[SceneExample]) -> list[Truth]:
    """The boxes of scenes; an image's id is its path."""
    return [
        Truth(scene.path, box.box, box.coco or None, crowd=box.crowd)
        for scene in scenes
        for box in scene.boxes
    ]


class Scored:
    """All conditions of one evaluation, matched once.

    Args:
      scenes: the images, of any severities.
      predictions: condition -> its detections; image ids are paths.
      categories: mapped COCO category names.
      max_dets: detections an image that count.
    """

    def __init__(
        self,
        scenes: Sequence[SceneExample],
        predictions: Mapping[str, Sequence[Detection]],
        categories: Sequence[str],
        *,
        max_dets: int = 100,
    ) -> None:
        images = [scene.path for scene in scenes]
        truth = truths(scenes)
        self.evaluators = {
            name: Evaluator(images, categories, truth, found, max_dets=max_dets)
            for name, found in predictions.items()
        }
        self.subsets = _subsets(scenes)

    def rows(self, scope: Scope) -> list[Result]:
        """Rows by condition, severity and metric; what no truth decides has no row.

        Beside mAP there is `map_gain`, its difference to "base", for every other condition.
        """
        found = []
        for name, evaluator in self.evaluators.items():
            for severity, images in self.subsets.items():
                scores = evaluator.scores(images)
                value, low, high = evaluator.interval(
                    images, resamples=scope.resamples, seed=scope.seed
                )
                values: dict[str, tuple[float, float | None, float | None]] = {
                    "map": (value, low, high)
                }
                values |= {metric: (getattr(scores, metric), None, None) for metric in PLAIN}
                values |= {
                    f"map_{area}": (number, None, None) for area, number in scores.by_area.items()
                }
                if name != "base" and "base" in self.evaluators:
                    values["map_gain"] = self._against_base(name, severity, scope).gain
                found += [
                    _row(scope, name, severity, metric, *numbers, n=len(images))
                    for metric, numbers in values.items()
                    if not math.isnan(numbers[0])
                ]
        return found

    def by_category(self, severity: str = ALL) -> dict[str, dict[str, float]]:
        """Condition -> category -> average precision."""
        images = self.subsets.get(severity)
        return {
            name: {str(k): v for k, v in evaluator.scores(images).by_category.items()}
            for name, evaluator in self.evaluators.items()
        }

    def comparisons(self, scope: Scope) -> list[Comparison]:
        """mAP of every condition against base, by severity, absolute and relative."""
        found = []
        for name in self.evaluators:
            if "base" not in self.evaluators or name == "base":
                continue
            for severity, images in self.subsets.items():
                one = self._against_base(name, severity, scope)
                if math.isnan(one.gain[0]):
                    continue
                relative = [_known(value) for value in one.relative]
                found.append(
                    Comparison(
                        task=NAME,
                        condition=name,
                        against="base",
                        severity=severity,
                        metric="map",
                        difference=float(one.gain[0]),
                        low=_known(one.gain[1]),
                        high=_known(one.gain[2]),
                        relative=relative[0],
                        relative_low=relative[1],
                        relative_high=relative[2],
                        p=float(one.p),
                        better=bool(one.gain[0] > 0),
                        n=len(images),
                        identities=len(images),
                    )
                )
        return found

    def _against_base(self, name: str, severity: str, scope: Scope) -> Difference:
        return self.evaluators[name].difference(
            self.evaluators["base"],
            self.subsets[severity],
            resamples=scope.resamples,
            seed=scope.seed,
        )


def _subsets(scenes: Sequence[SceneExample]) -> dict[str, list[str]]:
    found = {
        severity: [scene.path for scene in scenes if scene.severity == severity]
        for severity in (*LEVELS, PRISTINE)
    }
    burnt = [path for level in LEVELS for path in found[level]]
    return {
        severity: images
        for severity, images in (
            *((level, found[level]) for level in LEVELS),
            (ALL, burnt),
            (PRISTINE, found[PRISTINE]),
        )
        if images
    }


def _row(
    scope: Scope,
    condition: str,
    severity: str,
    metric: str,
    value: float,
    low: float | None,
    high: float | None,
    *,
    n: int,
) -> Result:
    return Result(
        NAME, scope.dataset, scope.split, "", scope.host, scope.tap, condition, severity, metric,
        float(value), _known(low), _known(high), n,
    )  # fmt: skip


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)
