"""The training loop, for any loss: FRM, ablations, host pretraining.

A run is decided by (loss, first parameters, batches, configuration). It can be killed at any
moment and started again with the same call: it goes on from the newest whole checkpoint and ends
with the same parameters and the same log as a run that was never broken.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from trace_jax.errors import FaultsError, UserError
from trace_jax.progress import Progress
from trace_jax.train import checkpoint, ema, optimizer, sharding
from trace_jax.train.batches import Batch, BatchSource, Prefetcher
from trace_jax.train.metrics_log import MetricsLog
from trace_jax.train.optimizer import OptimizerConfig
from trace_jax.train.signals import Signals
from trace_jax.train.state import TrainState, create
from trace_jax.train.step import LossFn, find_faults, first_bad_leaf, make_step


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """How to train, whatever is trained.

    Attributes:
      steps: length of the run; the learning-rate schedule ends there. 0 is for callers that work
        it out from the data; `fit` refuses it.
      optim: see OptimizerConfig.
      seed: root of the step's random keys.
      log_every: a "train" row each so many steps, means over them.
      eval_every: steps between evaluations, 0 for never; the last step is evaluated too.
      eval_first: evaluate before the first step as well.
      save_every: steps between checkpoints besides those that follow an evaluation; 0 for none.
      keep: newest checkpoints kept (2: the last and its fallback); the best is kept beside them.
      best_metric: name in `evaluate`'s result that picks the best checkpoint.
      best_mode: "max" or "min".
      patience: evaluations without improvement before stopping early; 0 never stops early.
      model_axis: size of the mesh's model axis, used where no mesh is given.
      min_shard_size: leaves smaller than this are replicated (see train.sharding).
      prefetch: batches made ahead in a thread.
    """

    steps: int = 0
    optim: OptimizerConfig = OptimizerConfig()
    seed: int = 0
    log_every: int = 10
    eval_every: int = 0
    eval_first: bool = False
    save_every: int = 200
    keep: int = 2
    best_metric: str = "r_at_1"
    best_mode: str = "max"
    patience: int = 0
    model_axis: int = 1
    min_shard_size: int = 2**16
    prefetch: int = 2

    def __post_init__(self) -> None:
        faults = []
        if self.steps < 0:
            faults.append(f"steps={self.steps}: not negative")
        if self.log_every < 1 or self.keep < 1:
            faults.append("log_every and keep: at least 1")
        if self.best_mode not in ("max", "min"):
            faults.append(f"best_mode={self.best_mode!r}: 'max' or 'min'")
        if faults:
            raise FaultsError("loop configuration", faults)


@dataclasses.dataclass(frozen=True)
class FitResult:
    """How a run ended.

    Attributes:
      status: "finished", "stopped_early", "paused" (at `stop_at`) or "interrupted" (by a signal).
      step: steps done.
      params: numpy parameters of that step.
      best_step: step with the best `best_metric`, or None.
      best_metrics: what `evaluate` gave there.
      seconds: wall time of the steps done by this call, evaluation and checkpoints included.
      wait_share: share of the stepping time spent waiting for batches.
      steps_per_second: over the stepping time of this call, without its first (compiling) step.
    """

    status: str
    step: int
    params: Any
    best_step: int | None
    best_metrics: Mapping[str, float]
    seconds: float
    wait_share: float
    steps_per_second: float


@dataclasses.dataclass
class _Progress:
    """What the loop itself must remember across a break; JSON in the checkpoint's meta."""

    best_step: int | None = None
    best_metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    evaluations_since_best: int = 0
    stopped_early: bool = False
    evaluated_step: int = -1
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    sums: dict[str, float] = dataclasses.field(default_factory=dict)
    summed: int = 0


