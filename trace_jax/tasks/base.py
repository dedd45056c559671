"""A task: what is measured of each query, and how records become the rows of `results.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trace_jax.metrics import intervals, ratios
from trace_jax.tasks import records as record_table
from trace_jax.tasks.records import Columns, Record
from trace_jax.types import LEVELS, PRISTINE, Result

ALL = "all"  # pooled over L0-L4
BASE = "base"
RIVALS = (BASE, "mean_shift", "ridge")  # what a condition is tested against, pair by pair


@dataclasses.dataclass(frozen=True)
class Scope:
    """What every row of one evaluation shares.

    Attributes:
      dataset, split, gallery, host, tap: copied into the rows.
      pristine_view: which pristine image queries the gallery: 1, the second view, or 0, the
        gallery's own image where the data has no second view.
      resamples: bootstrap samples.
      seed: of bootstrap and permutation draws.
    """

    dataset: str
    split: str
    gallery: str
    host: str
    tap: str
    pristine_view: int
    resamples: int = intervals.RESAMPLES
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Metric:
    """One number a set of examples has: the mean over its terms of sum(top) / sum(bottom).

    Attributes:
      name: as in results.
      terms: columns -> [(top [n], bottom [n]), ...], NaN where an example does not count.
      higher_is_better: which way is good.
    """

    name: str
    terms: Callable[[Columns], list[ratios.Term]]
    higher_is_better: bool


def mean_of(
    name: str,
    values: Callable[[Columns], np.ndarray],
    *,
    weights: str | None = None,
    higher_is_better: bool = True,
) -> Metric:
    """The mean of one value an example, weighted by a column or evenly."""

    def terms(columns: Columns) -> list[ratios.Term]:
        found = values(columns)
        mass = np.ones(len(found)) if weights is None else columns.number[weights]
        return [(found * mass, mass)]

    return Metric(name, terms, higher_is_better)


@dataclasses.dataclass(frozen=True)
class Gain:
    """A row that is a paired difference against another condition."""

    name: str
    metric: str
    against: str


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One paired test; a row of `meta["comparisons"]`.

    Attributes:
      difference, low, high: mean of condition minus rival on the same queries, and its interval.
      relative, relative_low, relative_high: the same as a share of the rival's mean (-0.3 is 30%
        below), None where that mean is zero.
      p: two-sided sign-flip permutation p-value by identity, not corrected for many comparisons.
      better: whether the difference goes the good way.
      n, identities: shared queries and the identities behind them.
    """

    task: str
    condition: str
    against: str
    severity: str
    metric: str
    difference: float
    low: float | None
    high: float | None
    relative: float | None
    relative_low: float | None
    relative_high: float | None
    p: float
    better: bool
    n: int
    identities: int


