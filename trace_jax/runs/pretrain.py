"""Pretrains a host from scratch on renders: the library body of `bin/train` for kind "host"."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from trace_jax import hosts
from trace_jax.data import manifest
from trace_jax.data.pooling import mean_tokens
from trace_jax.errors import UserError
from trace_jax.hosts import EncoderHost
from trace_jax.metrics import retrieval
from trace_jax.runs.watch import Watch
from trace_jax.train import augment, contrastive, instances, loop, optimizer, tokenizer

_EVALUATION_BATCH = 100
_PROMPT = "a photo of a {}."


@dataclasses.dataclass(frozen=True)
class PretrainResult:
    """What a run left behind.

    Attributes:
      workdir: its folder.
      folder: the host in Hugging Face layout, or None while the run is not finished.
      status, step: see loop.FitResult.
      metrics: the last evaluation.
      steps_per_second: see loop.FitResult.
    """

    workdir: Path
    folder: Path | None
    status: str
    step: int
    metrics: Mapping[str, float]
    steps_per_second: float


def run(
    config: ConfigDict,
    *,
    load_host: Callable[..., EncoderHost],
    save_host: Callable[..., Any],
    workdir: str | Path,
    stop_at: int | None = None,
) -> PretrainResult:
    """Trains the host that `config.host` describes and writes it to `workdir/host`.

    Args:
      config: see configs/nano/siglip2_host.py for every field.
      load_host: `converters.load_host`; reads the written host back as a check.
      save_host: `converters.save_host(host, folder)`.
      workdir: gets checkpoints/, metrics.jsonl, tensorboard/, tokenizer/ and host/.
      stop_at: pause after this step with a checkpoint; the same call without it goes on.

    Raises:
      UserError: the data folder is missing or unfit, or the workdir belongs to another run.
    """
    workdir = Path(workdir)
    dataset = manifest.read(config.data.folder)
    side = int(config.host.config.vision_config.image_size)
    data = instances.load(dataset, side, config.data.workers)
    held = instances.held_out(len(data.identity), config.data.held_out)
    host = _new_host(config, data, workdir / "tokenizer")
    input_ids = host.tokenize(data.texts)["input_ids"]
    members = np.flatnonzero(~held)
    if len(members) < config.batch.size:
        raise UserError(
            f"{config.data.folder}: {len(members)} instances are left for training, a batch "
            f"needs {config.batch.size} (config.batch.size)."
        )
    print(
        f"{config.name}: {len(members)} instances to train on, {int(held.sum())} held out, "
        f"{len(data.types)} types, {len(data.texts)} captions; {host.spec.num_params:,} parameters"
    )
    probe = _Probe(host, data, np.flatnonzero(held), config.data.watch, side)
    heads = contrastive.init_heads(
        jax.random.key(config.seed + 1), host.spec.tap.dim, len(data.types), len(data.materials)
    )
    batch_config = instances.BatchConfig(**config.batch.to_dict())
    fitted = loop.fit(
        _loss(host, _loss_config(host, config)),
        {"host": _start(host, config), "heads": heads},
        lambda step: instances.draw(data, members, input_ids, batch_config, config.loop.seed, step),
        loop.LoopConfig(
            **config.loop.to_dict(), optim=optimizer.OptimizerConfig(**_tuples(config.optim))
        ),
        workdir=workdir,
        evaluate=lambda params, step: probe.measure(params["host"]),
        stamp={"config": config.to_dict(), "dataset": dataset.hash},
        stop_at=stop_at,
        label=config.name,
    )
    folder = None
    metrics: Mapping[str, float] = fitted.best_metrics
    if fitted.status == "finished":
        folder = workdir / "host"
        save_host(host.with_params(fitted.params["host"]), folder)
        final = load_host(config.host.name, weights=str(folder))
        metrics = probe.measure(final.params)
        figures = ", ".join(f"{name} {value:.3f}" for name, value in metrics.items())
        print(f"{config.name}: {folder} written and read back: {figures}")
    return PretrainResult(
        workdir, folder, fitted.status, fitted.step, metrics, fitted.steps_per_second
    )


def _start(host: EncoderHost, config: ConfigDict) -> dict[str, Any]:
    """The host's first parameters: its random ones, but for positions and SigLIP's bias.

    Image positions start as 2-D sines and cosines of the patch's row and column (He 2022, MAE).
    Drawn at the usual 0.02 they are 60 times smaller than the embedding of a white patch, and a
    run this short stays a bag of patches that knows colours but no shapes.
    """
    params = dict(host.params)
    vision = dict(params["vision"])
    table = np.array(vision["positions"]["table"])
    grid = positions(int(host.spec.tap.tokens or 0), table.shape[1])
    table[len(table) - len(grid) :] = grid  # CLIP's first row belongs to the class token
    vision["positions"] = {"table": jnp.asarray(table)}
    params["vision"] = vision
    if "logit_bias" in params:
        params["logit_bias"] = jnp.full_like(params["logit_bias"], config.host.logit_bias)
    return params


def positions(count: int, width: int) -> np.ndarray:
    """Sines and cosines of row and column, [count, width]; patches of a square grid by rows.

    Frequencies fall from 1 to 1/100 radian a patch, since the nano grids are a few patches wide.
    """
    side = math.isqrt(count)
    frequencies = 100.0 ** -(np.arange(width // 4) / max(width // 4 - 1, 1))
    row, column = np.divmod(np.arange(count), side)
    angles = [np.outer(place, frequencies) for place in (row, column)]
    return np.concatenate([f(a) for a in angles for f in (np.sin, np.cos)], axis=1).astype("f4")


def _loss_config(host: EncoderHost, page: ConfigDict) -> contrastive.ContrastiveConfig:
    return contrastive.ContrastiveConfig(
        **page.loss.to_dict(),
        mean=tuple(host.spec.preprocessing["image_mean"]),
        std=tuple(host.spec.preprocessing["image_std"]),
        views=augment.AugmentConfig(**_tuples(page.views)),
    )


def _new_host(config: ConfigDict, data: instances.Instances, folder: Path) -> EncoderHost:
    """A host with random weights whose vocabulary is that of the data's captions."""
    family = hosts.lookup(config.host.name).family.family
    description = copy.deepcopy(config.host.config.to_dict())
    text = description["text_config"]
    words = tokenizer.build(tokenizer.vocabulary(instances.words(data)), family)
    tokenizer.save(words, folder, family, text["max_position_embeddings"])
    text["vocab_size"] = words.get_vocab_size()
    text.update(tokenizer.special_ids(words, family))
    host = hosts.build(config.host.name, description, jax.random.key(config.seed), tokenizer=folder)
    assert isinstance(host, EncoderHost)
    return host


