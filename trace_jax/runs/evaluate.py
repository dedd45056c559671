"""Evaluating recovery on cached features: the body of `bin/eval`.

OUT/
  records.jsonl   one line a query and condition; whole before anything is scored
  run.json        what the records are of, condition by condition, so that a run goes on where
                  it stopped and `rescore` needs neither features nor models
  controls/       the fitted controls
  curves/         training logs of what was evaluated, for the report
  results.json    the numbers
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import trace_jax
from trace_jax import files, tasks, taxonomy
from trace_jax.data import manifest
from trace_jax.data.feature_cache import FeatureCache, default_folder
from trace_jax.data.pairs import pristine_rows
from trace_jax.errors import UserError
from trace_jax.metrics import intervals
from trace_jax.progress import Progress
from trace_jax.runs import answering, conditions, controls, queries, scoring
from trace_jax.runs import cache as cache_run
from trace_jax.runs.conditions import BASE, PRISTINE, Condition
from trace_jax.runs.provenance import describe
from trace_jax.runs.queries import Queries
from trace_jax.runs.scoring import RECORDS_FILE, RUN_FILE, SCHEMA
from trace_jax.tasks import Record
from trace_jax.tasks import records as record_table
from trace_jax.tasks.judge import Judge

DEFAULT_ROOT = Path("runs/eval")
DEFAULT_HOST = "siglip2_nano"


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """What to evaluate and how; None and () stand for defaults, which are printed.

    Attributes:
      tasks: names of `tasks.ALL_TASKS` to score; those of the host's kind by default: what is
        answered in words only a vision-language host can do.
      frm: `folder` or `name=folder` of each FRM, "none" for none; default: see
        `conditions.frm_folders`.
      host: host name; default: that of the first FRM.
      data: data folder; default: the embedded one.
      cache: cache folder; default: runs/cache/<host>/<tap>/<data name>.
      controls: folder of fitted controls; default: those shipped beside a shipped FRM, else fitted
        on the cache's training pairs.
      weights, tap: of the host, where the cache must be built.
      split: whose identities ask.
      gallery: "split" or "all".
      out: results folder; default: runs/eval/<host>/<tap>/<data name>/<split>[...].
      limit: only so many identities ask; 0 for all.
      batch_size: images a call.
      resamples: bootstrap samples.
      seed: of bootstrap and permutation draws.
      conditions: only these of the conditions; () for all.
      only_ids: only these identities are asked about in words; () for all.
      gate: when a question's features are recovered, see runs.answering.
      judge: fallback for unresolved paraphrases, see tasks.judge: "none", "local" or "openai".
      deepstack: what becomes of Qwen3-VL's streams: "kept", "recovered" or "dropped".
      streams: FRM folders of the streams in order, for "recovered".
      finetuned: fine-tuned weights of a detector, a second host beside the frozen one.
      finetuned_frm: its FRMs, as `frm`.
      max_dets: detections a picture that count: 100 as COCO has it; RF-DETR's own code counts 500.
      overwrite: measure again what is there already.
      command: what the user typed, for the report.
    """

    tasks: tuple[str, ...] = ()
    frm: tuple[str, ...] = ()
    host: str | None = None
    data: Path | None = None
    cache: Path | None = None
    controls: Path | None = None
    weights: str | None = None
    tap: str | None = None
    split: str = "test"
    gallery: str = "split"
    out: Path | None = None
    limit: int = 0
    batch_size: int = 64
    resamples: int = intervals.RESAMPLES
    seed: int = 0
    conditions: tuple[str, ...] = ()
    only_ids: tuple[str, ...] = ()
    gate: str = "query"
    judge: str = "none"
    deepstack: str = "kept"
    streams: tuple[str, ...] = ()
    finetuned: str | None = None
    finetuned_frm: tuple[str, ...] = ()
    max_dets: int = 100
    overwrite: bool = False
    command: str = ""


def run(config: EvaluateConfig, *, load_host: Callable[..., Any]) -> Path:
    """Measures every condition, then scores.

    Args:
      config: what and how.
      load_host: `converters.load_host`; called only where features must be cached first.

    Returns:
      The results folder, which then holds `results.json` and `records.jsonl`.

    Raises:
      UserError: something given does not exist or does not fit; the message says what to do.
    """
    start = time.monotonic()
    _check(config)
    cache, data_folder = open_features(config, load_host)
    chosen = queries.select(cache, config.split, config.gallery, config.limit)
    out = config.out or _default_out(cache, config)
    names = config.tasks or tasks.of_host(answers=answering.can_answer(cache.source.host))
    print(f"evaluating {config.split}: {_counts(chosen)}; results in {out}")
    found, notes = choose_conditions(config, cache, out)
    found = wanted(found, config.conditions)
    seconds = {"preparing": time.monotonic() - start}
    plan = _plan(cache, config)
    records = _measured(config, cache, chosen, found, plan, out)
    seconds["measuring"] = time.monotonic() - start - seconds["preparing"]
    meta = describe(config, cache, data_folder, chosen, found, out, [*chosen.notes, *notes])
    asked = tuple(name for name in names if name in tasks.GENERATION_TASKS)
    judge = Judge()
    if asked:
        host = answering.open_host(
            cache, load_host, config.weights, config.deepstack, len(config.streams)
        )
        meta["answers"] = _ask(config, asked, host, cache, data_folder, found, out)
        seconds["answering"] = meta["answers"]["seconds"]
        judge = answering.make_judge(config.judge, host, out)
    write_run(out, plan, found, records, meta | {"seconds": seconds})
    return scoring.score(
        out, task_names=names, resamples=config.resamples, seed=config.seed, judge=judge
    )


def _ask(
    config: EvaluateConfig,
    asked: tuple[str, ...],
    host: Any,
    cache: FeatureCache,
    data_folder: Path | None,
    found: Sequence[Condition],
    out: Path,
) -> dict[str, Any]:
    """Answers of the base condition and of every FRM; returns what the report says of them."""
    if data_folder is None:
        raise UserError("questions are asked about pictures: give the data folder with --data=DIR.")
    answered = answering.run(
        answering.AnswerConfig(
            tasks=asked,
            gate=config.gate,
            split=config.split,
            limit=config.limit,
            only_ids=config.only_ids,
            batch_size=config.batch_size,
        ),
        host,
        manifest.read(data_folder),
        [c for c in found if c.kind in (BASE, "frm")],
        out,
        group_of=group_of,
        plan={"cache": _cache_hash(cache), "deepstack": config.deepstack},
        streams=conditions.stream_conditions(config.streams, cache.source),
        overwrite=config.overwrite,
    )
    speed = answered.tokens / answered.seconds if answered.tokens else None
    if speed is not None:
        print(f"answers: {answered.tokens} tokens, {speed:.1f} a second")
    return {
        "tasks": list(asked),
        "gate": config.gate,
        "judge": config.judge,
        "deepstack": config.deepstack,
        "streams": list(config.streams),
        "tokens_per_second": speed,
        "seconds": answered.seconds,
        "skipped": answered.skipped,
        "batch_size": answered.batch_size,
    }


def wanted(found: list[Condition], names: Sequence[str]) -> list[Condition]:
    """The conditions asked for; base, which gains are told against, is always one."""
    unknown = sorted(set(names) - {c.name for c in found} - {PRISTINE})
    if unknown:
        known = ", ".join(c.name for c in found)
        raise UserError(f"--conditions={','.join(unknown)}: unknown; there are {known}.")
    return [c for c in found if not names or c.name in names or c.name == BASE]


def open_features(
    config: EvaluateConfig, load_host: Callable[..., Any]
) -> tuple[FeatureCache, Path | None]:
    """The cache to read (built if need be), and the folder of the pictures, None if unknown."""
    if config.cache is not None and config.data is None:
        cache = FeatureCache.open(config.cache)
        _print_default("features", cache.folder)
        embedded = cache.manifest.dataset_name == cache_run.EMBEDDED_DATA.name
        return cache, cache_run.EMBEDDED_DATA if embedded else None
    data = manifest.read(config.data or cache_run.EMBEDDED_DATA)
    if config.data is None:
        _print_default("data", data.folder)
    host, tap = _host_and_tap(config)
    if config.host is None:
        _print_default("host", host)
    folder = config.cache
    if folder is None:
        folder = _existing_cache(host, tap, data) or default_folder(
            host, tap or "last_hidden_state", data.info.name
        )
        _print_default("features", folder)
    if not (folder / "manifest.json").exists():
        flags = f"--host={host} --data={data.folder} --split=all --out={folder}"
        if config.data is not None:
            raise UserError(
                f"{folder}: no finished feature cache of {data.info.name} there. Make it first:\n"
                f"  bin/cache_features {flags}"
            )
        print(f"no features there yet; caching them: bin/cache_features {flags}")
        cache_run.run(
            cache_run.CacheConfig(
                host=host, data=data.folder, out=folder, weights=config.weights, tap=tap
            ),
            load_host=load_host,
        )
    return FeatureCache.open(folder, data_hash=data.hash), data.folder


def _host_and_tap(config: EvaluateConfig) -> tuple[str, str | None]:
    given = [text for text in config.frm if text != conditions.NO_FRM]
    if given:
        source = conditions.source_of(given[0])
        if config.host is not None and config.host != source.host:
            raise UserError(
                f"--host={config.host}: the FRM {given[0]} was trained on {source.host}."
            )
        return source.host, config.tap or source.tap
    return config.host or conditions.newest_host(DEFAULT_HOST), config.tap


def _existing_cache(host: str, tap: str | None, data: manifest.Dataset) -> Path | None:
    found = default_folder(host, tap or "*", data.info.name)
    matches = sorted(Path().glob(str(found / "manifest.json")))
    return matches[0].parent if matches else None


def choose_conditions(
    config: EvaluateConfig, cache: FeatureCache, out: Path
) -> tuple[list[Condition], list[str]]:
    """All conditions that need measuring, base first, and notes on what they rest on."""
    folders = conditions.frm_folders(config.frm, cache.source)
    frms = [conditions.frm_condition(name, folder, cache.source) for name, folder in folders]
    for one in frms:
        print(f"{one.name}: {one.origin}")
    shipped = conditions.SHIPPED / cache.source.host / "controls"
    notes = []
    if config.controls is not None:
        fitted = controls.load(config.controls, cache.source)
        origin = str(config.controls)
    elif any(folder.is_relative_to(conditions.SHIPPED) for _, folder in folders) and (
        (shipped / controls.DESCRIPTION_FILE).exists()
    ):
        fitted, origin = controls.load(shipped, cache.source), str(shipped)
    elif any(row.split == "train" for row in cache.rows) and pristine_rows(cache, "train"):
        fitted, origin = _fitted(cache, out, config.overwrite)
    else:
        notes.append(
            "The cache holds no training pairs, so there are no controls to compare with; without "
            "them a gain of FRM says little. Cache the train split or give --controls=DIR."
        )
        print(f"note: {notes[-1]}")
        return [Condition(BASE, BASE), *frms], notes
    origin = f"{origin}: fitted on {fitted.pairs} pairs of {fitted.identities} identities"
    print(f"controls: {origin}")
    for name, folder in folders:
        trained = conditions.trained_on(folder)
        if trained and trained != fitted.dataset["hash"]:
            notes.append(f"{name} and the controls were trained on different versions of the data.")
    return [
        Condition(BASE, BASE),
        *frms,
        *conditions.control_conditions(fitted, origin),
    ], notes


def _fitted(cache: FeatureCache, out: Path, overwrite: bool) -> tuple[controls.Controls, str]:
    folder = out / "controls"
    mark = folder / "cache.json"
    key = {"cache": _cache_hash(cache)}
    if mark.exists() and files.read_json(mark) == key and not overwrite:
        return controls.load(folder, cache.source), str(folder)
    print("controls: fitting on the cache's training pairs")
    fitted = controls.fit(cache)
    mark.unlink(missing_ok=True)
    controls.save(folder, fitted)
    files.write_json(mark, key)
    return fitted, str(folder)


def _measured(
    config: EvaluateConfig,
    cache: FeatureCache,
    chosen: Queries,
    found: Sequence[Condition],
    plan: str,
    out: Path,
) -> list[Record]:
    """Records of every condition in order; each is on disk before the next begins."""
    kept = {} if config.overwrite else _kept(out, plan, found)
    total = len(chosen.rows) * len(found)
    with Progress(total, "measuring", "images", done=len(chosen.rows) * len(kept)) as progress:
        for condition in found:
            if condition.name in kept:
                print(f"{condition.name}: {len(kept[condition.name])} records are there already")
                continue
            kept[condition.name] = queries.measure(
                cache, chosen, condition, group_of, config.batch_size, progress
            )
            done = [c for c in found if c.name in kept]
            records = [record for c in done for record in kept[c.name]]
            write_run(out, plan, done, records, None)
    records = [record for c in found for record in kept[c.name]]
    return records + queries.pristine_records(kept[BASE], chosen.pristine_view)


def _kept(out: Path, plan: str, found: Sequence[Condition]) -> dict[str, list[Record]]:
    """Records of an earlier run that this one would measure alike."""
    if not (out / RUN_FILE).exists() or not (out / RECORDS_FILE).exists():
        return {}
    state = files.read_json(out / RUN_FILE)
    if state.get("plan") != plan:
        return {}
    by_condition: dict[str, list[Record]] = {}
    for record in record_table.read(out / RECORDS_FILE):
        by_condition.setdefault(record.condition, []).append(record)
    kept = {}
    for condition in found:
        there = by_condition.get(condition.name, [])
        done = state["conditions"].get(condition.name)
        if done == {"sha256": condition.sha256, "count": len(there)}:
            kept[condition.name] = there
    return kept


def write_run(
    out: Path,
    plan: str,
    done: Sequence[Condition],
    records: Sequence[Record],
    meta: Mapping[str, Any] | None,
) -> None:
    """Writes records and run.json of a results folder; `meta` is None until all is measured."""
    # Records first: a kill in between leaves counts that do not match, and those are made anew.
    record_table.write(out / RECORDS_FILE, records)
    counts = {c.name: sum(r.condition == c.name for r in records) for c in done}
    files.write_json(
        out / RUN_FILE,
        {
            "schema": SCHEMA,
            "plan": plan,
            "conditions": {c.name: {"sha256": c.sha256, "count": counts[c.name]} for c in done},
            "meta": meta,
        },
    )


def _plan(cache: FeatureCache, config: EvaluateConfig) -> str:
    """Hash of all that records depend on besides a condition's parameters."""
    return files.sha256_json(
        {
            "schema": SCHEMA,
            "version": trace_jax.__version__,
            "cache": _cache_hash(cache),
            "split": config.split,
            "gallery": config.gallery,
            "limit": config.limit,
        }
    )


