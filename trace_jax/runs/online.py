"""Where FRM training takes its features from: a cache, or a frozen host run on the fly.

Online (paper Appendix D): pristine features are encoded once, degraded images at every step. The
cached way costs disk and saves the host's forward pass; `cost` measures what that is worth.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
import types
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import jax
import numpy as np
from jax.sharding import Mesh

from trace_jax import images
from trace_jax.data import loader
from trace_jax.data.feature_cache import FeatureCache
from trace_jax.data.manifest import Dataset
from trace_jax.errors import FaultsError
from trace_jax.progress import Progress
from trace_jax.runs.encoding import Encoder
from trace_jax.train.batches import BatchSource
from trace_jax.train.loop import LoopConfig, fit
from trace_jax.train.step import LossFn
from trace_jax.types import PRISTINE

_DECODE_THREADS = 3
_TIMED_STEPS = 6


class FeatureAccess(Protocol):
    """What `runs.train` needs of either way.

    Attributes:
      cache: the features that do not change: all of them, or pristine and validation ones.
      origin: where they come from, for people.
      taxonomy: of the data.
      constants: pytrees that the loss needs beside batches.
    """

    cache: FeatureCache
    origin: str
    taxonomy: str
    constants: dict[str, Any]

    def loss(self, recovery: LossFn) -> LossFn:
        """The loss on this way's batches."""

    def batches(self, pair_set: loader.PairSet, data: Any, seed: int) -> BatchSource:
        """Batches of this way, by step."""

    def cost(self, recovery: LossFn, params: Any, config: LoopConfig, mesh: Mesh) -> float | None:
        """Seconds of an online step over those of a cached one, or None."""


class CachedAccess:
    """Every feature from a FeatureCache."""

    def __init__(self, cache: FeatureCache, taxonomy: str) -> None:
        self.cache, self.taxonomy = cache, taxonomy
        self.origin = str(cache.folder)
        self.constants: dict[str, Any] = {}

    def loss(self, recovery: LossFn) -> LossFn:
        return recovery

    def batches(self, pair_set: loader.PairSet, data: Any, seed: int) -> BatchSource:
        source = loader.batches(
            self.cache,
            pair_set,
            batch_size=data.batch_size,
            seed=seed,
            level_balanced=data.level_balanced,
            pristine_fraction=data.pristine_fraction,
        )
        return lambda step: _present(source[step])

    def cost(self, recovery: LossFn, params: Any, config: LoopConfig, mesh: Mesh) -> float | None:
        del recovery, params, config, mesh
        return None


class OnlineAccess:
    """Pristine and validation features in memory, degraded training images encoded in the step."""

    def __init__(self, host: Any, data: Dataset, cache: FeatureCache, taxonomy: str) -> None:
        self._host, self._data = host, data
        self.cache, self.taxonomy = cache, taxonomy
        self.origin = f"{data.folder} (online)"
        self.constants: dict[str, Any] = {"host": host.params}
        self._example: dict[str, Any] = {}

    def loss(self, recovery: LossFn) -> LossFn:
        def loss_fn(
            params: Any, batch: Mapping[str, Any], rng: jax.Array
        ) -> tuple[jax.Array, Mapping[str, jax.Array]]:
            inputs = {
                name.removeprefix("inputs/"): value
                for name, value in batch.items()
                if name.startswith("inputs/")
            }
            features = self._host.apply_tap(jax.lax.stop_gradient(batch["host"]), inputs)
            paired = {"degraded": features.tokens, **batch}
            if features.mask is not None:
                paired["mask"] = features.mask
            return recovery(params, paired, rng)

        return loss_fn

    def batches(self, pair_set: loader.PairSet, data: Any, seed: int) -> BatchSource:
        order = loader.order(
            pair_set, data.batch_size, seed, data.level_balanced, data.pristine_fraction
        )

        def batch(step: int) -> dict[str, Any]:
            degraded, pristine, severity, identity = np.asarray(order[step]).T
            rows = [self.cache.rows[i] for i in degraded]
            inputs = self._host.preprocess(
                [images.open_rgb(self._data.path(example)) for example in rows]
            )
            made = {
                **{f"inputs/{name}": value for name, value in inputs.items()},
                "pristine": self.cache.tokens(pristine, "float32"),
                "severity": severity.astype(np.int32),
                "identity": identity.astype(np.int32),
            }
            mask = self.cache.mask(pristine)
            made = made if mask is None else {**made, "mask": mask}
            self._example = made
            return made

        return batch

    def cost(self, recovery: LossFn, params: Any, config: LoopConfig, mesh: Mesh) -> float | None:
        # A run that had been finished before encoded nothing; several processes share no folder.
        if not self._example or jax.process_count() > 1:
            return None
        batch = self._example
        inputs = {k.removeprefix("inputs/"): v for k, v in batch.items() if k.startswith("inputs/")}
        pictures = len(batch["severity"])

        def encode(step: int) -> dict[str, Any]:
            del step
            degraded = np.asarray(self._host.tap(inputs).tokens, np.float32)
            return {"degraded": degraded, **_without_inputs(batch)}

        ready = encode(0)
        seconds = {}
        for name, loss, source, constants in (
            ("cached", recovery, lambda step: ready, {}),
            ("online", self.loss(recovery), lambda step: batch, self.constants),
        ):
            seconds[name] = _seconds_a_step(loss, params, source, config, mesh, constants)
        began = time.perf_counter()
        for example in self.cache.rows[:pictures]:
            self._host.preprocess([images.open_rgb(self._data.path(example))])
        # Decoding runs in a thread beside the step: a step takes the longer of the two.
        decoding = time.perf_counter() - began
        return max(seconds["online"], decoding) / seconds["cached"]


