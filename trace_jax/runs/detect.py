"""Detection on scenes: the body of `bin/eval --task=detection`.

OUT/
  detections.jsonl            one line an image and condition, as soon as its batch is done
  truth.json                  the scenes' boxes, COCO JSON
  predictions/<condition>.json  what each condition found, COCO's result format; scored from here
  run.json                    what all this is of, so that a run goes on where it stopped
  results.json                the numbers
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import trace_jax
from trace_jax import files, hosts, images, taxonomy
from trace_jax.data import coco, manifest
from trace_jax.errors import UserError
from trace_jax.hosts.rf_detr import RfDetr
from trace_jax.metrics.detection import Detection, confusions
from trace_jax.progress import Progress
from trace_jax.runs import conditions as condition_list
from trace_jax.runs import provenance
from trace_jax.runs.conditions import BASE, PRISTINE, Condition
from trace_jax.runs.evaluate import EvaluateConfig, wanted
from trace_jax.runs.scoring import RESULTS_FILE, RUN_FILE, SCHEMA
from trace_jax.tasks import detection
from trace_jax.tasks.base import Scope
from trace_jax.types import LEVELS, Features, SceneExample

DEFAULT_HOST = "rf_detr_nano"
DETECTIONS_FILE, TRUTH_FILE = "detections.jsonl", "truth.json"
PREDICTIONS = "predictions"
FINETUNED = "finetuned"
_CONFUSIONS, _CONFUSED_SCORE = 12, 0.3


def is_detector(host: str) -> bool:
    """Whether a host is registered and finds boxes."""
    entry = hosts.HOSTS.get(host)
    return entry is not None and issubclass(entry.family, RfDetr)


def run(config: EvaluateConfig, *, load_host: Callable[..., Any], embedded: Path) -> Path:
    """Detects under every condition, then scores.

    Args:
      config: what and how; its `finetuned` is a second set of weights of the same host.
      load_host: `converters.load_host`.
      embedded: data folder where none is given.

    Returns:
      The results folder.

    Raises:
      UserError: something given does not exist or does not fit; the message says what to do.
    """
    start = time.monotonic()
    data = manifest.read(config.data or embedded)
    scenes = _chosen(data, config)
    name = config.host or DEFAULT_HOST
    host = load_host(name, config.weights, tap=config.tap)
    sides = [(host, _conditions(config.frm, host, ""))]
    if config.finetuned:
        tuned = load_host(name, config.finetuned, tap=config.tap)
        given = config.finetuned_frm or (condition_list.NO_FRM,)
        sides.append((tuned, _conditions(given, tuned, FINETUNED)))
    chosen = wanted([c for _, found in sides for c in found], config.conditions)
    out = (
        config.out or Path("runs/eval") / name / host.spec.tap.name / data.info.name / config.split
    )
    plan = {
        "schema": SCHEMA,
        "version": trace_jax.__version__,
        "data": data.hash,
        "hosts": [one.spec.weights_hash for one, _ in sides],
        "split": config.split,
        "limit": config.limit,
        "max_dets": config.max_dets,
    }
    done, skipped = _detected(config, data, scenes, sides, chosen, plan, out)
    seconds = {"detecting": time.monotonic() - start}
    read = [s for s in scenes if (BASE, s.path) in done]
    if not read:
        raise UserError(f"{data.folder}: no picture of split {config.split!r} can be read")
    _write_coco(out, read, chosen, done)
    meta = _meta(config, data, read, host, chosen, out, skipped)
    scope = Scope(
        dataset=data.info.name, split=config.split, gallery="", host=name,
        tap=host.spec.tap.name, pristine_view=0, resamples=config.resamples, seed=config.seed,
    )  # fmt: skip
    _score(out, read, [c.name for c in chosen], scope, config.max_dets, meta, seconds)
    return out


def is_results(folder: str | Path) -> bool:
    """Whether a results folder is of detection."""
    return (Path(folder) / TRUTH_FILE).is_file() and (Path(folder) / PREDICTIONS).is_dir()


def rescore(
    folder: str | Path, *, task_names: Sequence[str] = (), resamples: int, seed: int
) -> Path:
    """Scores the predictions of a results folder again: no pictures, no models.

    Args:
      folder: what `run` wrote.
      task_names: () or ("detection",).
      resamples, seed: of the intervals.

    Raises:
      UserError: results are missing or unreadable, or another task is asked for.
    """
    folder = Path(folder)
    if set(task_names) - {detection.NAME}:
        raise UserError(f"{folder}: holds detections; --task={','.join(task_names)} is not there.")
    meta = files.read_json(folder / RESULTS_FILE, "Run bin/eval without --rescore first.")["meta"]
    scenes = coco.read(files.read_json(folder / TRUTH_FILE), folder / meta["data"]["folders"][0])
    names = [
        c["name"]
        for c in meta["conditions"]
        if (folder / PREDICTIONS / f"{c['name']}.json").is_file()
    ]
    scope = Scope(
        dataset=meta["data"]["name"], split=meta["split"], gallery="", host=meta["host"]["name"],
        tap=meta["host"]["tap"], pristine_view=0, resamples=resamples, seed=seed,
    )  # fmt: skip
    seconds = {k: v for k, v in meta["seconds"].items() if k != "scoring"}
    _score(folder, scenes, names, scope, meta["max_dets"], meta, seconds)
    return folder


def _chosen(data: manifest.Dataset, config: EvaluateConfig) -> list[SceneExample]:
    rows = [s for s in data.scenes if s.split == config.split]
    layouts = list(dict.fromkeys(s.layout for s in rows))
    if config.limit and config.limit < len(layouts):
        layouts = [layouts[i * len(layouts) // config.limit] for i in range(config.limit)]
    kept = set(layouts)
    rows = [s for s in rows if s.layout in kept]
    if not rows:
        raise UserError(f"{data.folder}: split {config.split!r} has no scene")
    return rows


def _conditions(given: Sequence[str], host: Any, prefix: str) -> list[Condition]:
    """The frozen host, then its FRMs; under a prefix for fine-tuned weights."""
    named = condition_list.frm_folders(list(given), host.spec.source)
    found = [Condition(prefix or BASE, BASE if not prefix else FINETUNED)]
    for name, folder in named:
        one = condition_list.frm_condition(name, folder, host.spec.source)
        print(f"{prefix and prefix + '_'}{one.name}: {one.origin}")
        found.append(dataclasses.replace(one, name=f"{prefix}_{name}" if prefix else name))
    return found


def _detected(
    config: EvaluateConfig,
    data: manifest.Dataset,
    scenes: Sequence[SceneExample],
    sides: Sequence[tuple[Any, Sequence[Condition]]],
    chosen: Sequence[Condition],
    plan: Mapping[str, Any],
    out: Path,
) -> tuple[dict[tuple[str, str], dict[str, Any]], list[str]]:
    """Lines of detections.jsonl by (condition, path), those of an earlier run among them."""
    whole = {**plan, "conditions": {c.name: c.sha256 for c in chosen}}
    path, state = out / DETECTIONS_FILE, out / RUN_FILE
    done: dict[tuple[str, str], dict[str, Any]] = {}
    if state.is_file() and path.is_file() and not config.overwrite:
        before = files.read_json(state).get("plan", {})
        if {**before, "conditions": None} == {**whole, "conditions": None}:
            alike = {n for n, sha in whole["conditions"].items()
                     if before["conditions"].get(n) == sha}  # fmt: skip
            done = {k: v for k, v in _lines(path).items() if k[0] in alike}
    out.mkdir(parents=True, exist_ok=True)
    files.write_bytes(path, b"".join(_line(one) for one in done.values()))
    files.write_json(state, {"schema": SCHEMA, "plan": whole, "meta": None})
    names = {c.name for c in chosen}
    total = len(scenes) * len(chosen)
    skipped: dict[str, str] = {}
    with open(path, "ab") as stream, Progress(total, "detecting", "images", done=len(done)) as bar:
        for host, found in sides:
            mine = [c for c in found if c.name in names]
            for one in _sweep(config, data, scenes, host, mine, done, skipped):
                stream.write(_line(one))
                stream.flush()
                done[one["condition"], one["image"]] = one
                bar.advance()
    return done, [f"{path}: {reason}" for path, reason in skipped.items()]


def _sweep(
    config: EvaluateConfig,
    data: manifest.Dataset,
    scenes: Sequence[SceneExample],
    host: RfDetr,
    found: Sequence[Condition],
    done: Mapping[tuple[str, str], Any],
    skipped: dict[str, str],
) -> Iterator[dict[str, Any]]:
    """Every image that some condition lacks, a batch at a time; all conditions share the tap."""
    left = [s for s in scenes if any((c.name, s.path) not in done for c in found)]
    slots = {number: name for name, number in _coco_ids().items()}
    for start in range(0, len(left), config.batch_size):
        pictures, rows = [], []
        for scene in left[start : start + config.batch_size]:
            try:
                pictures.append(images.open_rgb(data.path(scene)))
                rows.append(scene)
            except images.BadImageError as error:
                skipped[scene.path] = str(error)
        if not rows:
            continue
        # The last batch is filled up with copies, so that one shape is compiled.
        filled = [pictures[k % len(pictures)] for k in range(config.batch_size)]
        features = host.tap(host.preprocess(filled))
        severity = np.array(
            [[PRISTINE, *LEVELS].index(rows[k % len(rows)].severity) for k in range(len(filled))],
            np.int32,
        )
        for condition in found:
            if all((condition.name, row.path) in done for row in rows):
                continue
            given = jax.device_get(host.resume(_recovered(features, condition, severity)))
            for k, row in enumerate(rows):
                if (condition.name, row.path) not in done:
                    yield {
                        "condition": condition.name,
                        "image": row.path,
                        **_kept(given.boxes[k], given.scores[k], given.labels[k], slots, config),
                    }


def _recovered(features: Features, condition: Condition, severity: np.ndarray) -> Features:
    if condition.recover is None:
        return features
    tokens = condition.recover(np.asarray(features.tokens, np.float32), None, severity)
    return features.replace(tokens=jax.numpy.asarray(tokens, features.tokens.dtype))


def _kept(
    boxes: np.ndarray,
    scores: np.ndarray,
    labels: np.ndarray,
    slots: Mapping[int, str],
    config: EvaluateConfig,
) -> dict[str, Any]:
    """The best detections of mapped categories, x, y, w, h in pixels."""
    order = [int(k) for k in np.argsort(-scores, kind="stable") if int(labels[k]) in slots]
    order = order[: config.max_dets]
    corners = boxes[order].reshape(-1, 4)
    sides = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
    return {
        "boxes": np.round(sides.astype(float), 2).tolist(),
        "scores": [round(float(scores[k]), 6) for k in order],
        "labels": [int(labels[k]) for k in order],
    }


def _write_coco(
    out: Path,
    scenes: Sequence[SceneExample],
    chosen: Sequence[Condition],
    done: Mapping[tuple[str, str], Mapping[str, Any]],
) -> None:
    """Truth and predictions as files that COCO's own tools read."""
    files.write_json(out / TRUTH_FILE, coco.export(scenes))
    for condition in chosen:
        found = [
            {"image_id": number, "category_id": label, "bbox": box, "score": score}
            for number, scene in enumerate(scenes, start=1)
            if (one := done.get((condition.name, scene.path)))
            for box, score, label in zip(one["boxes"], one["scores"], one["labels"], strict=True)
        ]
        files.write_text(out / PREDICTIONS / f"{condition.name}.json", json.dumps(found))


