"""Pristine-state retrieval (paper C.2, Table 3): find a burnt object's own pristine image.

Queries are mean-pooled tokens after recovery; the gallery holds the pristine reference view of
every identity, never recovered; the score is cosine similarity. Each query has one target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trace_jax.metrics import retrieval
from trace_jax.tasks.base import BASE, Gain, Task, mean_of
from trace_jax.tasks.records import Columns

NEIGHBOURS = 5


def measure(
    queries: np.ndarray,
    gallery: np.ndarray,
    targets: np.ndarray,
    names: Sequence[tuple[str, str]],
) -> dict[str, list[Any]]:
    """Record fields of a batch.

    Args:
      queries: [Q, D] pooled features; length does not matter.
      gallery: [G, D] pooled pristine features.
      targets: [Q] each query's gallery index.
      names: [G] identity and path of each gallery image.

    Raises:
      ValueError: see `metrics.retrieval.search`.
    """
    found = retrieval.search(queries, gallery, targets, k=NEIGHBOURS)
    nearest = [
        tuple((*names[index], round(cosine, 7)) for index, cosine in zip(row, values, strict=True))
        for row, values in zip(
            found.nearest.tolist(), found.nearest_similarity.tolist(), strict=True
        )
    ]
    return {
        "rank": found.rank.tolist(),
        "similarity": found.similarity.tolist(),
        "nearest": nearest,
    }


def _recall(k: int) -> Callable[[Columns], np.ndarray]:
    def values(columns: Columns) -> np.ndarray:
        rank = columns.number["rank"]
        return np.where(np.isnan(rank), np.nan, retrieval.recall_at(rank, k))

    return values


RETRIEVAL = Task(
    name="retrieval",
    measure=measure,
    metrics=(
        mean_of("r_at_1", _recall(1)),
        mean_of("r_at_5", _recall(5)),
    ),
    gains=(
        Gain("r_at_1_gain", "r_at_1", BASE),
        Gain("r_at_1_gain_over_ridge", "r_at_1", "ridge"),
        Gain("r_at_1_gain_over_mean_shift", "r_at_1", "mean_shift"),
    ),
    has_gallery=True,
)
