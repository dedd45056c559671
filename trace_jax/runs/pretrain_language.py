"""Pretrains a nano vision-language host: the library body of `bin/train` for kind "language"."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
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
from trace_jax.hosts.prompts import arrange
from trace_jax.hosts.qwen3_vl import Qwen3VL
from trace_jax.hosts.qwen_images import patch_places, patchify
from trace_jax.metrics import retrieval
from trace_jax.runs import questions
from trace_jax.runs.pretrain import PretrainResult
from trace_jax.runs.questions import Turn
from trace_jax.runs.watch import Watch
from trace_jax.train import (
    augment,
    chat_tokenizer,
    contrastive,
    instances,
    language,
    loop,
    optimizer,
)
from trace_jax.types import LEVELS, Example

_EVALUATION_BATCH = 96


def run(
    config: ConfigDict,
    *,
    load_host: Callable[..., Any],
    save_host: Callable[..., Any],
    workdir: str | Path,
    stop_at: int | None = None,
) -> PretrainResult:
    """Trains the host that `config.host` describes and writes it to `workdir/host`.

    Args:
      config: see configs/nano/qwen3_vl_host.py for every field.
      load_host: `converters.load_host`; reads the tower's start and the written host.
      save_host: `converters.save_host(host, folder)`.
      workdir: gets checkpoints/, metrics.jsonl, tensorboard/, tokenizer/ and host/.
      stop_at: pause after this step with a checkpoint; the same call without it goes on.

    Raises:
      UserError: the data folder is missing or unfit, or the workdir belongs to another run.
    """
    workdir = Path(workdir)
    dataset = manifest.read(config.data.folder)
    side = int(config.data.side)
    data = instances.load(dataset, side, config.data.workers)
    fires = manifest.read(config.data.burnt)
    burnt = [e for e in fires.examples if e.severity in LEVELS and e.split == "train"]
    if not burnt:
        raise UserError(
            f"{fires.folder}: has no damaged training pictures to ask about damage. Render them "
            "with bin/generate --config=configs/nano/pretrain_burnt.py."
        )
    burnt_pictures = instances.decode(fires, burnt, side, config.data.workers)
    first = {e.identity: e for e in reversed(dataset.examples) if e.severity not in LEVELS}
    pristine = [first[name] for name in data.identity]
    _check_truth(dataset, pristine, lambda e: bool(e.functions and e.materials), "functions")
    _check_truth(fires, burnt, lambda e: {"soot_coverage", "structural_integrity"} <= {*e.metrics},
                 "metrics")  # fmt: skip
    turns = [
        [questions.about_origin(e) for e in pristine],
        [questions.about_damage(e) for e in pristine],
        [questions.about_damage(e) for e in burnt],
    ]
    held = instances.held_out(len(pristine), config.data.held_out)
    host = _new_host(config, [t for group in turns for row in group for t in row], workdir)
    grid = side // host.model.patch // host.model.merge
    origin, calm, damage = (_dialogue(host, group, grid) for group in turns)
    print(
        f"{config.name}: {int((~held).sum())} instances to train on, {int(held.sum())} held out, "
        f"{len(burnt)} burnt pictures; {host.spec.num_params:,} parameters, prompts of up to "
        f"{origin.ids.shape[1]} tokens, vocabulary of {host.model.text.vocab}"
    )
    drawn = _Draw(config, data, np.flatnonzero(~held), burnt_pictures, grid**2)
    drawn.origin, drawn.calm, drawn.damage = origin, calm, damage
    probe = _Probe(host, data, np.flatnonzero(held), origin, grid, side)
    watch = Watch(config.data.watch, side, probe.pooled)
    params = {
        "host": _start(host, config, load_host),
        "heads": contrastive.init_heads(
            jax.random.key(config.seed + 1), host.spec.tap.dim, len(data.types), len(data.materials)
        ),
    }
    fitted = loop.fit(
        _loss(host, config, side),
        params,
        drawn,
        loop.LoopConfig(
            **config.loop.to_dict(), optim=optimizer.OptimizerConfig(**_tuples(config.optim))
        ),
        workdir=workdir,
        evaluate=lambda params, step: {
            **probe.measure(params["host"]),
            **watch.measure(params["host"]),
        },
        stamp={"config": config.to_dict(), "dataset": dataset.hash, "burnt": fires.hash},
        stop_at=stop_at,
        label=config.name,
    )
    folder = None
    metrics = dict(fitted.best_metrics)
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


def _check_truth(
    dataset: manifest.Dataset, rows: Sequence[Example], told: Callable[[Example], bool], what: str
) -> None:
    """Refuses rows that do not say what their answers are made of."""
    silent = [e.path for e in rows if not told(e)]
    if silent:
        raise UserError(
            f"{dataset.folder}: {len(silent)} rows have no {what} to make answers of, first "
            f"{silent[0]}. bin/generate writes them."
        )


def _new_host(config: ConfigDict, turns: Sequence[Turn], workdir: Path) -> Qwen3VL:
    """A host with random weights and a tokenizer learned from the questions and answers."""
    folder = workdir / "tokenizer"
    texts = {t.answer for t in turns} | {"user\n", "assistant\n", "\n"}
    words = chat_tokenizer.build(texts, questions.sentences(), config.host.vocabulary)
    chat_tokenizer.save(words, folder)
    description = copy.deepcopy(config.host.config.to_dict())
    ids = words.get_vocab()
    description["image_token_id"] = ids[chat_tokenizer.IMAGE]
    description["text_config"]["vocab_size"] = words.get_vocab_size()
    host = hosts.build(
        config.host.name, description, jax.random.key(config.seed),
        preprocessor=config.host.preprocessor.to_dict(), tokenizer=folder,
    )  # fmt: skip
    assert isinstance(host, Qwen3VL)
    return host


def _start(host: Qwen3VL, config: ConfigDict, load_host: Callable[..., Any]) -> dict[str, Any]:
    """A host to go on from, or random parameters, the tower's from a SigLIP host: Qwen3-VL's tower
    began as one too.

    Blocks and position table are alike; a patch is the same picture in every frame, so the patch
    kernel is shared out over them; SigLIP's last norm becomes the merger's.
    """
    params: dict[str, Any] = dict(host.params)
    if config.host.start:
        given = load_host(config.host.name, weights=config.host.start).params
        shapes = [jax.tree.map(lambda leaf: leaf.shape, tree) for tree in (given, params)]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"host.start={config.host.start}: is of other sizes than config.host.config, or of "
                "another vocabulary"
            )
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, "float32"), dict(given))
    if not config.host.tower:
        return params
    source = load_host(config.host.tower)
    given = source.params["vision"]
    tower = dict(params["vision"])
    patch, frames = host.model.patch, host.model.temporal
    kernel = np.asarray(given["patches"]["kernel"]).reshape(patch, patch, 3, 1, -1)
    kernel = np.repeat(kernel / frames, frames, axis=3).transpose(2, 3, 0, 1, 4)
    merger = {**tower["merger"], "norm": given["post_norm"]}
    tower |= {
        "patches": {
            "kernel": jnp.asarray(kernel.reshape(-1, kernel.shape[-1])),
            "bias": given["patches"]["bias"],
        },
        "positions": given["positions"],
        "blocks": given["blocks"],
        "merger": merger,
    }
    wanted = jax.tree.map(lambda leaf: leaf.shape, params["vision"])
    if jax.tree.map(lambda leaf: leaf.shape, tower) != wanted:
        raise UserError(
            f"host.tower={config.host.tower}: its tower has another shape than config.host.config"
        )
    return params | {"vision": jax.tree.map(lambda leaf: jnp.asarray(leaf, "float32"), tower)}


def _dialogue(host: Qwen3VL, groups: Sequence[Sequence[Turn]], grid: int) -> language.Dialogue:
    """Every turn of every picture as one row, pictures in order, all with equally many turns."""
    chat = host.tokenizer
    end = chat.stop[0]
    cache: dict[str, list[int]] = {}

    def asked(question: str) -> list[int]:
        if question not in cache:
            cache[question] = chat.ids(question, 1)
        return cache[question]

    answers = [
        [*chat.tokenizer(t.answer, add_special_tokens=False)["input_ids"], end]
        for group in groups
        for t in group
    ]
    prompts = [asked(t.question) for group in groups for t in group]
    rows = [p + a for p, a in zip(prompts, answers, strict=True)]
    text = arrange(
        chat,
        rows,
        np.full((len(rows), 2), grid, np.int32),
        images=[1] * len(rows),
        tokens_of=host.token_counts,
        stride=grid**2,
        spatial=host.spatial,
    )
    length = text["ids"].shape[1]
    sizes = np.array([len(a) for a in answers])
    answered = np.arange(length)[None, :] >= (length - sizes)[:, None]
    offset = np.arange(len(rows))[:, None] * grid**2
    image_at = np.where(text["slots"] >= 0, text["slots"] - offset, -1)
    return language.Dialogue(text["ids"], answered, text["real"], image_at, text["positions"])


class _Draw:
    """The batch of a step, a pure function of (seed, step)."""

    origin: language.Dialogue
    calm: language.Dialogue
    damage: language.Dialogue

    def __init__(
        self,
        config: ConfigDict,
        data: instances.Instances,
        members: np.ndarray,
        burnt: np.ndarray,
        stride: int,
    ) -> None:
        self._config, self._data, self._members = config, data, members
        self._burnt, self._stride = burnt, stride

    def __call__(self, step: int) -> dict[str, Any]:
        c = self._config.batch
        rng = np.random.default_rng((self._config.loop.seed, step))
        sizes = instances.BatchConfig(c.size, c.hard_types, c.same_view)
        chosen, first, second = instances.choose(self._data, self._members, sizes, rng, step)
        fires = rng.integers(len(self._burnt), size=c.burnt)
        pictures = np.concatenate([chosen, chosen])
        count = len(pictures)
        # Of a pristine picture: a task's question, and one that may be about (no) damage; `second`
        # is the share of pictures that are asked the latter.
        kinds = len(self._per(self.origin, len(self._data.identity)))
        calms = len(self._per(self.calm, len(self._data.identity)))
        damages = len(self._per(self.damage, len(self._burnt)))
        tasks = rng.integers(kinds, size=count)
        others = np.where(rng.random(count) < c.calm, -1, (tasks + 1) % kinds)
        calm = others < 0
        asked = rng.permutation(count) < round(c.second * count)
        calm, other = calm & asked, ~calm & asked
        parts = [
            self.origin.take(pictures * kinds + tasks, np.arange(count), self._stride),
            self.origin.take(
                pictures[other] * kinds + others[other], np.flatnonzero(other), self._stride
            ),
            self.calm.take(
                pictures[calm] * calms + rng.integers(calms, size=int(calm.sum())),
                np.flatnonzero(calm),
                self._stride,
            ),
            *(
                self.damage.take(
                    fires * damages + rng.integers(damages, size=len(fires)),
                    count + np.arange(len(fires)),
                    self._stride,
                )
                for _ in range(c.burnt_questions)
            ),
        ]
        return {
            "first": self._data.pictures[self._data.rows[chosen, first]],
            "second": self._data.pictures[self._data.rows[chosen, second]],
            "burnt": self._burnt[fires],
            "object_type": self._data.object_type[chosen].astype(np.int32),
            "material": self._data.material[chosen],
            **language.joined(parts),
        }

    def _per(self, dialogue: language.Dialogue, pictures: int) -> range:
        return range(len(dialogue.ids) // pictures)


def _inputs(host: Qwen3VL, pixels: jax.Array, side: int) -> dict[str, Any]:
    model = host.model
    count = side // model.patch
    grid = np.full((pixels.shape[0], 2), count, np.int32)
    patches = patchify(pixels, patch=model.patch, temporal=model.temporal, merge=model.merge)
    return {"patches": patches, "grid": grid, **patch_places(_shape(patches, grid), model.merge)}


def _shape(patches: jax.Array, grid: np.ndarray) -> dict[str, Any]:
    return {"patches": np.broadcast_to(np.float32(0), patches.shape), "grid": grid}


def _loss(host: Qwen3VL, config: ConfigDict, side: int) -> loop.LossFn:
    def encode(params: Any, pixels: jax.Array) -> Any:
        return host.apply_tap(params, _inputs(host, pixels, side))

    page = config.loss
    return language.make_loss(
        encode,
        lambda features: features.tokens.mean(axis=1),
        host.apply_answers,
        language.LanguageConfig(
            answer=page.answer,
            pooled=page.pooled,
            object_type=page.object_type,
            material=page.material,
            label_smoothing=page.label_smoothing,
            mean=tuple(host.spec.preprocessing["image_mean"]),
            std=tuple(host.spec.preprocessing["image_std"]),
            views=augment.AugmentConfig(**_tuples(config.views)),
        ),
    )


class _Probe:
    """What is watched during pretraining; nothing here steers the training.

    `r_at_1`: held-out instances, reference view searched among second views, mean-pooled tap
    tokens. `token_hit`: answers' tokens that are the likeliest, the words before them given.
    """

    def __init__(
        self,
        host: Qwen3VL,
        data: instances.Instances,
        held: np.ndarray,
        origin: language.Dialogue,
        grid: int,
        side: int,
    ) -> None:
        last = data.rows.shape[1] - 1
        self.first = data.pictures[data.rows[held, 0]]
        self.second = data.pictures[data.rows[held, min(1, last)]]
        mean = jnp.asarray(host.spec.preprocessing["image_mean"])
        std = jnp.asarray(host.spec.preprocessing["image_std"])
        kinds = len(origin.ids) // len(data.identity)
        self._rows = held[:, None] * kinds + np.arange(kinds)  # [H, kinds]
        self._origin, self._stride = origin, grid**2
        self._batch = min(_EVALUATION_BATCH, len(held))  # one compiled shape; a rest is left out

        def pooled(params: Any, pictures: jax.Array) -> jax.Array:
            pixels = (pictures.astype(jnp.float32) / 255.0 - mean) / std
            return host.apply_tap(params, _inputs(host, pixels, side)).tokens

        def hits(params: Any, pictures: jax.Array, text: dict[str, Any]) -> jax.Array:
            pixels = (pictures.astype(jnp.float32) / 255.0 - mean) / std
            features = host.apply_tap(params, _inputs(host, pixels, side))
            given = {name: text[name] for name in ("ids", "real", "slots")}
            given["positions"] = text["positions"].swapaxes(0, 1)
            logits = host.apply_answers(params, features, given)
            return language.answer_loss(logits, text["ids"], text["answered"])[1]

        self._encode, self._hits = jax.jit(pooled), jax.jit(hits)

    def pooled(self, params: Any, pictures: np.ndarray) -> np.ndarray:
        """Mean tokens [n, D] of uint8 pictures."""
        found = []
        for start in range(0, len(pictures), _EVALUATION_BATCH):
            part = pictures[start : start + _EVALUATION_BATCH]
            # One compiled shape: the last part is filled up with copies and cut again.
            filled = np.resize(part, (_EVALUATION_BATCH, *part.shape[1:]))
            tokens = np.asarray(self._encode(params, filled))
            found.append(mean_tokens(tokens)[: len(part)])
        return np.concatenate(found)

    def measure(self, params: Any) -> dict[str, float]:
        first, second = self.pooled(params, self.first), self.pooled(params, self.second)
        own = np.arange(len(first))
        values = {"r_at_1": float(np.mean(retrieval.search(first, second, own).rank == 0))}
        hits = []
        for start in range(0, len(self.first) - self._batch + 1, self._batch):
            span = np.arange(start, start + self._batch)
            for kind in range(self._rows.shape[1]):
                text = self._origin.take(
                    self._rows[span, kind], np.arange(self._batch), self._stride
                )
                hits.append(float(self._hits(params, self.first[span], text)))
        return values | {"token_hit": float(np.mean(hits)) if hits else float("nan")}


def _tuples(config: ConfigDict) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list | tuple) else value
        for name, value in config.to_dict().items()
    }