def open_online(host: Any, data: Dataset, batch_size: int, taxonomy: str) -> OnlineAccess:
    """Encodes what training needs more than once: pristine train rows and the whole val split.

    Raises:
      FaultsError: pictures cannot be read; all are named.
    """
    rows = [e for e in data.examples if e.split in ("train", "val")]
    wanted = [i for i, e in enumerate(rows) if e.split == "val" or e.severity == PRISTINE]
    encoder = Encoder(host, batch_size, "float32")
    shape, masked = encoder.shape()
    tokens = np.zeros((len(wanted), *shape), np.float32)
    mask = np.zeros((len(wanted), *shape[:-1]), bool) if masked else None
    chosen = [rows[i] for i in wanted]
    parts = [
        range(at, min(at + batch_size, len(chosen))) for at in range(0, len(chosen), batch_size)
    ]
    faults = []
    with Progress(len(chosen), "encoding pristine and validation", "images") as bar:
        for part in encoder.run(data.folder, chosen, parts, _DECODE_THREADS):
            place = slice(part.first, part.first + len(part.tokens))
            tokens[place] = part.tokens
            if mask is not None and part.mask is not None:
                mask[place] = part.mask
            faults += [f"{chosen[i].path} {why}" for i, why in part.failures.items()]
            bar.advance(len(part.tokens))
    if faults:
        raise FaultsError(f"{data.folder}: pictures that cannot be used", faults)
    memory = _Memory(data, rows, wanted, tokens, mask, host.spec.source)
    return OnlineAccess(host, data, cast(FeatureCache, memory), taxonomy)


class _Memory:
    """The reading side of a FeatureCache over arrays; rows without features refuse."""

    def __init__(
        self,
        data: Dataset,
        rows: list,
        wanted: list[int],
        tokens: np.ndarray,
        mask: np.ndarray | None,
        source: Any,
    ) -> None:
        self.folder, self.rows, self.source = data.folder, tuple(rows), source
        self.manifest = types.SimpleNamespace(
            shape=tokens.shape[1:],
            splits=("train", "val"),
            weights_hash=source.weights_hash,
            dataset_name=data.info.name,
            dataset_version=data.info.version,
            dataset_hash=data.hash,
        )
        self._place = np.full(len(rows), -1)
        self._place[wanted] = np.arange(len(wanted))
        self._tokens, self._mask = tokens, mask

    def tokens(self, indices: Any, dtype: Any = None) -> np.ndarray:
        return self._tokens[self._places(indices)]

    def mask(self, indices: Any) -> np.ndarray | None:
        return None if self._mask is None else self._mask[self._places(indices)]

    def _places(self, indices: Any) -> np.ndarray:
        places = self._place[np.asarray(indices)]
        assert (places >= 0).all(), "a degraded training row has no stored features online"
        return places


def _present(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if value is not None}


def _without_inputs(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if not name.startswith("inputs/")}


def _seconds_a_step(
    loss: LossFn,
    params: Any,
    source: Callable[[int], dict[str, Any]],
    config: LoopConfig,
    mesh: Mesh,
    constants: Mapping[str, Any],
) -> float:
    short = dataclasses.replace(config, steps=_TIMED_STEPS, save_every=0, eval_every=0)
    with tempfile.TemporaryDirectory() as folder:
        timed = fit(
            loss,
            params,
            source,
            short,
            workdir=folder,
            mesh=mesh,
            constants=constants,
            label="timing",
        )
    return 1.0 / timed.steps_per_second
