"""How the scene types look before a fire: places.toml, and the finish of a surface."""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trace_jax.synthesis.procedural import patterns as pt
from trace_jax.synthesis.procedural.palette import MATERIAL_NUMBER, linear


@dataclasses.dataclass(frozen=True)
class Surface:
    """How a wall, a floor or a prop's board looks; fields as in places.toml."""

    material: str
    pattern: str
    scale: tuple[float, float]
    second: float
    third: float
    colours: Sequence[Sequence[int]]
    stretch: tuple[float, float] = (1.0, 1.0)

    def finish(self, rng: np.random.Generator) -> np.ndarray:
        """Draws a finish row [COLUMNS]: matt, its other colours shades of the first."""
        row = np.zeros(pt.COLUMNS)
        base = linear(self.colours[int(rng.integers(len(self.colours)))])
        base = np.clip(base * rng.uniform(0.85, 1.12) * rng.uniform(0.95, 1.05, 3), 0, 0.86)
        row[pt.MATERIAL], row[pt.PATTERN] = MATERIAL_NUMBER[self.material], pt.NUMBER[self.pattern]
        for column, share in ((pt.C1, 1.0), (pt.C2, self.second), (pt.C3, self.third)):
            row[column : column + 3] = np.clip(base * share, 0, 0.9)
        row[pt.SCALE] = rng.uniform(*self.scale)
        row[pt.P1], row[pt.P2] = rng.uniform(0.4, 0.6), rng.uniform(0.5, 1.0)
        row[pt.GLOSS] = 0.12 if self.material in ("metal", "glass") else 0.03
        row[pt.ALPHA], row[pt.SHINE], row[pt.SEED] = 1.0, 16.0, int(rng.integers(1, 1 << 20))
        return row


@dataclasses.dataclass(frozen=True)
class Place:
    """One scene type: surfaces to draw from, and props with their chances."""

    floor: Sequence[str]
    wall: Sequence[str]
    props: Mapping[str, float]
    ceiling: str = "plaster"


@functools.cache
def surfaces() -> Mapping[str, Surface]:
    """All surfaces by name."""
    return {name: Surface(**row) for name, row in _tables()["surfaces"].items()}


@functools.cache
def places() -> Mapping[str, Place]:
    """All scene types by name."""
    return {name: Place(**row) for name, row in _tables()["places"].items()}


@functools.cache
def _tables() -> Mapping[str, Any]:
    text = (Path(__file__).parent / "places.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