def _score(
    out: Path,
    scenes: Sequence[SceneExample],
    conditions: Sequence[str],
    scope: Scope,
    max_dets: int,
    meta: dict[str, Any],
    seconds: dict[str, float],
) -> None:
    start = time.monotonic()
    names = {number: name for name, number in _coco_ids().items()}
    predictions = {
        condition: [
            Detection(
                scenes[one["image_id"] - 1].path, tuple(one["bbox"]), names[one["category_id"]],
                one["score"],
            )
            for one in files.read_json(out / PREDICTIONS / f"{condition}.json")
        ]
        for condition in conditions
    }  # fmt: skip
    print(f"scoring: mAP of {len(predictions)} conditions, {scope.resamples} bootstrap samples")
    scored = detection.Scored(
        scenes, predictions, taxonomy.load().coco_categories, max_dets=max_dets
    )
    rows = scored.rows(scope)
    rows += [
        dataclasses.replace(row, condition=PRISTINE)
        for row in rows
        if row.condition == BASE and row.severity == PRISTINE
    ]
    truth = detection.truths([s for s in scenes if s.severity in LEVELS])
    burnt = {t.image for t in truth}
    meta |= {
        "comparisons": [dataclasses.asdict(one) for one in scored.comparisons(scope)],
        "by_category": scored.by_category(),
        "confusions": {
            name: _worst(truth, [d for d in found if d.image in burnt])
            for name, found in predictions.items()
        },
        "statistics": {"confidence": 0.95, "resamples": scope.resamples, "seed": scope.seed},
        "seconds": seconds | {"scoring": time.monotonic() - start},
    }
    told = [dataclasses.asdict(row) for row in rows]
    for row in told:
        del row["group"]
    files.write_json(
        out / RESULTS_FILE, {"schema": SCHEMA, "meta": meta, "rows": told, "groups": []}
    )


