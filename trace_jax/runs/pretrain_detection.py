"""Trains a detector, from scratch or from given weights: `bin/train` for kind "detector"."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from trace_jax import hosts, images, taxonomy
from trace_jax.data import manifest
from trace_jax.errors import FaultsError, UserError
from trace_jax.hosts.rf_detr import RfDetr
from trace_jax.metrics.detection import Detection, Evaluator
from trace_jax.runs.pretrain import PretrainResult, positions
from trace_jax.tasks.detection import truths
from trace_jax.train import config as strict
from trace_jax.train import detection, ema, layer_rates, loop, optimizer, sharding
from trace_jax.train.augment_boxes import BoxViewConfig
from trace_jax.train.scene_batches import SceneBatches, label
from trace_jax.types import SEVERITIES, SceneExample

COMPUTE = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """What to train and to validate on.

    Attributes:
      folder: of scenes; its split "train" is trained on.
      val: folder whose split "val" is validated on; "" takes `folder`.
      severities: of both.
      val_batch: images detected at once.
      max_dets: detections an image that count in mAP; RF-DETR's own code counts 500.
      workers: decoding threads.
    """

    folder: str
    val: str = ""
    severities: tuple[str, ...] = ("pristine",)
    val_batch: int = 16
    max_dets: int = 500
    workers: int = 2

    def __post_init__(self) -> None:
        wrong = [name for name in self.severities if name not in SEVERITIES]
        if wrong or not self.severities:
            raise UserError(
                f"config.data.severities={list(self.severities)}: of {', '.join(SEVERITIES)}."
            )


@dataclasses.dataclass(frozen=True)
class _Page:
    """A config page, read strictly."""

    data: DataConfig
    views: BoxViewConfig
    loss: detection.DetectionConfig
    rates: layer_rates.RatesConfig
    ema: ema.EmaConfig
    optim: optimizer.OptimizerConfig

    @classmethod
    def read(cls, config: ConfigDict) -> _Page:
        sections: dict[str, Any] = {
            field.name: strict.build(kind, config[field.name], f"config.{field.name}")
            for field, kind in zip(
                dataclasses.fields(cls),
                (
                    DataConfig, BoxViewConfig, detection.DetectionConfig, layer_rates.RatesConfig,
                    ema.EmaConfig, optimizer.OptimizerConfig,
                ),
                strict=True,
            )
        }  # fmt: skip
        if config.host.compute not in COMPUTE:
            raise UserError(f"config.host.compute={config.host.compute!r}: {' or '.join(COMPUTE)}.")
        if (config.epochs > 0) == (config.loop.steps > 0):
            raise UserError("give either epochs or loop.steps, and 0 for the other.")
        return cls(**sections)


def run(
    config: ConfigDict,
    *,
    load_host: Callable[..., Any],
    save_host: Callable[..., Any],
    workdir: str | Path,
    stop_at: int | None = None,
) -> PretrainResult:
    """Trains the detector that `config.host` describes; the best one lies in `workdir/host`.

    Best of the parameters and of their moving average, by validation mAP.

    Args:
      config: see configs/rfdetr_finetune.py for every field.
      load_host: `converters.load_host`; reads the weights to start from and the written host.
      save_host: `converters.save_host(host, folder)`.
      workdir: gets checkpoints/, metrics.jsonl, tensorboard/ and host/.
      stop_at: pause after this step with a checkpoint; the same call without it goes on.

    Raises:
      UserError: the data folder is missing or unfit, or the workdir belongs to another run.
    """
    workdir = Path(workdir)
    page = _Page.read(config)
    dataset = manifest.read(page.data.folder)
    held = manifest.read(page.data.val) if page.data.val else dataset
    host = _start(config, load_host)
    for side in {page.views.side, *page.views.sides}:
        host.model.require_size(side)
    slots = class_slots(host)
    batches = SceneBatches(
        dataset,
        label(_chosen(dataset, "train", page.data), slots),
        size=config.batch.size,
        views=page.views,
        mean=host.spec.preprocessing["image_mean"],
        std=host.spec.preprocessing["image_std"],
        seed=config.seed,
        workers=page.data.workers,
    )
    loop_config = _loop_config(config, page, batches.epoch)
    mesh = sharding.make_mesh(loop_config.model_axis)
    probe = Probe(host, held, _chosen(held, "val", page.data), page.data, mesh)
    print(
        f"{config.name}: {batches.epoch * config.batch.size} scenes an epoch, at most "
        f"{batches.objects} objects in one, {len(probe.scenes)} held out; "
        f"{host.spec.num_params:,} parameters, {host.model.detector.groups} groups of queries"
    )
    folder = workdir / "host"
    fitted = loop.fit(
        _loss(host, config.host.compute, page.loss),
        host.params,
        batches,
        loop_config,
        workdir=workdir,
        mesh=mesh,
        transform=_transform(host, page, loop_config.steps),
        evaluate=lambda params, step: probe.measure(params),
        on_best=lambda params, step, metrics: save_host(host.with_params(params), folder),
        stamp={"config": config.to_dict(), "dataset": dataset.hash, "val": held.hash},
        stop_at=stop_at,
        label=config.name,
    )
    metrics = fitted.best_metrics
    done = fitted.status in ("finished", "stopped_early")
    if done:
        final = load_host(config.host.name, weights=str(folder))
        metrics = probe.measure(final.params)
        figures = ", ".join(f"{name} {value:.3f}" for name, value in metrics.items())
        print(f"{config.name}: {folder} holds step {fitted.best_step}, read back: {figures}")
    return PretrainResult(
        workdir,
        folder if done else None,
        fitted.status,
        fitted.step,
        metrics,
        fitted.steps_per_second,
    )


def class_slots(host: RfDetr) -> dict[str, int]:
    """COCO category name -> class slot: its official id, as in the published weights.

    Raises:
      UserError: the host has too few classes for that.
    """
    known = taxonomy.load()
    slots = {name: known.coco_ids[name] for name in known.coco_categories}
    most = max(slots.values())
    if host.model.detector.classes <= most:
        raise UserError(
            f"host {host.spec.name} has {host.model.detector.classes} classes; labels are COCO's "
            f"ids, up to {most}. Give num_labels=91."
        )
    return slots


class Probe:
    """Validation: mAP of scenes never trained on, scored as COCO does.

    Args:
      host: whose functions detect; its parameters are not read.
      dataset: where the pictures lie.
      scenes: to detect on.
      config: see DataConfig.
      mesh: of the training run.

    Raises:
      UserError: none of the scenes has a box that counts.
    """

    def __init__(
        self,
        host: RfDetr,
        dataset: manifest.Dataset,
        scenes: Sequence[SceneExample],
        config: DataConfig,
        mesh: Mesh,
    ) -> None:
        self.scenes = tuple(scenes)
        self._host, self._dataset, self._config = host, dataset, config
        self._truths = truths(scenes)
        if not any(t.category and not t.crowd for t in self._truths):
            raise UserError(
                f"{dataset.folder}: split 'val' has no box of a COCO category to validate on. "
                "Name another folder with --config.data.val."
            )
        self._categories = taxonomy.load().coco_categories
        self._names = {slot: name for name, slot in class_slots(host).items()}
        whole = sharding.replicated(mesh)
        self._detect = jax.jit(host.apply_forward, out_shardings=whole)

    def measure(self, params: Any) -> dict[str, float]:
        """{"map", "map_50", "map_75"} of these parameters, 0-1."""
        found: list[Detection] = []
        size = self._config.val_batch
        with ThreadPoolExecutor(max(self._config.workers, 1)) as pool:
            for start in range(0, len(self.scenes), size):
                part = self.scenes[start : start + size]
                # One compiled shape: the last part is filled up with copies.
                filled = [part[k % len(part)] for k in range(size)]
                pictures = list(pool.map(self._open, filled))
                given = jax.device_get(self._detect(params, self._host.preprocess(pictures)))
                for k, scene in enumerate(part):
                    found += self._detections(
                        scene.path, given.boxes[k], given.scores[k], given.labels[k]
                    )
        evaluator = Evaluator(
            [scene.path for scene in self.scenes],
            self._categories,
            self._truths,
            found,
            max_dets=self._config.max_dets,
        )
        scores = evaluator.scores()
        return {name: getattr(scores, name) for name in ("map", "map_50", "map_75")}

    def _open(self, scene: SceneExample) -> Any:
        path = self._dataset.path(scene)
        try:
            return images.open_rgb(path)
        except images.BadImageError as error:
            raise UserError(f"{path}: {error}. See bin/data check.") from error

    def _detections(
        self, image: str, boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray
    ) -> list[Detection]:
        return [
            Detection(image, (x0, y0, x1 - x0, y1 - y0), self._names[slot], score)
            for (x0, y0, x1, y1), score, slot in zip(
                boxes.tolist(), scores.tolist(), labels.tolist(), strict=True
            )
            if slot in self._names
        ]


def _chosen(dataset: manifest.Dataset, split: str, config: DataConfig) -> list[SceneExample]:
    return [s for s in dataset.scenes if s.split == split and s.severity in config.severities]


def _start(config: ConfigDict, load_host: Callable[..., Any]) -> RfDetr:
    """The host with its first parameters: those of `config.host.weights`, or random ones.

    Random ones start with sines and cosines for positions; see `pretrain.positions`.
    """
    given, description = config.host.weights, copy.deepcopy(config.host.config.to_dict())
    if bool(given) == bool(description):
        raise UserError("give either config.host.weights or config.host.config.")
    if given:
        host = load_host(config.host.name, weights=given)
    else:
        host = hosts.build(config.host.name, description, jax.random.key(config.seed))
    if not isinstance(host, RfDetr):
        raise UserError(f"config.host.name={config.host.name!r}: is no detector.")
    if given:
        return host
    params = dict(host.params)
    backbone = dict(params["backbone"])
    table = np.array(backbone["positions"]["table"])  # the first row belongs to the class token
    table[1:] = positions(len(table) - 1, table.shape[1])
    backbone["positions"] = {"table": jnp.asarray(table)}
    params["backbone"] = backbone
    return host.with_params(params)


def _loss(host: RfDetr, compute: str, config: detection.DetectionConfig) -> loop.LossFn:
    def predict(params: Any, pixels: jax.Array) -> dict[str, jax.Array]:
        params = jax.tree.map(lambda p: p.astype(compute), params)
        return host.train_outputs(params, {"pixel_values": pixels})

    return detection.make_loss(predict, host.model.detector.groups, config)


def _transform(host: RfDetr, page: _Page, steps: int) -> optax.GradientTransformation:
    """AdamW with a rate and a decay for each parameter, under a moving average."""
    shares = layer_rates.shares(host.params, host.model.stages[-1], page.rates)
    decaying = layer_rates.decaying(host.params)
    adam = optimizer.make(page.optim, steps, decaying=decaying)
    return ema.averaged(optax.chain(adam, layer_rates.scale_by(shares)), page.ema)


def _loop_config(config: ConfigDict, page: _Page, epoch: int) -> loop.LoopConfig:
    found = strict.build(
        loop.LoopConfig, config.loop, "config.loop", optim=page.optim, seed=config.seed
    )
    if config.epochs:
        every = found.eval_every or epoch
        found = dataclasses.replace(found, steps=config.epochs * epoch, eval_every=every)
    if not found.eval_every:
        raise FaultsError(
            "config.loop", ["eval_every is 0: the host written is the one that validated best"]
        )
    return found