def _cache_hash(cache: FeatureCache) -> str:
    return files.sha256_file(cache.folder / "manifest.json")


def group_of(object_type: str) -> str:
    """ "hazard" or "everyday", "" for a type that the taxonomy does not know."""
    types = taxonomy.load().types
    # A type of the user's own vocabulary belongs to no group.
    return types[object_type].group if object_type in types else ""


def _default_out(cache: FeatureCache, config: EvaluateConfig) -> Path:
    name = config.split + ("-gallery_all" if config.gallery == "all" else "")
    name += f"-limit_{config.limit}" if config.limit else ""
    plan = cache.manifest
    return DEFAULT_ROOT / plan.host / plan.tap / plan.dataset_name / name


def _counts(chosen: Queries) -> str:
    by_severity = ", ".join(f"{s} {n}" for s, n in chosen.counts.items())
    return f"{chosen.identities} identities ({by_severity}), gallery of {len(chosen.gallery)}"


def _print_default(name: str, value: Any) -> None:
    print(f"{name}: {value}", file=sys.stdout)


def _check(config: EvaluateConfig) -> None:
    unknown = [name for name in config.tasks if name not in tasks.ALL_TASKS]
    if unknown:
        raise UserError(
            f"--task={','.join(config.tasks)}: unknown; known: {', '.join(tasks.ALL_TASKS)}, all"
        )
    if config.batch_size < 1 or config.limit < 0 or config.resamples < 1:
        raise UserError("--batch_size and --resamples must be at least 1, --limit at least 0")