def _worst(truth: Sequence[Any], found: Sequence[Detection]) -> list[list[Any]]:
    """The commonest mistakes of localised boxes: (is, named, how often)."""
    counts = confusions(truth, found, least_score=_CONFUSED_SCORE)
    wrong = sorted(((n, pair) for pair, n in counts.items() if pair[0] != pair[1]), reverse=True,
                   key=lambda item: (item[0], str(item[1])))  # fmt: skip
    return [[*pair, n] for n, pair in wrong[:_CONFUSIONS]]


def _meta(
    config: EvaluateConfig,
    data: manifest.Dataset,
    scenes: Sequence[SceneExample],
    host: Any,
    chosen: Sequence[Condition],
    out: Path,
    skipped: Sequence[str],
) -> dict[str, Any]:
    layouts = len({s.layout for s in scenes})
    counts = {s: sum(row.severity == s for row in scenes) for s in (PRISTINE, *LEVELS)}
    burnt = sum(counts[level] for level in LEVELS)
    boxes = sum(bool(b.coco) for s in scenes for b in s.boxes)
    tap = host.spec.tap
    return {
        **provenance.circumstances(config.command),
        "data": {
            "name": data.info.name,
            "version": data.info.version,
            "hash": data.hash,
            "folders": provenance.places(data.folder, out),
        },
        "host": {
            "name": host.spec.name,
            "tap": tap.name,
            "weights_hash": host.spec.weights_hash,
            "shape": [len(host.model.stages), tap.tokens, tap.dim],
        },
        "split": config.split,
        "gallery": "",
        "gallery_size": 0,
        "pristine_view": 0,
        "limit": config.limit or None,
        "identities": layouts,
        "queries": {s: n for s, n in counts.items() if n},
        "conditions": provenance.told((*chosen, Condition(PRISTINE, PRISTINE))),
        "curves": provenance.curves(chosen, host.spec.name, out),
        "notes": [f"not read: {one}" for one in skipped],
        "max_dets": config.max_dets,
        "setting": (
            f"{burnt:,} burnt pictures of {layouts:,} places with {boxes:,} boxes of COCO "
            f"categories in all. Split “{config.split}” of {data.info.name}. A detection is right "
            f"where box and category are (mAP@0.5:0.95 over {len(taxonomy.load().coco_categories)} "
            f"mapped categories, {config.max_dets} detections a picture)."
        ),
        "ceiling": (
            "Condition Pristine is the frozen host on the same places before the fire: the ceiling."
        ),
    }


def _coco_ids() -> dict[str, int]:
    known = taxonomy.load()
    return {name: known.coco_id(name) for name in known.coco_categories}


def _line(one: Mapping[str, Any]) -> bytes:
    return json.dumps(one, ensure_ascii=False).encode("utf-8") + b"\n"


def _lines(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Whole lines; one that a kill has cut short is left out."""
    found = {}
    for text in path.read_bytes().split(b"\n"):
        try:
            one = json.loads(text)
            found[one["condition"], one["image"]] = one
        except (ValueError, KeyError, TypeError):
            continue
    return found
