"""Training an FRM on features: the library body of `bin/train` for kind "frm"."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from trace_jax import frm
from trace_jax.data import loader, manifest
from trace_jax.data.feature_cache import FeatureCache, default_folder
from trace_jax.errors import UserError
from trace_jax.frm import FRMConfig, LossConfig
from trace_jax.frm import store as frm_store
from trace_jax.frm.model import abstract_params
from trace_jax.runs import online
from trace_jax.runs.cache import EMBEDDED_DATA
from trace_jax.runs.validation import Validation
from trace_jax.train import checkpoint, sharding
from trace_jax.train import config as strict
from trace_jax.train.loop import FitResult, LoopConfig, fit
from trace_jax.train.objectives import ContrastConfig, frm_loss
from trace_jax.train.optimizer import OptimizerConfig
from trace_jax.types import LEVELS

DEFAULT_ROOT = Path("runs/train")
CONDITIONS = ("frm", "frm_plus")


@dataclasses.dataclass(frozen=True)
class HostConfig:
    """Whose features.

    Attributes:
      name: registered host name.
      tap: tap name.
      weights: folder or hub id, "" for the host's own; read for online features only.
    """

    name: str
    tap: str
    weights: str = ""


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which pairs, in what mixture.

    Attributes:
      folder: data folder, "" for the embedded nano TRACE.
      cache: feature cache, "" for `runs/cache/<host>/<tap>/<data name>`.
      features: "cached", or "online": pristine features encoded once, degraded images every time.
      levels: severities trained on; fewer than all tests extrapolation.
      draws: damage draws of an identity trained on, () for all.
      identities: only the first so many training identities, 0 for all.
      batch_size: pairs a step, over all devices.
      level_balanced: draw the levels evenly instead of in their proportion (not in the paper).
      pristine_fraction: share of pristine -> pristine pairs (not in the paper).
      val_draws: damage draws validated on, () for all.
      val_batch_size: rows a validation batch.
    """

    folder: str = ""
    cache: str = ""
    features: str = "cached"
    levels: tuple[str, ...] = LEVELS
    draws: tuple[int, ...] = ()
    identities: int = 0
    batch_size: int = 64
    level_balanced: bool = False
    pristine_fraction: float = 0.0
    val_draws: tuple[int, ...] = (0,)
    val_batch_size: int = 64

    def __post_init__(self) -> None:
        if self.features not in ("cached", "online"):
            raise UserError(f"data.features={self.features!r}: choose 'cached' or 'online'.")


