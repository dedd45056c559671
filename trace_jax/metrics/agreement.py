"""How far two reviewers agree: percent agreement and Cohen's kappa (paper section 3: 93.4%,
0.836)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from trace_jax.metrics import intervals


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Attributes:
    agreement: share of items both judge alike, with its bootstrap interval.
    kappa: Cohen's kappa, (observed - expected) / (1 - expected), with its interval; NaN where
      both reviewers give one and the same answer to everything (agreement by chance is 1 then).
    n: items.
    """

    agreement: float
    agreement_low: float | None
    agreement_high: float | None
    kappa: float
    kappa_low: float | None
    kappa_high: float | None
    n: int


def agreement(
    first: Sequence[str],
    second: Sequence[str],
    *,
    resamples: int = intervals.RESAMPLES,
    seed: int = 0,
) -> Agreement:
    """Agreement of two reviewers on the same items, in the same order.

    Args:
      first, second: one label an item.
      resamples, seed: of the bootstrap over items.

    Raises:
      ValueError: no items, or unequal numbers of them.
    """
    if len(first) != len(second) or not len(first):
        raise ValueError(f"{len(first)} and {len(second)} labels: must be equally many, and some")
    names = sorted(set(first) | set(second))
    table = np.zeros((len(first), len(names), len(names)))
    for item, (a, b) in enumerate(zip(first, second, strict=True)):
        table[item, names.index(a), names.index(b)] = 1

    def statistics(counts: np.ndarray) -> np.ndarray:
        joint = np.tensordot(counts, table, axes=1)
        joint = joint / joint.sum(axis=(1, 2), keepdims=True)
        observed = np.trace(joint, axis1=1, axis2=2)
        expected = (joint.sum(axis=2) * joint.sum(axis=1)).sum(axis=1)
        kappa = np.full_like(observed, np.nan)
        np.divide(observed - expected, 1 - expected, out=kappa, where=expected < 1 - 1e-12)
        return np.stack([observed, kappa], axis=1)

    value = statistics(np.ones((1, len(first))))[0]
    spans = []
    for column in (0, 1):

        def one(counts: np.ndarray, column: int = column) -> np.ndarray:
            return statistics(counts)[:, column]

        low, high = intervals.bounds(one, len(first), resamples, seed)
        defined = low is not None and high is not None and not np.isnan(low + high)
        spans.append((low, high) if defined else (None, None))
    (agreement_low, agreement_high), (kappa_low, kappa_high) = spans
    return Agreement(
        float(value[0]), agreement_low, agreement_high,
        float(value[1]), kappa_low, kappa_high, len(first),
    )  # fmt: skip
