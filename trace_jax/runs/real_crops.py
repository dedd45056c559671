"""Crops of real post-fire photographs against TRACE's pristine images (paper 5.3, Table 5).

A crop asks at L2, L3 or L4, as annotated (approximate: nobody measured a real fire). The gallery
is TRACE's pristine references (view 0) of the classes the crops are of. What counts as right:

  by class      any gallery image of the crop's class. Every crop can be scored so, since a real
                object has no TRACE identity; chance is the class's share of the gallery.
  by identity   only the pristine reference of the crop's own identity: the one in the crops'
                folder, which then joins the gallery, or TRACE's where the crop carries its
                identity. Crops without one are left out and counted.

Each is a results folder of its own, apart from the synthetic test set: `OUT/by_class` and, where
at least one crop has a reference, `OUT/by_identity`. Rows carry the crops' data set name. Token
errors are not measured: another camera's tokens do not align. In records, the path of one of
TRACE's images begins with its data set's name and a colon.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trace_jax.data import manifest
from trace_jax.data.feature_cache import FeatureCache, default_folder
from trace_jax.data.pairs import pristine_rows
from trace_jax.errors import UserError
from trace_jax.metrics import retrieval
from trace_jax.progress import Progress
from trace_jax.runs import cache as cache_run
from trace_jax.runs import evaluate, provenance, queries, scoring
from trace_jax.runs.conditions import Condition
from trace_jax.runs.evaluate import EvaluateConfig
from trace_jax.tasks import Record
from trace_jax.types import PRISTINE

LEVELS = ("L2", "L3", "L4")
BY_CLASS, BY_IDENTITY = "by_class", "by_identity"
NEIGHBOURS = 5


@dataclasses.dataclass(frozen=True)
class Match:
    """One way of matching crops with gallery images.

    Attributes:
      name: "by_class" or "by_identity".
      rows: [Q] rows of the crops' cache that ask, pristine references included.
      labels: [Q] what is right for each, a class or an identity as a number.
      gallery: gallery rows as (is it of the crops' cache, row).
      gallery_labels: [G].
      pristine_view: view of the crops' pristine images that asks as ceiling.
      chance: expected share of right first answers of a guess, over the damaged queries.
      notes: what a reader must know.
    """

    name: str
    rows: np.ndarray
    labels: np.ndarray
    gallery: tuple[tuple[bool, int], ...]
    gallery_labels: np.ndarray
    pristine_view: int
    chance: float
    notes: tuple[str, ...]


def run(
    config: EvaluateConfig,
    crops: str | Path,
    *,
    load_host: Callable[..., Any],
    crops_cache: str | Path | None = None,
) -> list[Path]:
    """Evaluates every condition on a folder of crops.

    Args:
      config: as for the synthetic set, whose pristine images answer: `gallery` "all" takes those
        of every split, "split" those of `split` alone. `split` also says which crops ask; `limit`
        keeps so many crops, evenly.
      crops: data folder of kind "crops"; its features are cached if they are not yet.
      load_host: `converters.load_host`.
      crops_cache: features of the crops; default: runs/cache/<host>/<tap>/<crops' name>.

    Returns:
      The results folders, by class first.

    Raises:
      UserError: the folder holds no crops that can ask.
    """
    start = time.monotonic()
    data = manifest.read(crops)
    if data.info.kind != "crops":
        raise UserError(f"{crops}: holds {data.info.kind}; --crops wants a folder of kind 'crops'.")
    trace, trace_folder = evaluate.open_features(config, load_host)
    cache = _crop_features(config, data, trace, load_host, crops_cache)
    out = config.out or evaluate.DEFAULT_ROOT / trace.source.host / trace.source.tap / (
        f"{data.info.name}/{config.split}"
    )
    found, notes = evaluate.choose_conditions(config, trace, out)
    found = evaluate.wanted(found, config.conditions)
    matches = select(cache, trace, config.split, config.gallery, config.limit)
    folders = []
    for match in matches:
        folder = out / match.name
        seconds = {"preparing": time.monotonic() - start}
        records = _measured(config, cache, trace, match, found)
        seconds["measuring"] = time.monotonic() - start - seconds["preparing"]
        meta = _meta(config, cache, trace, data, trace_folder, match, found, folder, notes)
        plan = f"crops {match.name} {cache.manifest.dataset_hash} {trace.manifest.dataset_hash}"
        evaluate.write_run(folder, plan, found, records, meta | {"seconds": seconds})
        scoring.score(
            folder, task_names=("retrieval",), resamples=config.resamples, seed=config.seed
        )
        folders.append(folder)
    return folders


def select(
    crops: FeatureCache, trace: FeatureCache, split: str, gallery: str, limit: int = 0
) -> list[Match]:
    """Which crops ask, which images answer, and what is right, by class and by identity.

    Args:
      crops, trace: features of the crops and of TRACE's objects, of one source.
      split: of the crops that ask, and of TRACE's where `gallery` is "split".
      gallery: "split" or "all".
      limit: only so many crops, evenly through the split; 0 for all. The gallery stays.

    Raises:
      UserError: no crop can ask.
    """
    if gallery not in queries.GALLERIES:
        raise UserError(f"--gallery={gallery}: unknown; known: {', '.join(queries.GALLERIES)}")
    answers = pristine_rows(trace, None if gallery == "all" else split)
    asking = [
        i for i, row in enumerate(crops.rows) if row.split == split and row.severity in LEVELS
    ]
    of_trace = {trace.rows[i].object_type for i in answers.values()}
    known = [i for i in asking if crops.rows[i].object_type in of_trace]
    if not asking:
        there = Counter(f"{row.severity} of split {row.split!r}" for row in crops.rows)
        raise UserError(
            f"{crops.folder}: no crop of split {split!r} is at {', '.join(LEVELS)}; there are "
            f"{', '.join(f'{n} at {state}' for state, n in sorted(there.items())) or 'none at all'}"
            ". Name the crops' split with --split."
        )
    if not known:
        raise UserError(
            f"{crops.folder}: no crop of split {split!r} at {', '.join(LEVELS)} is of a class "
            f"among the pristine images of {trace.folder}; they are of "
            f"{', '.join(sorted({crops.rows[i].object_type for i in asking}))}. Try --gallery=all."
        )
    types = {crops.rows[i].object_type for i in known}
    whole = len(known)
    if limit and limit < whole:
        known = [known[i * whole // limit] for i in range(limit)]
    strangers = [i for i in asking if crops.rows[i].object_type not in of_trace]
    notes = _notes(crops, split, strangers, known, whole)
    pristine = [(False, i) for i in answers.values() if trace.rows[i].object_type in types]
    references = pristine_rows(crops)
    found = [_by_class(crops, trace, known, pristine, references, notes)]
    by_identity = _by_identity(crops, trace, known, pristine, references, notes)
    return found if by_identity is None else [*found, by_identity]


def _by_class(
    crops: FeatureCache,
    trace: FeatureCache,
    known: Sequence[int],
    pristine: Sequence[tuple[bool, int]],
    references: dict[str, int],
    notes: Sequence[str],
) -> Match:
    # A crop's own reference is not in this gallery, so it may ask: that is the ceiling.
    ceiling = [references[name] for name in _identities(crops, known) if name in references]
    names = sorted({trace.rows[i].object_type for _, i in pristine})
    number = {name: n for n, name in enumerate(names)}
    gallery_labels = np.array([number[trace.rows[i].object_type] for _, i in pristine])
    ceiling = [i for i in ceiling if crops.rows[i].object_type in number]
    rows = np.array([*known, *ceiling], np.int64)
    labels = np.array([number[crops.rows[i].object_type] for i in rows])
    share = np.bincount(gallery_labels, minlength=len(names)) / len(gallery_labels)
    return Match(
        BY_CLASS, rows, labels, tuple(pristine), gallery_labels, 0,
        float(share[labels[: len(known)]].mean()), tuple(notes),
    )  # fmt: skip


def _by_identity(
    crops: FeatureCache,
    trace: FeatureCache,
    known: Sequence[int],
    pristine: Sequence[tuple[bool, int]],
    references: dict[str, int],
    notes: Sequence[str],
) -> Match | None:
    own = [(True, references[n]) for n in _identities(crops, known) if n in references]
    brought = {crops.rows[i].identity for _, i in own}
    # An identity of TRACE's that the crops bring their own reference of would be there twice.
    gallery = [g for g in pristine if trace.rows[g[1]].identity not in brought] + own
    shown = [(crops if mine else trace).rows[i] for mine, i in gallery]
    # The class must agree too: equal names of other classes are a coincidence.
    place = {(row.identity, row.object_type): n for n, row in enumerate(shown)}

    def target(row: int) -> int:
        return place.get((crops.rows[row].identity, crops.rows[row].object_type), -1)

    rows = [i for i in known if target(i) >= 0]
    if not rows:
        return None
    asked = _identities(crops, rows)
    second = [
        i
        for i, row in enumerate(crops.rows)
        if row.severity == PRISTINE and row.view == 1 and row.identity in asked
    ]
    ceiling = second or [references[name] for name in asked if name in references]
    left = len(known) - len(rows)
    more = [f"{left} crops have no pristine reference and were left out."] if left else []
    everyone = np.array([*rows, *ceiling], np.int64)
    return Match(
        BY_IDENTITY,
        everyone,
        np.array([target(i) for i in everyone]),
        tuple(gallery),
        np.arange(len(gallery)),
        1 if second else 0,
        1 / len(gallery),
        (*notes, *more),
    )


def _identities(crops: FeatureCache, rows: Sequence[int]) -> list[str]:
    return list(dict.fromkeys(crops.rows[i].identity for i in rows))


def _notes(
    crops: FeatureCache, split: str, strangers: Sequence[int], known: Sequence[int], whole: int
) -> list[str]:
    notes = ["Severity of real crops is approximate; L0 and L1 are not asked (paper 5.3)."]
    counts = Counter(crops.rows[i].severity for i in known)
    absent = [level for level in LEVELS if not counts[level]]
    if absent:
        notes.append(f"No crops at {', '.join(absent)}; the pooled row holds the levels there are.")
    else:
        notes.append("Rows over all levels pool L2 to L4.")
    elsewhere = sum(row.split != split and row.severity in LEVELS for row in crops.rows)
    if elsewhere:
        notes.append(f"{elsewhere} crops of other splits than {split!r} do not ask.")
    if len(known) < whole:
        notes.append(f"Only {len(known)} of {whole} crops ask (--limit).")
    if strangers:
        classes = Counter(crops.rows[i].object_type for i in strangers)
        listed = ", ".join(f"{name} ({n})" for name, n in sorted(classes.items()))
        notes.append(
            f"{len(strangers)} crops are of classes without a pristine image in the gallery and "
            f"were left out: {listed}."
        )
        print(f"note: {notes[-1]}")
    lost = crops.manifest.rows - len(crops)
    if lost:
        notes.append(f"{lost} crops could not be encoded; see failed.jsonl in their cache.")
    return notes


def _crop_features(
    config: EvaluateConfig,
    data: manifest.Dataset,
    trace: FeatureCache,
    load_host: Callable[..., Any],
    folder: str | Path | None,
) -> FeatureCache:
    source, plan = trace.source, trace.manifest
    folder = Path(folder or default_folder(source.host, source.tap, data.info.name))
    if folder.resolve() == trace.folder.resolve():
        raise UserError(
            f"{folder}: holds the features of {plan.dataset_name}. Give the crops, which are "
            "called so too, a cache of their own: --crops_cache=DIR."
        )
    if not (folder / "manifest.json").exists():
        print(f"features of the crops: caching them into {folder}")
        cache_run.run(
            cache_run.CacheConfig(
                host=source.host, data=data.folder, out=folder, weights=config.weights,
                tap=source.tap, dtype=plan.dtype, compute_dtype=plan.compute_dtype,
                max_tokens=plan.shape[-2] if plan.masked else 0,
                image_size=int(plan.preprocessing.get("image_size") or 0),
            ),
            load_host=load_host,
        )  # fmt: skip
    cache = FeatureCache.open(folder, expect=source, data_hash=data.hash)
    if cache.manifest.preprocessing != plan.preprocessing:
        raise UserError(
            f"{folder}: its pictures were prepared otherwise than those of {trace.folder}. Give "
            "another folder with --crops_cache=DIR, and they are prepared alike."
        )
    return cache


def _measured(
    config: EvaluateConfig,
    crops: FeatureCache,
    trace: FeatureCache,
    match: Match,
    found: Sequence[Condition],
) -> list[Record]:
    vectors_of = {
        mine: iter(cache.pooled([i for own, i in match.gallery if own == mine]))
        for mine, cache in ((False, trace), (True, crops))
    }
    gallery = np.stack([next(vectors_of[mine]).reshape(-1) for mine, _ in match.gallery])
    shown = [_shown(crops, trace, mine, i) for mine, i in match.gallery]
    records: list[Record] = []
    with Progress(len(match.rows) * len(found), match.name, "images") as progress:
        for condition in found:
            vectors = np.concatenate(
                [
                    pooled
                    for _, _, pooled in queries.recovered(
                        crops, match.rows, condition, config.batch_size, progress
                    )
                ]
            )
            answer = retrieval.search_labels(
                vectors, gallery, match.labels, match.gallery_labels, k=NEIGHBOURS
            )
            for position, row in enumerate(match.rows.tolist()):
                example = crops.rows[row]
                records.append(
                    Record(
                        condition=condition.name,
                        path=example.path,
                        shown=example.path,
                        identity=example.identity,
                        object_type=example.object_type,
                        group=evaluate.group_of(example.object_type),
                        severity=example.severity,
                        view=example.view,
                        draw=example.draw,
                        rank=int(answer.rank[position]),
                        similarity=float(answer.similarity[position]),
                        nearest=tuple(
                            (*shown[g], round(float(cosine), 7))
                            for g, cosine in zip(
                                answer.nearest[position],
                                answer.nearest_similarity[position],
                                strict=True,
                            )
                        ),
                    )
                )
    base = [r for r in records if r.condition == found[0].name]
    return records + queries.pristine_records(base, match.pristine_view)


def _shown(crops: FeatureCache, trace: FeatureCache, mine: bool, row: int) -> tuple[str, str]:
    """Identity and path of a gallery image; one path may name a picture in either folder."""
    example = (crops if mine else trace).rows[row]
    prefix = "" if mine else f"{trace.manifest.dataset_name}:"
    return example.identity, prefix + example.path


def _meta(
    config: EvaluateConfig,
    crops: FeatureCache,
    trace: FeatureCache,
    data: manifest.Dataset,
    trace_folder: Path | None,
    match: Match,
    found: Sequence[Condition],
    folder: Path,
    notes: Sequence[str],
) -> dict[str, Any]:
    rows = [crops.rows[i] for i in match.rows]
    damaged = [row for row in rows if row.severity != PRISTINE]
    counts = Counter(row.severity for row in rows)
    chosen = queries.Queries(
        rows=match.rows,
        reference=np.array([], np.int64),
        gallery=np.arange(len(match.gallery)),
        targets=match.labels,
        pristine_view=match.pristine_view,
        identities=len({row.identity for row in damaged}),
        counts={s: counts[s] for s in (*LEVELS, PRISTINE) if counts[s]},
        notes=match.notes,
    )
    meta = provenance.describe(
        config, crops, data.folder, chosen, found, folder, [*match.notes, *notes]
    )
    places = []
    if trace_folder is not None:  # the gallery's pictures lie there
        places = [os.path.relpath(trace_folder, folder), str(trace_folder)]
    what = "an image of its class" if match.name == BY_CLASS else "its own pristine reference"
    by_class = match.name == BY_CLASS
    own = len({row.identity for row in rows if row.severity == PRISTINE})
    ceiling = (
        f"Condition Pristine asks with the pristine reference of {own} of the crops' identities"
        + (
            ", which is not in the gallery."
            if by_class
            else " in a second view."
            if match.pristine_view
            else ", which is in the gallery: 100% by construction."
        )
        if own
        else "The crops bring no pristine reference, so there is no ceiling."
    )
    return meta | {
        "data": meta["data"] | {"galleries": {trace.manifest.dataset_name: places}},
        "gallery": f"pristine images of {trace.manifest.dataset_name}, {match.name}",
        "setting": (
            f"{len(damaged):,} crops of real post-fire photographs at L2 to L4. For each the host "
            f"looks for {what} among {len(match.gallery):,} pristine images; a guess would be "
            f"right {match.chance:.2%} of the time."
        ),
        "ceiling": ceiling,
        "crops": {"match": match.name, "chance": match.chance, "levels": list(LEVELS)},
    }
