"""Recall@k of degraded queries in a gallery of pristine images (paper C.2).

Each query has exactly one target. Gallery images are ranked by cosine similarity; a tie never
favours the target, so duplicated gallery vectors or a collapsed feature space cannot score.
"""

from __future__ import annotations

import dataclasses

import numpy as np

# Two cosines closer than this are one tie. Matrix products round equal vectors differently by
# their column, about 1e-15 here; features are float32 at best, where neighbours are 6e-8 apart.
TIE = 1e-12


@dataclasses.dataclass(frozen=True)
class Search:
    """What a gallery search found for each of Q queries.

    Attributes:
      rank: [Q] int64, number of other gallery images at least as similar as the target; 0 is best.
      similarity: [Q] float64, cosine with the target.
      nearest: [Q, K] int64, gallery indices, best first; the target stands after its ties.
      nearest_similarity: [Q, K] float64.
    """

    rank: np.ndarray
    similarity: np.ndarray
    nearest: np.ndarray
    nearest_similarity: np.ndarray


def search(
    queries: np.ndarray,
    gallery: np.ndarray,
    targets: np.ndarray,
    *,
    k: int = 5,
    chunk: int = 4096,
) -> Search:
    """Ranks the gallery for every query, in float64, one block of queries and gallery at a time.

    Args:
      queries: [Q, D]; lengths do not matter. A vector of length zero has cosine 0 with all.
      gallery: [G, D].
      targets: [Q] index of each query's one right gallery image.
      k: how many neighbours to return; at most G are.
      chunk: rows of either side that are compared at a time; memory grows with its square.

    Raises:
      ValueError: a value is not finite, shapes do not fit, the gallery is empty, or a target lies
        outside it.
    """
    left, right = _unit(queries, "queries"), _unit(gallery, "gallery")
    targets = np.asarray(targets, np.int64)
    if left.shape[1:] != right.shape[1:]:
        raise ValueError(f"queries {left.shape} and gallery {right.shape} differ in width")
    if len(right) == 0:
        raise ValueError("the gallery is empty")
    if targets.shape != (len(left),):
        raise ValueError(f"targets {targets.shape} must be [{len(left)}]")
    if len(targets) and not (0 <= targets.min() and targets.max() < len(right)):
        raise ValueError(f"a target lies outside the gallery of {len(right)}")
    blocks = [
        _search_block(left[at : at + chunk], right, targets[at : at + chunk], k, chunk)
        for at in range(0, max(len(left), 1), chunk)
    ]
    return Search(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))


def search_labels(
    queries: np.ndarray,
    gallery: np.ndarray,
    labels: np.ndarray,
    gallery_labels: np.ndarray,
    *,
    k: int = 5,
    chunk: int = 4096,
) -> Search:
    """`search` where any gallery image with the query's label is right.

    The most similar image of the label is the target; others of the label neither help nor harm,
    so `rank` counts images of other labels at least as similar as it.

    Args:
      queries: [Q, D]; gallery: [G, D].
      labels: [Q] integers; gallery_labels: [G]. Every query's label is in the gallery.
      k: how many neighbours to return; at most G are.
      chunk: queries compared at a time.

    Raises:
      ValueError: as for `search`, or the gallery lacks a query's label.
    """
    left, right = _unit(queries, "queries"), _unit(gallery, "gallery")
    labels, gallery_labels = np.asarray(labels), np.asarray(gallery_labels)
    if left.shape[1:] != right.shape[1:]:
        raise ValueError(f"queries {left.shape} and gallery {right.shape} differ in width")
    if labels.shape != (len(left),) or gallery_labels.shape != (len(right),):
        raise ValueError(f"labels {labels.shape} and {gallery_labels.shape} do not fit the vectors")
    if len(right) == 0:
        raise ValueError("the gallery is empty")
    if not np.isin(labels, gallery_labels).all():
        raise ValueError("the gallery lacks the label of a query")
    parts = []
    for at in range(0, max(len(left), 1), chunk):
        cosines = left[at : at + chunk] @ right.T  # [q, G]
        same = labels[at : at + chunk, None] == gallery_labels[None]
        similarity = np.where(same, cosines, -np.inf).max(axis=1, initial=-np.inf)
        rank = (~same & (cosines >= similarity[:, None] - TIE)).sum(axis=1)
        # Ties go to the other labels, as they do in the rank.
        shown = np.where(same, cosines - TIE, cosines)
        index = np.broadcast_to(np.arange(len(right)), cosines.shape)
        nearest = np.lexsort((index, same, -shown), axis=1)[:, :k]
        found = np.take_along_axis(cosines, nearest, axis=1)
        parts.append((rank.astype(np.int64), similarity, nearest, found))
    return Search(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def recall_at(rank: np.ndarray, k: int) -> np.ndarray:
    """1.0 where the target is among the first k, [Q] float64; R@k is its mean."""
    return (np.asarray(rank) < k).astype(np.float64)


def _search_block(
    queries: np.ndarray, gallery: np.ndarray, targets: np.ndarray, k: int, chunk: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    count = len(queries)
    similarity = np.einsum("qd,qd->q", queries, gallery[targets])
    rank = np.zeros(count, np.int64)
    best = np.empty((count, 0))
    best_index = np.empty((count, 0), np.int64)
    for start in range(0, len(gallery), chunk):
        cosines = queries @ gallery[start : start + chunk].T  # [q, g]
        inside = np.flatnonzero((targets >= start) & (targets < start + cosines.shape[1]))
        # The target itself counts as the last of its ties.
        cosines[inside, targets[inside] - start] = -np.inf
        rank += (cosines >= similarity[:, None] - TIE).sum(axis=1)
        cosines[inside, targets[inside] - start] = similarity[inside] - TIE
        index = np.broadcast_to(np.arange(start, start + cosines.shape[1]), cosines.shape)
        best = np.concatenate([best, cosines], axis=1)
        best_index = np.concatenate([best_index, index], axis=1)
        best, best_index = _largest(best, best_index, targets, k)
    hit = best_index == targets[:, None]
    return rank, similarity, best_index, np.where(hit, similarity[:, None], best)


def _largest(
    values: np.ndarray, index: np.ndarray, targets: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    if values.shape[1] > 4 * k:
        # Everything that ties with the k-th value stays in, so the order below is exact.
        floor = -np.partition(-values, k - 1, axis=1)[:, k - 1 : k]
        keep = int((values >= floor).sum(axis=1).max())
        chosen = np.argpartition(-values, keep - 1, axis=1)[:, :keep]
        values = np.take_along_axis(values, chosen, axis=1)
        index = np.take_along_axis(index, chosen, axis=1)
    order = np.lexsort((index, index == targets[:, None], -values), axis=1)[:, :k]
    return np.take_along_axis(values, order, axis=1), np.take_along_axis(index, order, axis=1)


def _unit(vectors: np.ndarray, name: str) -> np.ndarray:
    vectors = np.asarray(vectors, np.float64)
    if vectors.ndim != 2:
        raise ValueError(f"{name} must be [rows, D], not {vectors.shape}")
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise ValueError(f"{name}: row {int(np.argmin(finite))} is not finite")
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)
    scaled = np.divide(vectors, largest, out=np.zeros_like(vectors), where=largest > 0)
    norms = np.sqrt(np.einsum("rd,rd->r", scaled, scaled))[:, None]
    return np.divide(scaled, norms, out=np.zeros_like(scaled), where=norms > 0)
