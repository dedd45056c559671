"""How well burnt objects follow Table 6: measured on geometry, no picture needed.

    python -m trace_jax.synthesis.procedural.ladder --identities=378

Prints, level by level, the share of objects whose metric lies in the paper's range and the median,
and the types that cannot follow in deformation: rigid things, whose material does not give way
before it is lost (metal survives, paper B.1).
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable

import numpy as np

from trace_jax import taxonomy
from trace_jax.synthesis.procedural.damage import Fire
from trace_jax.synthesis.procedural.world import Request, make_identity, viewpoint
from trace_jax.types import LEVELS

# A type cannot follow when fewer than this share of its images lie in the range.
_FOLLOWS = 0.6


@dataclasses.dataclass(frozen=True)
class Measured:
    """One object at one level: its type and the four metrics."""

    object_type: str
    level: str
    metrics: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Fit:
    """One metric at one level over many objects.

    Attributes:
      inside: share of objects inside Table 6's range.
      median: over the objects.
      low, high: the range.
    """

    level: str
    metric: str
    inside: float
    median: float
    low: float
    high: float


def measure(indices: Iterable[int], seed: int = 0, series: str = "sample") -> list[Measured]:
    """Burns the identities of a series and measures every level."""
    rows = []
    for index in indices:
        request = Request(series, index, seed)
        identity = make_identity(request)
        camera, _ = viewpoint(request, identity, 0)
        fire = Fire(identity.mesh, np.random.default_rng([seed, index, 6]))
        rows += [
            Measured(identity.object_type, state.level, state.metrics)
            for state in fire.states(LEVELS, camera)
        ]
    return rows


def fits(rows: Iterable[Measured]) -> list[Fit]:
    """Every metric at every level."""
    rows = list(rows)
    found = []
    for level in taxonomy.load().severity:
        for metric, (low, high) in level.ranges.items():
            values = np.array([r.metrics[metric] for r in rows if r.level == level.name])
            inside = float(np.mean((values >= low) & (values <= high)))
            found.append(Fit(level.name, metric, inside, float(np.median(values)), low, high))
    return found


def stragglers(rows: Iterable[Measured]) -> dict[str, float]:
    """Types that cannot follow in deformation, with the share of their images that do."""
    ranges = {level.name: level.ranges["deformation"] for level in taxonomy.load().severity}
    by_type: dict[str, list[bool]] = {}
    for row in rows:
        low, high = ranges[row.level]
        inside = low <= row.metrics["deformation"] <= high
        by_type.setdefault(row.object_type, []).append(inside)
    shares = {name: float(np.mean(inside)) for name, inside in by_type.items()}
    return {n: s for n, s in sorted(shares.items(), key=lambda i: i[1]) if s < _FOLLOWS}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--identities", type=int, default=189)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rows = measure(range(given.identities), given.seed)
    print(f"{'level':6} {'metric':22} {'range':>12} {'median':>7} {'inside':>7}")
    for f in fits(rows):
        span = f"{f.low:.2f}-{f.high:.2f}"
        print(f"{f.level:6} {f.metric:22} {span:>12} {f.median:7.2f} {f.inside:7.1%}")
    listed = ", ".join(f"{name} {share:.0%}" for name, share in stragglers(rows).items())
    print(f"cannot follow in deformation: {listed or 'none'}")


if __name__ == "__main__":
    main()
