"""Which rows of a cache ask and which answer, and what one condition makes of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from trace_jax import tasks
from trace_jax.data.feature_cache import FeatureCache
from trace_jax.data.loader import ordered, pristine_rows
from trace_jax.data.pooling import mean_tokens
from trace_jax.errors import UserError
from trace_jax.progress import Progress
from trace_jax.runs.conditions import PRISTINE, Condition
from trace_jax.tasks.records import Record
from trace_jax.types import LEVELS, SEVERITIES, SPLITS, SceneExample
from trace_jax.types import PRISTINE as PRISTINE_STATE

GALLERIES = ("split", "all")


@dataclasses.dataclass(frozen=True)
class Queries:
    """Attributes:
    rows: [Q] cache rows that ask: damaged ones (view 0) and pristine ones (views 0 and 1).
    reference: [Q] cache row of each query's identity in pristine view 0, its target.
    gallery: [G] cache rows that answer.
    targets: [Q] each query's position in the gallery.
    pristine_view: which pristine view counts as a query, 1 where the data has a second view.
    identities: identities that ask.
    counts: queries by severity; of pristine ones those of `pristine_view`.
    notes: what a reader must know: levels without images, queries left out.
    """

    rows: np.ndarray
    reference: np.ndarray
    gallery: np.ndarray
    targets: np.ndarray
    pristine_view: int
    identities: int
    counts: dict[str, int]
    notes: tuple[str, ...]


def select(cache: FeatureCache, split: str, gallery: str, limit: int = 0) -> Queries:
    """Chooses queries and gallery.

    Args:
      cache: the features.
      split: whose identities ask.
      gallery: "split", their pristine references, or "all", those of every cached split.
      limit: only so many identities ask, evenly through the split; 0 for all. The gallery stays.

    Raises:
      UserError: unknown names, or nothing is left to ask.
    """
    if split not in SPLITS:
        raise UserError(f"--split={split}: unknown; known: {', '.join(SPLITS)}")
    if gallery not in GALLERIES:
        raise UserError(f"--gallery={gallery}: unknown; known: {', '.join(GALLERIES)}")
    if any(isinstance(row, SceneExample) for row in cache.rows[:1]):
        raise UserError(
            f"{cache.folder}: holds features of scenes; this evaluates objects. Give their cache."
        )
    answers = pristine_rows(cache, None if gallery == "all" else split)
    place = {identity: index for index, identity in enumerate(answers)}
    mine = [i for i, row in enumerate(cache.rows) if row.split == split]
    if not mine:
        raise UserError(
            f"{cache.folder}: has no images of split {split!r}; it holds "
            f"{', '.join(sorted({row.split for row in cache.rows})) or 'nothing'}. Cache the split "
            "(bin/cache_features --split=all) or name another with --split."
        )
    names = list(pristine_rows(cache, split))
    if limit and limit < len(names):
        names = [names[i * len(names) // limit] for i in range(limit)]
    chosen = set(names)
    asking = [
        i
        for i in mine
        if cache.rows[i].identity in chosen
        and (cache.rows[i].view == 0 or cache.rows[i].severity == PRISTINE_STATE)
    ]
    second = any(
        cache.rows[i].view == 1 and cache.rows[i].severity == PRISTINE_STATE for i in asking
    )
    asking = [i for i in asking if cache.rows[i].view <= 1]
    damaged = [i for i in asking if cache.rows[i].severity in LEVELS]
    if not damaged:
        raise UserError(
            f"{cache.folder}: split {split!r} has no damaged image whose identity has a pristine "
            "reference (view 0); there is nothing to evaluate."
        )
    view = 1 if second else 0
    counts = Counter(cache.rows[i].severity for i in damaged)
    counts[PRISTINE_STATE] = sum(
        cache.rows[i].severity == PRISTINE_STATE and cache.rows[i].view == view for i in asking
    )
    return Queries(
        rows=np.array(asking, np.int64),
        reference=np.array([answers[cache.rows[i].identity] for i in asking], np.int64),
        gallery=np.array(list(answers.values()), np.int64),
        targets=np.array([place[cache.rows[i].identity] for i in asking], np.int64),
        pristine_view=view,
        identities=len({cache.rows[i].identity for i in damaged}),
        counts={s: counts[s] for s in (*LEVELS, PRISTINE_STATE) if counts[s]},
        notes=tuple(_notes(cache, mine, limit, chosen, counts, view)),
    )


def measure(
    cache: FeatureCache,
    queries: Queries,
    condition: Condition,
    group_of: Callable[[str], str],
    batch_size: int,
    progress: Progress,
) -> list[Record]:
    """Recovers every query's features and measures both tasks.

    Args:
      cache, queries: whose features.
      condition: what recovers them.
      group_of: object type -> "hazard", "everyday" or "".
      batch_size: images a call; the last batch is padded, so one shape is compiled.
      progress: advanced by images.

    Raises:
      UserError: recovered features are not finite.
    """
    near: list[dict[str, list[Any]]] = []
    pooled = []
    at = 0
    for tokens, mask, vectors in recovered(cache, queries.rows, condition, batch_size, progress):
        pooled.append(vectors)
        reference = queries.reference[at : at + len(vectors)]
        target = cache.tokens(reference, "float32")
        shared = None if mask is None else mask & cache.mask(reference)
        near.append(tasks.TASKS["feature_recovery"].measure(tokens, target, shared))
        at += len(vectors)
    found = tasks.TASKS["retrieval"].measure(
        np.concatenate(pooled),
        cache.pooled(queries.gallery).reshape(len(queries.gallery), -1),
        queries.targets,
        [(cache.rows[i].identity, cache.rows[i].path) for i in queries.gallery],
    )
    features = {name: [v for part in near for v in part[name]] for name in near[0]}
    return [
        _record(cache, row, position, condition.name, group_of, features, found)
        for position, row in enumerate(queries.rows.tolist())
    ]


def recovered(
    cache: FeatureCache,
    rows: np.ndarray,
    condition: Condition,
    batch_size: int,
    progress: Progress,
) -> Iterator[tuple[np.ndarray, np.ndarray | None, np.ndarray]]:
    """Recovered features of rows, batch by batch.

    Args:
      cache, rows: whose features; [Q] indices.
      condition: what recovers them.
      batch_size: images a call; the last batch is padded, so one shape is compiled.
      progress: advanced by images.

    Yields:
      Tokens [n, ..., N, D], mask [n, ..., N] or None, and pooled vectors [n, D]; padding cut off.

    Raises:
      UserError: recovered features are not finite.
    """
    for batch in ordered(cache, rows, batch_size=batch_size):
        real = int(batch["weight"].sum())
        index = batch["index"]
        tokens, mask = batch["tokens"], batch["mask"]
        if condition.recover is not None:
            severity = [SEVERITIES.index(cache.rows[i].severity) for i in index]
            tokens = condition.recover(tokens, mask, np.array(severity, np.int32))
        tokens, mask = tokens[:real], None if mask is None else mask[:real]
        vectors = mean_tokens(tokens, mask).reshape(real, -1)
        _require_finite(cache, condition, index[:real], vectors)
        yield tokens, mask, vectors
        progress.advance(real, condition.name)


def pristine_records(base: Sequence[Record], pristine_view: int) -> list[Record]:
    """Condition "pristine": in each query's place stands its identity's pristine query.

    Retrieval takes it from `pristine_view`; feature recovery from view 0, the reference itself,
    because tokens of another camera do not align with it.
    """
    asked = [r for r in base if r.severity == PRISTINE_STATE]
    by_view = {(r.identity, r.view): r for r in asked}
    found = []
    for record in base:
        if record.severity == PRISTINE_STATE:
            found.append(dataclasses.replace(record, condition=PRISTINE))
            continue
        stand_in = by_view.get((record.identity, pristine_view))
        reference = by_view.get((record.identity, 0))
        found.append(
            dataclasses.replace(
                record,
                condition=PRISTINE,
                shown=stand_in.shown if stand_in else "",
                tokens=reference.tokens if reference else None,
                mse=reference.mse if reference else None,
                cosine=reference.cosine if reference else None,
                rank=stand_in.rank if stand_in else None,
                similarity=stand_in.similarity if stand_in else None,
                nearest=stand_in.nearest if stand_in else None,
            )
        )
    return found


def _record(
    cache: FeatureCache,
    row: int,
    position: int,
    condition: str,
    group_of: Callable[[str], str],
    features: dict[str, list[Any]],
    found: dict[str, list[Any]],
) -> Record:
    example = cache.rows[row]
    # A second pristine view has no aligned reference, so its tokens are not compared.
    aligned = example.view == 0
    return Record(
        condition=condition,
        path=example.path,
        shown=example.path,
        identity=example.identity,
        object_type=example.object_type,
        group=group_of(example.object_type),
        severity=example.severity,
        view=example.view,
        draw=example.draw,
        **{name: values[position] if aligned else None for name, values in features.items()},
        **{name: values[position] for name, values in found.items()},
    )


def _require_finite(
    cache: FeatureCache, condition: Condition, rows: np.ndarray, vectors: np.ndarray
) -> None:
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        example = cache.rows[int(rows[int(np.argmin(finite))])]
        blame = "the cache" if condition.recover is None else condition.origin or condition.name
        raise UserError(
            f"{condition.name}: features of {example.path} are not finite. Look at {blame}."
        )


def _notes(
    cache: FeatureCache,
    mine: Sequence[int],
    limit: int,
    chosen: set[str],
    counts: Counter[str],
    view: int,
) -> list[str]:
    notes = []
    missing = [level for level in LEVELS if not counts[level]]
    if missing:
        notes.append(f"No images at {', '.join(missing)}; “L0–L4” pools the levels that are there.")
    referenced = set(pristine_rows(cache, cache.rows[mine[0]].split))
    alone = [i for i in mine if cache.rows[i].identity not in referenced]
    if alone:
        names = {cache.rows[i].identity for i in alone}
        notes.append(
            f"{len(alone)} images of {len(names)} identities have no pristine reference in the "
            "cache and were left out."
        )
    if limit and limit < len(referenced):
        notes.append(f"Only {limit} of {len(referenced)} identities ask (--limit).")
    if view == 0:
        notes.append("The data has no second pristine view: the pristine ceiling is trivial.")
    elif counts[PRISTINE_STATE] < len(chosen):
        notes.append(
            f"{len(chosen) - counts[PRISTINE_STATE]} identities have no second pristine view."
        )
    lost = cache.manifest.rows - len(cache)
    if lost:
        notes.append(
            f"{lost} images of the data set could not be encoded; see failed.jsonl in the cache."
        )
    return notes