def _loss(host: EncoderHost, config: contrastive.ContrastiveConfig) -> loop.LossFn:
    def encode(params: Any, pixels: jax.Array) -> tuple[jax.Array, jax.Array]:
        features = host.apply_tap(params, {"pixel_values": pixels})
        return features.tokens, host.apply_resume(params, features).embedding

    def encode_text(params: Any, input_ids: jax.Array) -> jax.Array:
        return host.apply_text(params, {"input_ids": input_ids})

    def read_scale(params: Any) -> tuple[jax.Array, jax.Array]:
        bias = params["logit_bias"] if config.text == "sigmoid" else jnp.zeros(())
        return params["logit_scale"], bias

    return contrastive.make_loss(encode, encode_text, read_scale, config)


class _Probe:
    """What is watched during pretraining; nothing here steers the training.

    `r_at_1`: held-out instances, reference view searched among second views, mean-pooled tap
    tokens. `zero_shot`: their object type by `encode_text`. `watch_*`: see Watch.
    """

    def __init__(
        self,
        host: EncoderHost,
        data: instances.Instances,
        held: np.ndarray,
        watch: str,
        side: int,
    ) -> None:
        self.host = host
        last = data.rows.shape[1] - 1
        self.first = data.pictures[data.rows[held, 0]]
        self.second = data.pictures[data.rows[held, min(1, last)]]
        self.types = data.object_type[held]
        prompts = [_PROMPT.format(instances.readable(name)) for name in data.types]
        self.prompts = host.tokenize(prompts)
        self._watch = Watch(watch, side, lambda params, pictures: self._pooled(params, pictures)[0])

        mean = jnp.asarray(host.spec.preprocessing["image_mean"])
        std = jnp.asarray(host.spec.preprocessing["image_std"])

        def encode(params: Any, pictures: jax.Array) -> tuple[jax.Array, jax.Array]:
            pixels = (pictures.astype(jnp.float32) / 255.0 - mean) / std
            features = host.apply_tap(params, {"pixel_values": pixels})
            return features.tokens, host.apply_resume(params, features).embedding

        self._encode = jax.jit(encode)
        self._text = jax.jit(host.apply_text)

    def measure(self, params: Any) -> dict[str, float]:
        first, embedding = self._pooled(params, self.first)
        second, _ = self._pooled(params, self.second)
        own = np.arange(len(first))
        texts = np.asarray(self._text(params, self.prompts))
        texts = texts / np.linalg.norm(texts, axis=1, keepdims=True)
        values = {
            "r_at_1": float(np.mean(retrieval.search(first, second, own).rank == 0)),
            "zero_shot": float(np.mean(np.argmax(embedding @ texts.T, axis=1) == self.types)),
        }
        return values | self._watch.measure(params)

    def _pooled(self, params: Any, pictures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pooled, embeddings = [], []
        for start in range(0, len(pictures), _EVALUATION_BATCH):
            part = pictures[start : start + _EVALUATION_BATCH]
            # One compiled shape: the last part is filled up with copies and cut again.
            filled = np.resize(part, (_EVALUATION_BATCH, *part.shape[1:]))
            tokens, embedding = self._encode(params, filled)
            pooled.append(mean_tokens(np.asarray(tokens))[: len(part)])
            embeddings.append(np.asarray(embedding)[: len(part)])
        return np.concatenate(pooled), np.concatenate(embeddings)


def _tuples(config: ConfigDict) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list | tuple) else value
        for name, value in config.to_dict().items()
    }