def fit(
    loss_fn: LossFn,
    params: Any,
    batches: BatchSource,
    config: LoopConfig,
    *,
    workdir: str | Path,
    mesh: Mesh | None = None,
    constants: Mapping[str, Any] | None = None,
    transform: optax.GradientTransformation | None = None,
    evaluate: Callable[[Any, int], Mapping[str, float]] | None = None,
    on_best: Callable[[Any, int, Mapping[str, float]], None] | None = None,
    on_save: Callable[[Any, int, Mapping[str, float]], None] | None = None,
    stamp: Mapping[str, Any] | None = None,
    stop_at: int | None = None,
    label: str = "train",
) -> FitResult:
    """Trains to `config.steps`, going on from `workdir` if an earlier run left off there.

    Args:
      loss_fn: (params, batch, rng) -> (loss, terms); scalars, means over the global batch. Cast to
        bfloat16 inside it for bf16 compute: the parameters here are the float32 masters.
      params: first parameters; not read once a checkpoint exists. Not donated.
      batches: step -> dict of arrays, or start step -> iterator of them (see train.batches).
        Every process passes the same global batch; each device receives its rows only.
      workdir: gets checkpoints/, metrics.jsonl, tensorboard/.
      mesh: from train.sharding.make_mesh; by default over all devices.
      constants: pytrees that join every batch, placed once on every device.
      transform: the optimizer, by default `optimizer.make(config.optim, steps)`. The rate logged
        is `config.optim`'s either way.
      evaluate: (device params, step) -> plain floats; called on every process. Where the optimizer
        keeps an average of the parameters (train.ema), that is evaluated too: its metrics end in
        "_ema", and the better of the two decides what is best.
      on_best: (numpy params, step, metrics); first process only, when `best_metric` improved. The
        parameters are the better ones, the average's if it was better. It may be called again for
        the same step after a break, with equal arguments.
      on_save: like on_best, at each checkpoint, with the newest metrics.
      stamp: JSON-able description of the run; a checkpoint with another stamp is refused.
      stop_at: pause after this step with a checkpoint, as a signal would.
      label: for the progress line.

    Raises:
      UserError: a value is not finite (named), the stamp differs, all checkpoints are damaged.
    """
    if config.steps < 1:
        raise UserError("loop.steps: at least 1.")
    mesh = mesh or sharding.make_mesh(config.model_axis)
    with jax.set_mesh(mesh):
        run = _Run(
            loss_fn, params, config, Path(workdir), mesh, dict(stamp or {}), label, transform
        )
        whole = jax.tree.map(lambda _: sharding.replicated(mesh), dict(constants or {}))
        run.constants = sharding.place(dict(constants or {}), whole)
        run.evaluate, run.on_best, run.on_save = evaluate, on_best, on_save
        return run.go(batches, min(stop_at or config.steps, config.steps))


