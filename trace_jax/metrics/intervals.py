"""How sure a mean is: bootstrap by identity, and a paired test.

Images of one identity are not independent, so what is drawn with replacement is the identity with
all its images (a cluster bootstrap, percentile interval). Only per-identity sums are resampled: a
mean is one matrix product, and the same seeded draws serve every number of a run.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np

RESAMPLES = 2000
FLIPS = 9999
_EXACT_CLUSTERS = 13  # 2^13 sign patterns are fewer than FLIPS: enumerate them
_BLOCK = 250


@dataclasses.dataclass(frozen=True)
class Interval:
    """A number with its 95% interval.

    Attributes:
      value: the estimate on the sample itself.
      low, high: its percentile interval, or None where fewer than two identities leave nothing to
        resample. A mean of equal values (0% or 100%) has an interval of width zero.
      n: examples it rests on.
      clusters: identities it rests on.
    """

    value: float
    low: float | None
    high: float | None
    n: int
    clusters: int


def mean_interval(
    values: np.ndarray,
    clusters: Sequence[str] | np.ndarray,
    weights: np.ndarray | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    confidence: float = 0.95,
) -> Interval:
    """The (weighted) mean of values and its cluster-bootstrap interval.

    Args:
      values: [n] one number an example.
      clusters: [n] the identity of each.
      weights: [n] positive, for example tokens an image has; None means equal.
      resamples: how many bootstrap samples.
      seed: of the draws; the same seed and number of identities give the same draws.
      confidence: share of the bootstrap distribution inside the interval.

    Raises:
      ValueError: no values, lengths differ, a value is not finite, or a weight is not positive.
    """
    totals, masses = _cluster_sums(values, clusters, weights)
    low, high = bounds(
        lambda counts: (counts @ totals) / (counts @ masses),
        len(totals),
        resamples,
        seed,
        confidence,
    )
    return Interval(
        float(totals.sum() / masses.sum()), low, high, len(np.asarray(values)), len(totals)
    )


def paired_interval(
    values: np.ndarray,
    rivals: np.ndarray,
    clusters: Sequence[str] | np.ndarray,
    weights: np.ndarray | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    confidence: float = 0.95,
) -> Interval:
    """The mean of `values - rivals` on the same examples, with its interval; see mean_interval."""
    difference = np.asarray(values, np.float64) - np.asarray(rivals, np.float64)
    return mean_interval(
        difference, clusters, weights, resamples=resamples, seed=seed, confidence=confidence
    )


def relative_interval(
    values: np.ndarray,
    rivals: np.ndarray,
    clusters: Sequence[str] | np.ndarray,
    weights: np.ndarray | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    confidence: float = 0.95,
) -> Interval | None:
    """mean(values) / mean(rivals) - 1 on the same examples; -0.3 is "30% below".

    Returns:
      None where the rivals' mean is not above zero, in the sample or in any resample.
    """
    tops, masses = _cluster_sums(values, clusters, weights)
    bottoms, _ = _cluster_sums(rivals, clusters, weights)
    if bottoms.sum() <= 0:
        return None

    def change(counts: np.ndarray) -> np.ndarray:
        below = counts @ bottoms
        missing = np.full_like(below, np.nan)
        return np.divide(counts @ tops, below, out=missing, where=below > 0) - 1.0

    low, high = bounds(change, len(tops), resamples, seed, confidence)
    if low is not None and np.isnan(low):
        return None
    value = float(tops.sum() / bottoms.sum() - 1.0)
    return Interval(value, low, high, len(np.asarray(values)), len(masses))


def sign_flip_p(
    values: np.ndarray,
    rivals: np.ndarray,
    clusters: Sequence[str] | np.ndarray,
    weights: np.ndarray | None = None,
    *,
    flips: int = FLIPS,
    seed: int = 0,
) -> float:
    """Two-sided p-value of a paired permutation test that swaps both sides identity by identity.

    Under "both are equally good" the sign of every identity's summed difference is a coin toss.
    Up to 13 identities all tosses are enumerated; above, `flips` seeded ones are drawn, the
    observed one counts as drawn too, and so p is never 0. Not corrected for many comparisons.
    """
    difference = np.asarray(values, np.float64) - np.asarray(rivals, np.float64)
    totals, _ = _cluster_sums(difference, clusters, weights)
    return permutation_p(lambda s: np.abs(s @ totals), len(totals), flips=flips, seed=seed)


def permutation_p(
    statistic: Callable[[np.ndarray], np.ndarray], clusters: int, *, flips: int, seed: int
) -> float:
    """p-value of a sign-flip test: how often random signs reach what the data show.

    Args:
      statistic: signs [k, clusters] -> [k]; the data themselves are all signs +1.
      clusters: identities.
      flips: how many sign patterns are drawn where they are too many to enumerate.
      seed: of the draws.
    """
    observed = float(statistic(np.ones((1, clusters)))[0])
    slack = 1e-12 * max(abs(observed), 1e-300)
    if clusters <= _EXACT_CLUSTERS:
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=clusters)))
        return float(np.mean(statistic(signs) >= observed - slack))
    reached, done = 0, 0
    for block in range(-(-flips // _BLOCK)):
        signs = _drawn(_signs, clusters, seed, block)[: flips - done]
        done += len(signs)
        reached += int((statistic(signs) >= observed - slack).sum())
    return (1 + reached) / (1 + done)


def _cluster_sums(
    values: np.ndarray, clusters: Sequence[str] | np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    values = np.asarray(values, np.float64)
    names = np.asarray(clusters)
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, np.float64)
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"values must be a non-empty [n], not {values.shape}")
    if names.shape != values.shape or weights.shape != values.shape:
        raise ValueError(
            f"values {values.shape}, clusters {names.shape}, weights {weights.shape} differ"
        )
    if not np.isfinite(values).all():
        raise ValueError(f"value {int(np.argmin(np.isfinite(values)))} is not finite")
    if not (np.isfinite(weights).all() and (weights > 0).all()):
        raise ValueError("weights must be finite and positive")
    unique, where = np.unique(names, return_inverse=True)
    totals = np.bincount(where, weights=values * weights, minlength=len(unique))
    masses = np.bincount(where, weights=weights, minlength=len(unique))
    return totals, masses


def bounds(
    statistic: Callable[[np.ndarray], np.ndarray],
    clusters: int,
    resamples: int,
    seed: int,
    confidence: float = 0.95,
) -> tuple[float | None, float | None]:
    """Percentile bounds of a statistic: how often each cluster was drawn [k, clusters] -> [k]."""
    if clusters < 2 or resamples < 1:
        return None, None
    drawn, done = [], 0
    for block in range(-(-resamples // _BLOCK)):
        counts = _drawn(_counts, clusters, seed, block)[: resamples - done]
        done += len(counts)
        drawn.append(statistic(counts))
    tail = 100.0 * (1.0 - confidence) / 2.0
    low, high = np.percentile(np.concatenate(drawn), [tail, 100.0 - tail])
    return float(low), float(high)


def _drawn(
    draw: Callable[[int, int, int], np.ndarray], clusters: int, seed: int, block: int
) -> np.ndarray:
    # Kept between calls only while small: a run asks for the same draws hundreds of times.
    draw = draw if clusters <= 1000 else draw.__wrapped__  # type: ignore[attr-defined]
    return draw(clusters, seed, block).astype(np.float64)


@functools.lru_cache(maxsize=256)
def _counts(clusters: int, seed: int, block: int) -> np.ndarray:
    generator = np.random.default_rng([seed, block, clusters, 1])
    drawn = generator.integers(0, clusters, size=(_BLOCK, clusters))
    offsets = np.arange(_BLOCK)[:, None] * clusters
    counts = np.bincount((drawn + offsets).ravel(), minlength=_BLOCK * clusters)
    return counts.reshape(_BLOCK, clusters).astype(np.int16)


@functools.lru_cache(maxsize=256)
def _signs(clusters: int, seed: int, block: int) -> np.ndarray:
    generator = np.random.default_rng([seed, block, clusters, 2])
    return (generator.integers(0, 2, size=(_BLOCK, clusters)) * 2 - 1).astype(np.int8)
