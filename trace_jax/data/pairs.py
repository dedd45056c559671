"""Which rows of a cache train together: each degraded row with its identity's pristine view 0.

Of a cache of scenes, the layout takes the identity's place: its renders are each other's pairs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from trace_jax.data.feature_cache import FeatureCache
from trace_jax.data.rows import draw_of, is_reference, subject_of
from trace_jax.errors import UserError
from trace_jax.types import LEVELS, PRISTINE, SEVERITIES, SPLITS


@dataclasses.dataclass(frozen=True)
class PairSet:
    """Index arrays into one cache, all [P] int64, in the order of the cache's rows.

    Attributes:
      degraded: row of the degraded picture.
      pristine: row of its identity's pristine view 0.
      severity: position in `types.SEVERITIES`: 0 pristine, 1-5 for L0-L4.
      identity: position in `identities`.
      identities: names of the identities that have at least one pair.
    """

    degraded: np.ndarray
    pristine: np.ndarray
    severity: np.ndarray
    identity: np.ndarray
    identities: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.degraded)


def pairs(
    cache: FeatureCache,
    split: str,
    levels: Sequence[str] = LEVELS,
    *,
    draws: Collection[int] | None = None,
    identities: int | Collection[str] | None = None,
) -> PairSet:
    """Pairs of one split.

    Args:
      cache: the features.
      split: "train", "val" or "test".
      levels: severities wanted, e.g. ("L0", "L1", "L2") to test extrapolation.
      draws: damage draws wanted; None takes all.
      identities: only these, or only the first so many of the split in the cache's order.

    Raises:
      UserError: an unknown name, or nothing is left.
    """
    if split not in SPLITS:
        raise UserError(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
    unknown = [level for level in levels if level not in LEVELS]
    if unknown:
        raise UserError(f"unknown levels {unknown}; known: {', '.join(LEVELS)}")
    reference = pristine_rows(cache, split)
    names = _chosen(reference, identities, split)
    numbers = {name: number for number, name in enumerate(names)}
    found = [
        (index, reference[subject], SEVERITIES.index(row.severity), numbers[subject])
        for index, row in enumerate(cache.rows)
        if row.split == split
        and row.severity in levels
        and (subject := subject_of(row)) in numbers
        and (draws is None or draw_of(row) in draws)
    ]
    if not found:
        raise UserError(
            f"{cache.folder}: no pairs for split {split!r}, levels {', '.join(levels)}"
            + (f", draws {sorted(draws)}" if draws is not None else "")
            + f". Was the split cached? The cache holds {', '.join(cache.manifest.splits)}."
        )
    table = np.asarray(found, np.int64)
    used, identity = np.unique(table[:, 3], return_inverse=True)
    return PairSet(
        degraded=table[:, 0],
        pristine=table[:, 1],
        severity=table[:, 2],
        identity=identity.astype(np.int64),
        identities=tuple(names[number] for number in used),
    )


def pristine_rows(cache: FeatureCache, split: str | None = None) -> dict[str, int]:
    """Row of each identity's pristine view 0, in the cache's order; one split or all of them."""
    return {
        subject_of(row): index
        for index, row in enumerate(cache.rows)
        if is_reference(row) and (split is None or row.split == split)
    }


def as_pristine(pair_set: PairSet) -> PairSet:
    """The pristine -> pristine pair of each identity: what recovery must leave alone."""
    _, first = np.unique(pair_set.identity, return_index=True)
    rows = pair_set.pristine[first]
    return PairSet(
        degraded=rows,
        pristine=rows,
        severity=np.full(len(rows), SEVERITIES.index(PRISTINE), np.int64),
        identity=pair_set.identity[first],
        identities=pair_set.identities,
    )


def _chosen(
    reference: dict[str, int], identities: int | Collection[str] | None, split: str
) -> list[str]:
    names = list(reference)
    if identities is None:
        return names
    if isinstance(identities, int):
        if not 0 < identities <= len(names):
            raise UserError(f"split {split!r} has {len(names)} identities; {identities} were asked")
        return names[:identities]
    missing = sorted(set(identities) - set(names))
    if missing:
        raise UserError(f"split {split!r} has no pristine row of identities {missing[:10]}")
    wanted = set(identities)
    return [name for name in names if name in wanted]