class _Run:
    """One call of `fit`."""

    constants: dict[str, Any]
    evaluate: Callable[[Any, int], Mapping[str, float]] | None
    on_best: Callable[[Any, int, Mapping[str, float]], None] | None
    on_save: Callable[[Any, int, Mapping[str, float]], None] | None

    def __init__(
        self,
        loss_fn: LossFn,
        params: Any,
        config: LoopConfig,
        workdir: Path,
        mesh: Mesh,
        stamp: dict[str, Any],
        label: str,
        transform: optax.GradientTransformation | None,
    ) -> None:
        self.config, self.mesh, self.stamp, self.label = config, mesh, stamp, label
        self.loss_fn = loss_fn
        self.root = workdir / "checkpoints"
        self.first = jax.process_index() == 0
        self.tx = transform or optimizer.make(config.optim, config.steps)
        self.progress = _Progress()
        shapes = jax.eval_shape(lambda p: create(p, self.tx), params)
        self.shardings = sharding.tree_shardings(shapes, mesh, config.min_shard_size)
        found = checkpoint.newest(self.root)
        if found is None:
            make = jax.jit(lambda p: create(p, self.tx), out_shardings=self.shardings)
            whole = jax.tree.map(lambda _: sharding.replicated(mesh), params)
            self.state: TrainState = make(sharding.place(params, whole))
            self.step = 0
        else:
            checkpoint.require_stamp(found, self.stamp)
            like = jax.tree.map(
                lambda s, p: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=p),
                shapes,
                self.shardings,
            )
            self.state = checkpoint.restore(found, like)
            self.step = found.step
            self.progress = _Progress(**found.meta["progress"])
            checkpoint.drop_after(self.root, found.step)
            self._say(f"going on from {found.folder}")
        # A row of step 0 (eval_first) belongs to no checkpoint: a fresh start keeps none.
        self.log = MetricsLog(workdir, self.step if found else -1, self.first)
        self.train_step: Callable | None = None
        self.pending: tuple[int, Any, Batch] | None = None
        self.stepping = self.waiting = self.compiling = 0.0
        self.window = (0.0, 0.0, 0)

    def go(self, batches: BatchSource, stop: int) -> FitResult:
        started, first_step = time.perf_counter(), self.step
        try:
            signal_name = self._steps(batches, stop)
            if self.pending is not None:
                self._fetch()
            if self.step > first_step and not (self.root / f"{self.step:08d}").exists():
                self._save()
        finally:
            self.log.close()
        if signal_name:
            self._say(f"{signal_name} at step {self.step}: saved; the same command goes on.")
        counted = max(self.step - first_step - 1, 0)
        return FitResult(
            self._status(signal_name),
            self.step,
            sharding.to_host(self.state.params, self.mesh),
            self.progress.best_step,
            self.progress.best_metrics,
            time.perf_counter() - started,
            self.waiting / self.stepping if self.stepping else 0.0,
            counted / (self.stepping - self.compiling) if counted else 0.0,
        )

    def _steps(self, batches: BatchSource, stop: int) -> str:
        """Steps up to `stop`, an early stop or a signal, whose name is returned ("" for none)."""
        if self.step >= stop or self.progress.stopped_early:
            return ""
        source = Prefetcher(batches, self.step, stop, self.config.prefetch)
        try:
            with (
                Signals() as signals,
                Progress(self.config.steps, self.label, "steps", done=self.step) as bar,
            ):
                if self.evaluate and self.config.eval_first and self.progress.evaluated_step < 0:
                    self._evaluate()
                while self.step < stop and not self.progress.stopped_early:
                    self._advance(source)
                    bar.advance(note=self._note())
                    if self._agree(signals):
                        return signals.name or "signal to another process"
        finally:
            source.close()
        return ""

    def _status(self, signal_name: str) -> str:
        if self.progress.stopped_early:
            return "stopped_early"
        if self.step >= self.config.steps:
            return "finished"
        return "interrupted" if signal_name else "paused"

    def _advance(self, source: Prefetcher) -> None:
        """One step: dispatch it, and read the figures of the step before meanwhile."""
        started = time.perf_counter()
        batch, waited = source.next()
        shardings = sharding.batch_shardings(batch, self.mesh)
        placed = sharding.place(dict(batch), shardings)
        compiling = self.train_step is None
        if self.train_step is None:
            self.train_step = make_step(
                self.loss_fn,
                self.tx,
                optimizer.schedule(self.config.optim, self.config.steps),
                clip_norm=self.config.optim.clip_norm,
                seed=self.config.seed,
                mesh=self.mesh,
                state_shardings=self.shardings,
                batch_shardings=shardings,
            )
        self.state, figures = self.train_step(self.state, placed, self.constants)
        self.step += 1
        if self.pending is not None:
            self._fetch()
        self.pending = (self.step, figures, batch)
        due = self._due()
        if due or compiling:
            self._fetch()
        took = time.perf_counter() - started
        self.stepping += took
        self.waiting += waited
        self.compiling += took if compiling else 0.0
        if "evaluate" in due:
            self._evaluate()
        if due:
            self._save()

    def _due(self) -> set[str]:
        c, last = self.config, self.step >= self.config.steps
        due = set()
        if self.evaluate and c.eval_every and (self.step % c.eval_every == 0 or last):
            due.add("evaluate")
        if last or (c.save_every and self.step % c.save_every == 0):
            due.add("save")
        return due

    def _fetch(self) -> None:
        """Reads the figures of the pending step, checks them, and logs a row when one is due."""
        assert self.pending is not None
        step, device_figures, batch = self.pending
        self.pending = None
        figures = jax.device_get(device_figures)
        faults = find_faults(figures, self.state.params, batch)
        if faults:
            raise FaultsError(
                f"step {step}: values are not finite",
                faults,
                f"The newest checkpoint in {self.root} is from before it. Lower the learning rate "
                "(--config.optim.lr) or mend the inputs, then run again.",
            )
        p = self.progress
        for name, value in figures["terms"].items():
            p.sums[name] = p.sums.get(name, 0.0) + float(value)
        p.summed += 1
        if step % self.config.log_every == 0 or step == self.config.steps:
            means = {name: total / p.summed for name, total in p.sums.items()}
            means["lr"] = float(figures["terms"]["lr"])
            stepping, waiting, _ = self.window
            span = self.stepping - stepping
            if span > 0:
                means["time/steps_per_second"] = (step - self.window[2]) / span
                means["time/wait_share"] = (self.waiting - waiting) / span
            self.window = (self.stepping, self.waiting, step)
            self.log.write(step, "train", means)
            p.metrics["loss"] = means["loss"]
            p.sums, p.summed = {}, 0

    def _evaluate(self) -> None:
        assert self.evaluate is not None
        p, c = self.progress, self.config
        started = time.perf_counter()
        average = ema.average_of(self.state.opt_state)
        values = {k: float(v) for k, v in self.evaluate(self.state.params, self.step).items()}
        if average is not None:
            found = self.evaluate(average, self.step)
            values |= {f"{k}_ema": float(v) for k, v in found.items()}
        bad = [f"{k} is {v}" for k, v in values.items() if not math.isfinite(v)]
        if bad:
            raise FaultsError(f"evaluation at step {self.step}: values are not finite", bad)
        if c.best_metric not in values:
            raise UserError(
                f"loop.best_metric={c.best_metric!r} is not among the evaluated: {sorted(values)}."
            )
        self.log.write(self.step, "val", {**values, "time/seconds": time.perf_counter() - started})
        p.metrics.update(values)
        p.evaluated_step = self.step
        name, value = self._better(values)
        if p.best_step is None or self._gain(value, self._better(p.best_metrics)[1]) > 0:
            p.best_step, p.best_metrics, p.evaluations_since_best = self.step, values, 0
            chosen = self.state.params if name == c.best_metric else average
            self._call(self.on_best, values, chosen)
        else:
            p.evaluations_since_best += 1
            if c.patience and p.evaluations_since_best >= c.patience:
                p.stopped_early = True
                self._say(
                    f"stopping early at step {self.step}: {c.best_metric} has not improved since "
                    f"step {p.best_step} ({self._better(p.best_metrics)[1]:.4f})."
                )

    def _better(self, values: Mapping[str, float]) -> tuple[str, float]:
        """Name and value of the best metric, of the parameters or of their average."""
        name = self.config.best_metric
        other = f"{name}_ema"
        if other in values and self._gain(values[other], values[name]) > 0:
            name = other
        return name, values[name]

    def _gain(self, value: float, before: float) -> float:
        return value - before if self.config.best_mode == "max" else before - value

    def _save(self) -> None:
        bad = first_bad_leaf(self.state)
        if bad is not None:
            raise UserError(
                f"step {self.step}: {bad} is not finite after the update. Lower the learning rate "
                f"(--config.optim.lr) and run again; {self.root} holds the steps before."
            )
        self.log.sync()
        meta = {
            "step": self.step,
            "stamp": self.stamp,
            "progress": dataclasses.asdict(self.progress),
        }
        self._call(self.on_save, self.progress.metrics, self.state.params)
        checkpoint.save(self.root, self.state, meta)
        checkpoint.prune(self.root, self.config.keep, self.progress.best_step)

    def _call(self, callback: Callable | None, values: Mapping[str, float], params: Any) -> None:
        if callback is not None:
            params = sharding.to_host(params, self.mesh)
            if self.first:
                callback(params, self.step, dict(values))

    def _agree(self, signals: Signals) -> bool:
        """Whether to stop; processes must decide alike, so several ask each other when logging."""
        if jax.process_count() == 1:
            return signals.name != ""
        if self.step % self.config.log_every:
            return False
        return bool(multihost_utils.process_allgather(np.array(signals.name != "")).any())

    def _note(self) -> str:
        return ", ".join(
            f"{name} {value:.4g}" for name, value in list(self.progress.metrics.items())[:4]
        )

    def _say(self, text: str) -> None:
        if self.first:
            print(f"{self.label}: {text}", file=sys.stderr, flush=True)
