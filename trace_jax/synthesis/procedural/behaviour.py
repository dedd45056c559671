"""How materials answer to heat: materials.toml as arrays indexed by material number."""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from pathlib import Path

import numpy as np

from trace_jax.synthesis.procedural.palette import MATERIALS, linear
from trace_jax.synthesis.procedural.raster import RAGGED, SHARD, SOLID

_CUTS = {"solid": SOLID, "ragged": RAGGED, "shard": SHARD}


@dataclasses.dataclass(frozen=True)
class Behaviour:
    """Columns of materials.toml, each [11]; `weakens` [11, 2], `debris` linear RGB [11, 3]."""

    weakens: np.ndarray
    vanishes: np.ndarray
    collapse: np.ndarray
    warp: np.ndarray
    shrink: np.ndarray
    melt: np.ndarray
    blister: np.ndarray
    cut: np.ndarray
    ash: np.ndarray
    debris: np.ndarray


@functools.cache
def load() -> Behaviour:
    """The shipped table."""
    text = (Path(__file__).parent / "materials.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    rows = [table[name] for name in MATERIALS]
    return Behaviour(
        **{
            field.name: np.array([row[field.name] for row in rows], float)
            for field in dataclasses.fields(Behaviour)
            if field.name not in ("cut", "debris")
        },
        cut=np.array([_CUTS[row["cut"]] for row in rows]),
        debris=np.stack([linear(row["debris"]) for row in rows]),
    )