@dataclasses.dataclass(frozen=True)
class ShapeConfig:
    """FRM's geometry but for `dim`, which the features decide; see frm.FRMConfig."""

    depth: int
    num_heads: int = 8
    mlp_ratio: int = 4
    alpha_init: float = 1e-2
    activation: str = "gelu_pytorch_tanh"
    norm_eps: float = 1e-6
    compute_dtype: str = "float32"


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """One experiment.

    Attributes:
      name: of the run; its default folder is `runs/train/<name>`.
      condition: "frm" for the paper's recipe, "frm_plus" for ours; its name in reports.
      seed: of initial parameters, order of pairs and the step's random keys.
      epochs: passes over the pairs; 0 leaves the length to `loop.steps`.
      evals_per_epoch: validations an epoch, where `epochs` decides the length.
      host, data, frm, loss, contrast: see their classes.
      loop: see LoopConfig; its `optim` is the page's own section, its `seed` is `seed`.
    """

    name: str
    condition: str
    seed: int
    epochs: int
    evals_per_epoch: int
    host: HostConfig
    data: DataConfig
    frm: ShapeConfig
    loss: LossConfig
    contrast: ContrastConfig
    loop: LoopConfig

    def __post_init__(self) -> None:
        if self.condition not in CONDITIONS:
            raise UserError(f"condition={self.condition!r}: one of {', '.join(CONDITIONS)}.")
        if (self.epochs > 0) == (self.loop.steps > 0):
            raise UserError("give either epochs or loop.steps, and 0 for the other.")

    @classmethod
    def read(cls, page: ConfigDict) -> TrainConfig:
        """From a config page; unknown names are errors that list the allowed ones."""
        sections = dict(page.items())
        if sections.pop("kind", "frm") != "frm":
            raise UserError(f"config.kind={page.kind!r}: this is FRM training, kind 'frm'.")
        seed = sections.get("seed", 0)
        optim = strict.build(OptimizerConfig, sections.pop("optim", {}), "config.optim")
        loop = strict.build(
            LoopConfig, sections.pop("loop", {}), "config.loop", optim=optim, seed=seed
        )
        return strict.build(cls, sections, "config", loop=loop)


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What a run left behind.

    Attributes:
      workdir: its folder, with best/ and last/ (FRM folders), checkpoints/, metrics.jsonl.
      best, last: the FRM folders; best is None before the first validation.
      fit: see FitResult.
      online_cost: seconds of an online step over those of a cached one; None for cached features.
    """

    workdir: Path
    best: Path | None
    last: Path
    fit: FitResult
    online_cost: float | None


def run(
    config: ConfigDict | TrainConfig,
    *,
    load_host: Callable[..., Any],
    workdir: str | Path | None = None,
    init_from: str | Path | None = None,
    stop_at: int | None = None,
) -> TrainResult:
    """Trains an FRM, going on where an earlier run in `workdir` stopped.

    Args:
      config: a page of configs/ or what TrainConfig.read made of it.
      load_host: `converters.load_host`; called for online features only.
      workdir: default `runs/train/<name>`.
      init_from: FRM folder, checkpoint or workdir whose parameters to start from; read by a fresh
        run only.
      stop_at: pause after this step; the same call without it goes on.

    Raises:
      UserError: configuration, cache or workdir do not fit; a value is not finite.
    """
    if not isinstance(config, TrainConfig):
        config = TrainConfig.read(config)
    workdir = Path(workdir or DEFAULT_ROOT / config.name)
    mesh = sharding.make_mesh(config.loop.model_axis)
    features = _open(config, load_host)
    cache, data = features.cache, config.data
    pair_set = loader.pairs(
        cache, "train", data.levels, draws=data.draws or None, identities=data.identities or None
    )
    shape = FRMConfig(dim=cache.manifest.shape[-1], **dataclasses.asdict(config.frm))
    loop_config = _loop_config(config, len(pair_set))
    params = _initial(init_from, shape, config.seed)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    if jax.process_index() == 0:
        print(
            f"{config.name}: {config.condition} for {config.host.name}/{config.host.tap}, "
            f"M={shape.depth}, D={shape.dim}, {count:,} parameters; {len(pair_set)} pairs of "
            f"{len(pair_set.identities)} identities from {features.origin}; {loop_config.steps} "
            f"steps of {data.batch_size}; into {workdir}"
        )
    validation = Validation(cache, shape, mesh, data.val_draws, data.val_batch_size)
    description = frm.Description(
        config=shape,
        source=cache.source,
        condition=config.condition,
        dataset={
            "name": cache.manifest.dataset_name,
            "version": cache.manifest.dataset_version,
            "hash": cache.manifest.dataset_hash,
        },
        taxonomy=features.taxonomy,
        training=_portable(config),
    )

    def keep(name: str, params: Any, step: int, metrics: Mapping[str, float]) -> None:
        saved = dataclasses.replace(description, step=step, metrics=dict(metrics))
        frm.save(workdir / name, params, saved)

    recovery = frm_loss(shape, config.loss, config.contrast)
    fitted = fit(
        features.loss(recovery),
        params,
        features.batches(pair_set, data, config.seed),
        loop_config,
        workdir=workdir,
        mesh=mesh,
        constants=features.constants,
        evaluate=validation.measure,
        on_best=functools.partial(keep, "best"),
        on_save=functools.partial(keep, "last"),
        stamp={
            "config": _portable(config),
            "steps": loop_config.steps,
            "dataset": cache.manifest.dataset_hash,
            "weights": cache.manifest.weights_hash,
            "init_from": str(init_from or ""),
        },
        stop_at=stop_at,
        label=config.name,
    )
    cost = features.cost(recovery, params, loop_config, mesh)
    best = workdir / "best" if fitted.best_step is not None else None
    _report(config, fitted, workdir, cost)
    return TrainResult(workdir, best, workdir / "last", fitted, cost)


def _open(config: TrainConfig, load_host: Callable[..., Any]) -> online.FeatureAccess:
    folder = Path(config.data.folder) if config.data.folder else EMBEDDED_DATA
    # A cache named outright needs no pictures beside it.
    alone = config.data.features == "cached" and config.data.cache
    data = None
    if not alone or (folder / manifest.INFO_FILE).exists():
        data = manifest.read(folder)
    taxonomy = data.info.taxonomy if data else ""
    if config.data.features == "online":
        assert data is not None
        host = load_host(config.host.name, config.host.weights or None, tap=config.host.tap)
        return online.open_online(host, data, config.data.batch_size, taxonomy)
    where = Path(config.data.cache) if config.data.cache else None
    if where is None:
        assert data is not None
        where = default_folder(config.host.name, config.host.tap, data.info.name)
        if not where.exists():
            flags = f"--host={config.host.name} --tap={config.host.tap}"
            flags += f" --data={config.data.folder}" if config.data.folder else ""
            flags += f" --weights={config.host.weights}" if config.host.weights else ""
            raise UserError(f"{where}: no feature cache there. Make it: bin/cache_features {flags}")
    cache = FeatureCache.open(where)
    named = (config.host.name, config.host.tap)
    if (cache.source.host, cache.source.tap) != named:
        raise UserError(
            f"{where}: holds features of {cache.source.host}/{cache.source.tap}, the "
            f"configuration says {named[0]}/{named[1]}. Give the cache that fits with "
            "--config.data.cache=DIR."
        )
    return online.CachedAccess(cache, taxonomy)


def _portable(config: TrainConfig) -> dict[str, Any]:
    """The configuration without paths: hashes stand for what lies there, wherever that is."""
    raw = strict.plain(config)
    raw["data"].update(folder="", cache="")
    raw["host"].update(weights="")
    return raw


def _loop_config(config: TrainConfig, pairs: int) -> LoopConfig:
    if not config.epochs:
        return config.loop
    epoch = max(pairs // config.data.batch_size, 1)
    every = config.loop.eval_every or max(epoch // max(config.evals_per_epoch, 1), 1)
    return dataclasses.replace(config.loop, steps=config.epochs * epoch, eval_every=every)


def _initial(init_from: str | Path | None, shape: FRMConfig, seed: int) -> Any:
    if init_from is None:
        return frm.init(jax.random.key(seed), shape)
    folder = Path(init_from)
    if not (folder / frm_store.DESCRIPTION_FILE).exists():
        return checkpoint.load_params(folder, abstract_params(shape))
    loaded = frm.load(folder)
    same = dataclasses.replace(
        loaded.description.config,
        alpha_init=shape.alpha_init,
        compute_dtype=shape.compute_dtype,
    )
    if same != shape:
        raise UserError(f"{folder}: is {loaded.description.config}, the configuration says {shape}")
    return loaded.params


def _report(config: TrainConfig, fitted: FitResult, workdir: Path, cost: float | None) -> None:
    if jax.process_index() != 0:
        return
    line = (
        f"{config.name}: {fitted.status} at step {fitted.step}, {fitted.steps_per_second:.2f} "
        f"steps/s, {fitted.wait_share:.2%} of the time waiting for data"
    )
    if fitted.best_step is not None:
        figures = ", ".join(f"{k} {v:.4f}" for k, v in fitted.best_metrics.items())
        line += f"; best at step {fitted.best_step} ({figures}): {workdir / 'best'}"
    print(line)
    if cost is not None:
        print(f"{config.name}: an online step costs {cost:.2f} cached ones (the paper: about 3)")
