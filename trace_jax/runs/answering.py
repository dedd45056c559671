"""Asking a vision-language host about every image under every condition, resumable mid-task.

An answer is a line of `answers.jsonl` as soon as its batch is done. A run that was killed goes on
after the last whole line and ends with the same answers as an unbroken one.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from trace_jax import files, hosts, images
from trace_jax.data.feature_cache import FeatureCache
from trace_jax.data.manifest import Dataset
from trace_jax.errors import UserError
from trace_jax.progress import Progress
from trace_jax.runs.conditions import BASE, PRISTINE, Condition
from trace_jax.runs.encoding import sized
from trace_jax.runs.scoring import ANSWERS_FILE
from trace_jax.tasks import answers, gate
from trace_jax.tasks.answers import AnswerRecord
from trace_jax.tasks.generation import GENERATION_TASKS, GenerationTask
from trace_jax.tasks.judge import ENGINES, Judge, LocalEngine, OpenAIEngine
from trace_jax.types import LEVELS, Example, Features

VERDICTS_FILE = "verdicts.jsonl"
_PLAN_FILE = "answers.plan.json"
GATES = ("always", "never", "query")


@dataclasses.dataclass(frozen=True)
class AnswerConfig:
    """What to ask.

    Attributes:
      tasks: names of GENERATION_TASKS.
      gate: when features are recovered: "always", "never", or "query": where the question is about
        what the object was (see tasks.gate).
      split: whose identities are asked about.
      limit: only so many identities, evenly through the split; 0 for all.
      only_ids: identities to ask about; () for all.
      batch_size: images a call; halved when memory runs out.
    """

    tasks: tuple[str, ...]
    gate: str = "query"
    split: str = "test"
    limit: int = 0
    only_ids: tuple[str, ...] = ()
    batch_size: int = 16


@dataclasses.dataclass(frozen=True)
class Answered:
    """What a run left behind.

    Attributes:
      records: every answer, base first, then the other conditions, then "pristine".
      tokens, seconds: generated now, and the time it took.
      skipped: images that could not be read, with the reason.
      batch_size: images a call at the end.
    """

    records: list[AnswerRecord]
    tokens: int
    seconds: float
    skipped: list[str]
    batch_size: int


def run(
    config: AnswerConfig,
    host: Any,
    dataset: Dataset,
    conditions: Sequence[Condition],
    out: Path,
    *,
    group_of: Callable[[str], str],
    plan: Mapping[str, Any],
    streams: Sequence[Condition] = (),
    overwrite: bool = False,
) -> Answered:
    """Asks everything that is not answered yet.

    Args:
      config: what.
      host: a hosts.VisionLanguageHost.
      dataset: whose images.
      conditions: base and recoverers; the ceiling "pristine" comes by itself.
      out: results folder.
      group_of: object type -> "hazard", "everyday" or "".
      plan: what else the answers depend on; another plan's answers are asked again.
      streams: recoverers of the host's DeepStack streams, used wherever features are recovered;
        () leaves the streams as the tap made them.
      overwrite: ask everything again.

    Raises:
      UserError: nothing to ask, or memory runs out at one image a call.
    """
    _check(config)
    chosen = _chosen(dataset, config)
    path = out / ANSWERS_FILE
    whole_plan = {
        **plan,
        "gate": config.gate,
        "conditions": {c.name: c.sha256 for c in conditions},
        "streams": [c.sha256 for c in streams],
    }
    done = _kept(path, out / _PLAN_FILE, whole_plan, overwrite)
    asker = _Asker(config, host, dataset, conditions, streams, group_of)
    total = len(chosen) * len(conditions) * len(config.tasks)
    start, before = time.monotonic(), len(done)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as stream, Progress(total, "asking", "answers", done=before) as progress:
        for record in asker.answers(chosen, set(done)):
            stream.write(answers.line(record))
            stream.flush()
            done[record.key] = record
            progress.advance()
    wanted = {e.path for e in chosen}
    mine = [r for r in done.values() if r.path in wanted and r.task in config.tasks]
    order = {c.name: number for number, c in enumerate(conditions)}
    mine = [r for r in mine if r.condition in order]
    mine.sort(key=lambda r: (config.tasks.index(r.task), order[r.condition], r.path))
    ceiling = [
        dataclasses.replace(r, condition=PRISTINE)
        for r in mine
        if r.condition == BASE and r.severity == PRISTINE
    ]
    return Answered(
        mine + ceiling, asker.tokens, time.monotonic() - start, asker.skipped, asker.batch_size
    )


def can_answer(host: str) -> bool:
    """Whether a host is registered and answers questions in words."""
    entry = hosts.HOSTS.get(host)
    return entry is not None and issubclass(entry.family, hosts.VisionLanguageHost)


def open_host(
    cache: FeatureCache,
    load_host: Callable[..., Any],
    weights: str | None,
    deepstack: str = "kept",
    streams: int = 0,
) -> Any:
    """The host that a cache's features are of, at the same picture size.

    Args:
      cache: the features.
      load_host: `converters.load_host`.
      weights: folder or hub id, None for the host's own.
      deepstack: what becomes of its streams: "kept", "recovered" or "dropped".
      streams: how many recoverers of streams there are.

    Raises:
      UserError: the weights are not those of the cache, or streams and recoverers do not match.
    """
    source = cache.source
    host = load_host(source.host, weights, tap=source.tap)
    if host.spec.source != source:
        raise UserError(
            f"{cache.folder}: its features are of other weights ({source.weights_hash[:12]}) than "
            f"{source.host}'s ({host.spec.weights_hash[:12]}). Give the same --weights."
        )
    own = len(host.model.deepstack) if hasattr(host, "with_deepstack") else 0
    if (deepstack != "kept" or streams) and not own:
        raise UserError(f"--deepstack={deepstack}: {source.host} has no DeepStack streams.")
    if streams != (own if deepstack == "recovered" else 0):
        wanted = f"{own}, one --streams=FOLDER a stream in order," if own else "no"
        raise UserError(
            f"--deepstack={deepstack} with {streams} FRMs of streams: --deepstack=recovered takes "
            f"{wanted} and the other modes take none. Train them with "
            "bin/train --config=configs/qwen3vl_deepstack.py:0, :1, ..."
        )
    if deepstack != "kept":
        host = host.with_deepstack(deepstack)
    return sized(host, int(cache.manifest.preprocessing.get("image_size") or 0))


def make_judge(name: str, host: Any, out: Path) -> Judge:
    """The judge of paraphrases; its verdicts are kept in the results folder.

    Raises:
      UserError: unknown name, or the service cannot be used.
    """
    if name not in ENGINES:
        raise UserError(f"--judge={name}: known are {', '.join(ENGINES)}")
    if name == "none":
        return Judge()
    if name == "openai":
        return Judge(OpenAIEngine(), out / VERDICTS_FILE)

    def generate(questions: list[str], most: int) -> list[str]:
        return host.generate(None, questions, max_new_tokens=most)

    model = f"{host.spec.name} {host.spec.weights_hash[:12]}"
    return Judge(LocalEngine(generate, model), out / VERDICTS_FILE)


def _check(config: AnswerConfig) -> None:
    if config.gate not in GATES:
        raise UserError(f"--gate={config.gate}: known are {', '.join(GATES)}")
    unknown = [name for name in config.tasks if name not in GENERATION_TASKS]
    if unknown:
        raise UserError(f"unknown tasks: {', '.join(unknown)}")


def _chosen(dataset: Dataset, config: AnswerConfig) -> list[Example]:
    """Damaged images and pristine references of the identities to ask about."""
    rows = [
        e
        for e in dataset.examples
        if e.split == config.split and e.view == 0 and e.severity in (*LEVELS, PRISTINE)
    ]
    names = list(dict.fromkeys(e.identity for e in rows))
    if config.only_ids:
        missing = sorted(set(config.only_ids) - set(names))
        if missing:
            raise UserError(
                f"--only_ids: split {config.split} has no identity {', '.join(missing[:5])}"
            )
        names = [name for name in names if name in config.only_ids]
    if config.limit and config.limit < len(names):
        names = [names[i * len(names) // config.limit] for i in range(config.limit)]
    kept = set(names)
    chosen = [e for e in rows if e.identity in kept]
    if not chosen:
        raise UserError(f"{dataset.folder}: split {config.split!r} has no image to ask about.")
    return chosen


def _kept(
    path: Path, plan_file: Path, plan: Mapping[str, Any], overwrite: bool
) -> dict[tuple[str, str, str], AnswerRecord]:
    """Answers of an earlier run that this one would give alike; the file is cut to whole lines."""
    wanted = files.sha256_json(plan)
    same = plan_file.is_file() and files.read_json(plan_file) == {"plan": wanted}
    found: list[AnswerRecord] = []
    if path.is_file() and same and not overwrite:
        found = answers.read(path, partial=True)
        files.write_bytes(path, b"".join(answers.line(r) for r in found))
    else:
        path.unlink(missing_ok=True)
    files.write_json(plan_file, {"plan": wanted})
    return {record.key: record for record in found}


class _Asker:
    def __init__(
        self,
        config: AnswerConfig,
        host: Any,
        dataset: Dataset,
        conditions: Sequence[Condition],
        streams: Sequence[Condition],
        group_of: Callable[[str], str],
    ) -> None:
        self.config, self.host, self.dataset = config, host, dataset
        self.conditions, self.streams, self.group_of = conditions, streams, group_of
        self.batch_size = config.batch_size
        self.tokens = 0
        self.skipped: list[str] = []

    def answers(
        self, chosen: Sequence[Example], done: set[tuple[str, str, str]]
    ) -> Iterator[AnswerRecord]:
        tasks = [GENERATION_TASKS[name] for name in self.config.tasks]

        def open_keys(e: Example) -> bool:
            return any((t.name, c.name, e.path) not in done for t in tasks for c in self.conditions)

        left = [e for e in chosen if open_keys(e)]
        at = 0
        while at < len(left):
            part = left[at : at + self.batch_size]
            try:
                found = self._batch(part, tasks, done)
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error) or self.batch_size == 1:
                    raise
                self.batch_size = max(1, self.batch_size // 2)
                print(f"memory ran out; going on with {self.batch_size} images a call")
                continue
            yield from found
            at += len(part)

    def _batch(
        self,
        part: Sequence[Example],
        tasks: Sequence[GenerationTask],
        done: set[tuple[str, str, str]],
    ) -> list[AnswerRecord]:
        pictures, kept = [], []
        for e in part:
            try:
                pictures.append(images.open_rgb(self.dataset.path(e)))
                kept.append(e)
            except images.BadImageError as error:
                self.skipped.append(f"{e.path}: {error}")
        if not kept:
            return []
        # The last batch is filled up with copies, so that one shape is compiled.
        filled = [pictures[i % len(pictures)] for i in range(self.batch_size)]
        features = self.host.tap(self.host.preprocess(filled))
        severity = np.array(
            [[PRISTINE, *LEVELS].index(e.severity) for e in kept]
            + [0] * (self.batch_size - len(kept)),
            np.int32,
        )
        found: list[AnswerRecord] = []
        plain: dict[str, list[list[int]]] = {}
        for condition in self.conditions:
            recovered = recover(features, condition, severity)
            if condition.recover is not None:
                recovered = self._with_streams(recovered, severity)
            for task in tasks:
                if all((task.name, condition.name, e.path) in done for e in kept):
                    continue
                found += self._ask(task, condition, kept, features, recovered, plain)
        return [r for r in found if r.key not in done]

    def _with_streams(self, features: Features, severity: np.ndarray) -> Features:
        for number, one in enumerate(self.streams):
            stream = recover(self.host.stream(features, number), one, severity)
            features = self.host.with_stream(features, number, stream)
        return features

    def _ask(
        self,
        task: GenerationTask,
        condition: Condition,
        kept: Sequence[Example],
        features: Features,
        recovered: Features,
        plain: dict[str, list[list[int]]],
    ) -> list[AnswerRecord]:
        asked = [task.ask(e.path, e.severity, e.metrics) for e in kept]
        questions = [question for question, _ in asked]
        on = [
            condition.recover is not None and gate.recovers(question, self.config.gate)
            for question in questions
        ]
        rows: list[list[int]] = []
        if not all(on):
            # Where the gate says no, an answer is that of the base condition.
            if task.name not in plain:
                plain[task.name] = self._generate(task, features, questions)
            rows = plain[task.name]
        if any(on):
            with_frm = self._generate(task, recovered, questions)
            rows = [with_frm[i] if on[i] else rows[i] for i in range(len(kept))]
        words = self.host.tokenizer.decode(rows[: len(kept)])
        return [
            AnswerRecord(
                task=task.name,
                condition=condition.name,
                path=e.path,
                shown=e.path,
                identity=e.identity,
                object_type=e.object_type,
                group=self.group_of(e.object_type),
                severity=e.severity,
                view=e.view,
                draw=e.draw,
                materials=tuple(dict.fromkeys(p.material for p in e.materials)),
                functions=e.functions,
                answer=text,
                tokens=len(row),
                recovered=used,
                expected=expected,
            )
            for e, text, row, used, (_, expected) in zip(kept, words, rows, on, asked, strict=False)
        ]

    def _generate(
        self, task: GenerationTask, features: Features, questions: Sequence[str]
    ) -> list[list[int]]:
        filled = [questions[i % len(questions)] for i in range(features.tokens.shape[0])]
        rows = self.host.generate(
            features, filled, max_new_tokens=task.max_new_tokens, return_tokens=True
        )
        rows = rows[: len(questions)]
        self.tokens += sum(len(row) for row in rows)
        return rows


def recover(features: Features, condition: Condition, severity: np.ndarray) -> Features:
    """Features after a condition's recoverer; the carry stays as it is."""
    if condition.recover is None:
        return features
    mask = None if features.mask is None else np.asarray(features.mask)
    tokens = condition.recover(np.asarray(features.tokens, np.float32), mask, severity)
    return features.replace(tokens=jax.numpy.asarray(tokens, features.tokens.dtype))
