"""Which pairs a step trains on: a pure function of (seed, step), computed for a batch at once.

Grain's own shuffle and mix give the same guarantees one element at a time, which took 10 to 40 ms
for a batch of 64; as much as a small FRM's step. Here it is numpy on whole batches, below 0.1 ms,
handed to grain as one random-access source. Permutations come from numpy's Philox generator.
"""

from __future__ import annotations

import functools
from typing import Any

import grain
import numpy as np

from trace_jax.data.pairs import PairSet, as_pristine
from trace_jax.errors import UserError

# Shares are counted in millionths, so that slot arithmetic is exact however long a run is.
_MILLION = 1_000_000


def order(
    pair_set: PairSet, batch_size: int, seed: int, level_balanced: bool, pristine_fraction: float
) -> grain.MapDataset[Any]:
    """The global order of pairs: what `loader.batches` reads, for those who encode on the fly.

    Without options an epoch is one permutation of the pairs and what does not fill a batch is
    dropped. With options the pairs fall into strata, each an endless row of permutations:
    `pristine_fraction` of the slots go to pristine -> pristine pairs, spread evenly; the others to
    the levels in turn where they are balanced.

    Returns:
      step -> [batch_size, 4] int64: degraded row, pristine row, severity, identity.

    Raises:
      UserError: the batch holds more than an epoch, or the fraction is none.
    """
    if not 0.0 <= pristine_fraction < 1.0:
        raise UserError(f"pristine_fraction must lie in 0 up to 1, is {pristine_fraction}")
    if batch_size > len(pair_set):
        raise UserError(
            f"batch size {batch_size} is more than the {len(pair_set)} pairs there are; "
            "lower it or take more levels, draws or identities"
        )
    if not level_balanced and not pristine_fraction:
        rows = functools.partial(_epoch_rows, _Stratum(_table(pair_set), seed, 0), batch_size)
    else:
        rows = functools.partial(
            _mixed_rows,
            _strata(pair_set, seed, level_balanced),
            _Stratum(_table(as_pristine(pair_set)), seed, -1),
            round(pristine_fraction * _MILLION),
            batch_size,
        )
    return grain.MapDataset.range(2**60).map(rows)


class _Stratum:
    """Rows in an endless sequence of permutations, a new one each pass."""

    def __init__(self, table: np.ndarray, seed: int, number: int) -> None:
        self.table = table

        @functools.lru_cache(maxsize=4)
        def permutation(epoch: int) -> np.ndarray:
            # SeedSequence takes no negative numbers; the pristine stratum is number -1.
            entropy = np.random.SeedSequence([seed, number + 1, epoch])
            return np.random.Generator(np.random.Philox(entropy)).permutation(len(table))

        self._permutation = permutation

    def take(self, epoch: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Rows at [n] places of [n] epochs: [n, 4]."""
        chosen = np.empty(len(place), np.int64)
        for number in np.unique(epoch):
            at = epoch == number
            chosen[at] = self._permutation(int(number))[place[at]]
        return self.table[chosen]

    def endless(self, positions: np.ndarray) -> np.ndarray:
        """Rows at [n] positions of the sequence: [n, 4]."""
        return self.take(*np.divmod(positions, len(self.table)))


def _epoch_rows(stratum: _Stratum, batch_size: int, step: int) -> np.ndarray:
    epoch, place = divmod(int(step), len(stratum.table) // batch_size)
    places = place * batch_size + np.arange(batch_size)
    return stratum.take(np.full(batch_size, epoch), places)


def _mixed_rows(
    levels: list[_Stratum], pristine: _Stratum, share: int, batch_size: int, step: int
) -> np.ndarray:
    slots = int(step) * batch_size + np.arange(batch_size, dtype=np.int64)
    before = _pristine_before(slots, share)
    is_pristine = _pristine_before(slots + 1, share) > before
    out = np.empty((batch_size, 4), np.int64)
    out[is_pristine] = pristine.endless(before[is_pristine])
    turn, level = np.divmod(slots - before, len(levels))
    for number, stratum in enumerate(levels):
        at = ~is_pristine & (level == number)
        out[at] = stratum.endless(turn[at])
    return out


def _pristine_before(slots: np.ndarray, share: int) -> np.ndarray:
    """How many of the slots before each one are pristine: floor(slot * share / million)."""
    whole, rest = np.divmod(slots, _MILLION)
    return whole * share + rest * share // _MILLION


def _strata(pair_set: PairSet, seed: int, level_balanced: bool) -> list[_Stratum]:
    table = _table(pair_set)
    if not level_balanced:
        return [_Stratum(table, seed, 0)]
    return [
        _Stratum(table[table[:, 2] == level], seed, int(level)) for level in np.unique(table[:, 2])
    ]


def _table(pair_set: PairSet) -> np.ndarray:
    return np.stack(
        [pair_set.degraded, pair_set.pristine, pair_set.severity, pair_set.identity], axis=1
    )
