"""Means of ratios of sums (micro-F1, precision, description score): intervals and paired tests.

A statistic is the mean over its terms of sum(top) / sum(bottom); a weighted mean is one term with
top = value * weight. Resampling is by identity, as in metrics.intervals, whose draws it shares.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trace_jax.metrics import intervals
from trace_jax.metrics.intervals import Interval

Term = tuple[np.ndarray, np.ndarray]


def interval(
    terms: Sequence[Term],
    clusters: Sequence[str] | np.ndarray,
    *,
    resamples: int = intervals.RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The statistic and its cluster-bootstrap interval.

    Args:
      terms: (top [n], bottom [n]) each; bottoms are not negative.
      clusters: [n] identity of each example.
      resamples, seed: see intervals.mean_interval.

    Raises:
      ValueError: no examples, lengths differ, a value is not finite.
    """
    sums = _sums(terms, clusters)
    low, high = intervals.bounds(lambda c: statistic(c @ sums), len(sums), resamples, seed)
    value = float(statistic(sums.sum(axis=0)[None])[0])
    return Interval(value, _plain(low), _plain(high), len(np.asarray(clusters)), len(sums))


def difference(
    terms: Sequence[Term],
    rivals: Sequence[Term],
    clusters: Sequence[str] | np.ndarray,
    *,
    resamples: int = intervals.RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The statistic of `terms` minus that of `rivals` on the same examples."""
    left, right = _sums(terms, clusters), _sums(rivals, clusters)

    def change(counts: np.ndarray) -> np.ndarray:
        return statistic(counts @ left) - statistic(counts @ right)

    low, high = intervals.bounds(change, len(left), resamples, seed)
    value = float(change(np.ones((1, len(left))))[0])
    return Interval(value, _plain(low), _plain(high), len(np.asarray(clusters)), len(left))


def relative(
    terms: Sequence[Term],
    rivals: Sequence[Term],
    clusters: Sequence[str] | np.ndarray,
    *,
    resamples: int = intervals.RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """The statistic of `terms` over that of `rivals`, minus 1; -0.3 is "30% below".

    Returns:
      None where the rivals' statistic is not above zero, in the sample or in any resample.
    """
    left, right = _sums(terms, clusters), _sums(rivals, clusters)

    def change(counts: np.ndarray) -> np.ndarray:
        below = statistic(counts @ right)
        missing = np.full_like(below, np.nan)
        return np.divide(statistic(counts @ left), below, out=missing, where=below > 0) - 1.0

    value = float(change(np.ones((1, len(left))))[0])
    if np.isnan(value):
        return None
    low, high = intervals.bounds(change, len(left), resamples, seed)
    if low is not None and np.isnan(low):
        return None
    return Interval(value, low, high, len(np.asarray(clusters)), len(left))


def sign_flip_p(
    terms: Sequence[Term],
    rivals: Sequence[Term],
    clusters: Sequence[str] | np.ndarray,
    *,
    flips: int = intervals.FLIPS,
    seed: int = 0,
) -> float:
    """Two-sided p-value of a permutation test that swaps both sides identity by identity."""
    left, right = _sums(terms, clusters), _sums(rivals, clusters)
    middle, half = (left + right).sum(axis=0) / 2, (left - right) / 2

    def change(signs: np.ndarray) -> np.ndarray:
        moved = signs @ half
        return np.abs(statistic(middle + moved) - statistic(middle - moved))

    return intervals.permutation_p(change, len(left), flips=flips, seed=seed)


def statistic(sums: np.ndarray) -> np.ndarray:
    """[k, 2 * terms] sums (top, bottom, top, bottom, ...) to [k]; NaN where a bottom is 0."""
    top, bottom = sums[:, 0::2], sums[:, 1::2]
    missing = np.full_like(top, np.nan)
    return np.divide(top, bottom, out=missing, where=bottom > 0).mean(axis=1)


def _sums(terms: Sequence[Term], clusters: Sequence[str] | np.ndarray) -> np.ndarray:
    """[identities, 2 * terms] sums by identity."""
    names = np.asarray(clusters)
    unique, where = np.unique(names, return_inverse=True)
    columns = []
    for pair in terms:
        for values in pair:
            values = np.asarray(values, np.float64)
            if values.shape != names.shape or not len(values):
                raise ValueError(f"values {values.shape} and clusters {names.shape} differ")
            if not np.isfinite(values).all():
                raise ValueError(f"value {int(np.argmin(np.isfinite(values)))} is not finite")
            columns.append(np.bincount(where, weights=values, minlength=len(unique)))
    return np.stack(columns, axis=1)


def _plain(bound: float | None) -> float | None:
    return None if bound is None or np.isnan(bound) else bound