@dataclasses.dataclass(frozen=True)
class Task:
    """Attributes:
    name: as in flags and results.
    measure: arrays of a batch -> record fields, lists as long as the batch; see each task.
    metrics: what is averaged.
    gains: paired differences that become rows of their own.
    has_gallery: whether rows name the gallery.
    """

    name: str
    measure: Callable[..., dict[str, list[Any]]]
    metrics: tuple[Metric, ...]
    gains: tuple[Gain, ...]
    has_gallery: bool

    def score(
        self, records: Sequence[Record] | Columns, scope: Scope, group: str = "all"
    ) -> list[Result]:
        """Every row that the records support, with bootstrap intervals by identity.

        Args:
          records: of any conditions; order does not matter for the numbers.
          scope: what the rows share.
          group: "all", or a value of `Record.group` to restrict both queries and rows to.

        Returns:
          Rows by condition (in order of first appearance), severity and metric. A severity without
          records gives no row.
        """
        cells = _Cells(_columns(records, group), scope.pristine_view if self.has_gallery else None)
        rows = []
        for condition in cells.conditions:
            for severity in (*LEVELS, ALL, PRISTINE):
                rows += self._cell(cells, scope, condition, severity, group)
        return rows

    def compare(self, records: Sequence[Record] | Columns, scope: Scope) -> list[Comparison]:
        """Paired tests of every condition against base and the level-blind controls."""
        cells = _Cells(_columns(records, "all"), scope.pristine_view if self.has_gallery else None)
        found = []
        for condition in cells.conditions:
            for against in RIVALS:
                for severity in (*LEVELS, ALL, PRISTINE):
                    for metric in self.metrics:
                        one = self._compare(cells, scope, condition, against, severity, metric)
                        found += [] if one is None else [one]
        return found

    def _cell(
        self, cells: _Cells, scope: Scope, condition: str, severity: str, group: str
    ) -> list[Result]:
        rows = []
        draws: dict[str, Any] = {"resamples": scope.resamples, "seed": scope.seed}
        for metric in self.metrics:
            cell = _measured(cells.of(condition, severity), metric)
            if len(cell):
                found = ratios.interval(metric.terms(cell), cell.text["identity"], **draws)
                # Not defined, e.g. precision where nothing was predicted: no row.
                if np.isfinite(found.value):
                    rows.append(self._row(scope, condition, severity, metric.name, found, group))
        for gain in self.gains:
            metric = next(m for m in self.metrics if m.name == gain.metric)
            pair = _pair(cells, condition, gain.against, severity, metric)
            if pair is not None:
                found = ratios.difference(*pair, **draws)
                if np.isfinite(found.value):
                    rows.append(self._row(scope, condition, severity, gain.name, found, group))
        return rows

    def _compare(
        self,
        cells: _Cells,
        scope: Scope,
        condition: str,
        against: str,
        severity: str,
        metric: Metric,
    ) -> Comparison | None:
        pair = _pair(cells, condition, against, severity, metric)
        if pair is None:
            return None
        draws: dict[str, Any] = {"resamples": scope.resamples, "seed": scope.seed}
        found = ratios.difference(*pair, **draws)
        if not np.isfinite(found.value):
            return None
        share = ratios.relative(*pair, **draws)
        return Comparison(
            task=self.name,
            condition=condition,
            against=against,
            severity=severity,
            metric=metric.name,
            difference=found.value,
            low=found.low,
            high=found.high,
            relative=None if share is None else share.value,
            relative_low=None if share is None else share.low,
            relative_high=None if share is None else share.high,
            p=ratios.sign_flip_p(*pair, seed=scope.seed),
            better=bool(found.value > 0 if metric.higher_is_better else found.value < 0),
            n=found.n,
            identities=found.clusters,
        )

    def _row(
        self,
        scope: Scope,
        condition: str,
        severity: str,
        metric: str,
        found: intervals.Interval,
        group: str,
    ) -> Result:
        return Result(
            task=self.name,
            dataset=scope.dataset,
            split=scope.split,
            gallery=scope.gallery if self.has_gallery else "",
            host=scope.host,
            tap=scope.tap,
            condition=condition,
            severity=severity,
            metric=metric,
            value=found.value,
            low=found.low,
            high=found.high,
            n=found.n,
            group=group,
        )


def column(name: str) -> Callable[[Columns], np.ndarray]:
    """A metric's values that are a column of the records."""
    return lambda columns: columns.number[name]


class _Cells:
    """Records of one condition and severity, cut out once.

    Args:
      columns: all records.
      pristine_view: the only view that counts among pristine queries; None takes all.
    """

    def __init__(self, columns: Columns, pristine_view: int | None) -> None:
        self.conditions = list(dict.fromkeys(columns.text["condition"].tolist()))
        self._columns = columns
        self._view = pristine_view
        self._found: dict[tuple[str, str], Columns] = {}

    def of(self, condition: str, severity: str) -> Columns:
        """The records; severity "all" pools L0-L4."""
        key = (condition, severity)
        if key not in self._found:
            columns = self._columns
            keep = columns.text["condition"] == condition
            if severity == ALL:
                keep = keep & np.isin(columns.text["severity"], LEVELS)
            else:
                keep = keep & (columns.text["severity"] == severity)
            if severity == PRISTINE and self._view is not None:
                keep = keep & (columns.number["view"] == self._view)
            self._found[key] = columns.where(keep)
        return self._found[key]


def _measured(cell: Columns, metric: Metric) -> Columns:
    counts = [np.isfinite(values) for term in metric.terms(cell) for values in term]
    return cell.where(np.logical_and.reduce(counts))


def _pair(
    cells: _Cells, condition: str, against: str, severity: str, metric: Metric
) -> tuple[list[ratios.Term], list[ratios.Term], np.ndarray] | None:
    """Terms of both sides on the queries they share, and identities; None if none."""
    if condition == against:
        return None
    left, right = record_table.paired(
        _measured(cells.of(condition, severity), metric),
        _measured(cells.of(against, severity), metric),
    )
    if not len(left):
        return None
    return metric.terms(left), metric.terms(right), left.text["identity"]


def _columns(records: Sequence[Record] | Columns, group: str) -> Columns:
    columns = records if isinstance(records, Columns) else Columns.of(records)
    return columns if group == "all" else columns.where(columns.text["group"] == group)
