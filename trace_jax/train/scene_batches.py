"""Batches of scenes with boxes for detector training, decoded and varied as they are asked for.

A batch is a pure function of (seed, step), so a resumed run sees what an unbroken one sees.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from trace_jax import images
from trace_jax.data.manifest import Dataset
from trace_jax.errors import UserError
from trace_jax.train.augment_boxes import BoxView, BoxViewConfig, scaled, side_of_step, view
from trace_jax.types import SceneExample


@dataclasses.dataclass(frozen=True)
class Labelled:
    """A scene and those of its boxes that are taught.

    Attributes:
      scene: the row.
      boxes: [K, 4], x, y, width, height in pixels.
      labels: [K], class slots.
    """

    scene: SceneExample
    boxes: np.ndarray
    labels: np.ndarray


def label(scenes: Sequence[SceneExample], slots: Mapping[str, int]) -> list[Labelled]:
    """Keeps the boxes whose category has a class slot; crowds are regions, not objects."""
    found = []
    for scene in scenes:
        kept = [box for box in scene.boxes if box.coco in slots and not box.crowd]
        boxes = np.array([box.box for box in kept], np.float64).reshape(-1, 4)
        labels = np.array([slots[box.coco] for box in kept], np.int32)
        found.append(Labelled(scene, boxes, labels))
    return found


class SceneBatches:
    """step -> batch, see `train.detection.make_loss` for its fields.

    An epoch is one permutation of the scenes; what does not fill a batch is dropped.

    Args:
      dataset: where the pictures lie.
      scenes: to train on.
      size: B.
      views: random views; see BoxViewConfig.
      mean, std: of the host's normalisation, by channel in 0-1.
      seed: of order and views.
      workers: decoding threads.

    Attributes:
      objects: T, the most boxes that a scene has.
      epoch: steps in one pass.

    Raises:
      UserError: fewer scenes than a batch holds, or no box to be taught.
    """

    def __init__(
        self,
        dataset: Dataset,
        scenes: Sequence[Labelled],
        *,
        size: int,
        views: BoxViewConfig,
        mean: Sequence[float],
        std: Sequence[float],
        seed: int,
        workers: int = 2,
    ) -> None:
        if len(scenes) < size:
            raise UserError(
                f"{dataset.folder}: {len(scenes)} scenes are left for training, a batch needs "
                f"{size} (config.batch.size)."
            )
        self.objects = max(len(one.labels) for one in scenes)
        if not self.objects:
            raise UserError(f"{dataset.folder}: no scene has a box of a category with a class.")
        self.epoch = len(scenes) // size
        self._dataset, self._scenes, self._size = dataset, tuple(scenes), size
        self._views, self._seed = views, seed
        self._mean, self._std = (np.asarray(values, np.float32) for values in (mean, std))
        self._pool = ThreadPoolExecutor(max(workers, 1))
        self._permutation = functools.lru_cache(maxsize=2)(self._permute)

    def __call__(self, step: int) -> dict[str, np.ndarray]:
        epoch, place = divmod(step, self.epoch)
        rows = self._permutation(epoch)[place * self._size : (place + 1) * self._size]
        made = list(self._pool.map(self._view, rows, [step] * len(rows), range(len(rows))))
        side = side_of_step(self._views, self._seed, step)
        pixels = scaled(np.stack([one.pixels for one in made]), side)
        batch: dict[str, np.ndarray] = {
            "pixel_values": (pixels / np.float32(255) - self._mean) / self._std,
            "boxes": np.zeros((len(rows), self.objects, 4), np.float32),
            "labels": np.zeros((len(rows), self.objects), np.int32),
            "mask": np.zeros((len(rows), self.objects), bool),
        }
        for place, (row, one) in enumerate(zip(rows, made, strict=True)):
            count = len(one.kept)
            batch["boxes"][place, :count] = one.boxes
            batch["labels"][place, :count] = self._scenes[row].labels[one.kept]
            batch["mask"][place, :count] = True
        return batch

    def _permute(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self._seed, epoch, 3)).permutation(len(self._scenes))

    def _view(self, row: int, step: int, index: int) -> BoxView:
        one = self._scenes[row]
        path = self._dataset.path(one.scene)
        try:
            image = images.open_rgb(path)
        except images.BadImageError as error:
            raise UserError(f"{path}: {error}. See bin/data check.") from error
        return view(image, one.boxes, self._views, seed=self._seed, step=step, index=index)
