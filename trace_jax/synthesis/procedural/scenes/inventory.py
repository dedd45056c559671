"""Which types of objects a scene holds, and how large they are drawn.

Sizes follow the taxonomy's real ones, compressed: a fork of 20 cm is drawn at 31, a car of 4 m at
2.2, since what covers a few pixels cannot be learnt from and what fills the picture hides the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from trace_jax import taxonomy
from trace_jax.synthesis.procedural.world import type_order

FEWEST, MOST = 4, 12
_MIDDLE, _SMALL_POWER, _LARGE_POWER = 0.55, 0.56, 0.70
# Share of a scene's objects that are usual there; the others come evenly from the COCO categories,
# so that detection meets all of them.
_USUAL = 0.55
# Metres: what is larger and unusual somewhere is not brought there (a bed in a workshop).
_MOVABLE = 1.45
# Identities a type has in a series, as many as scenes draw from.
_IDENTITIES = 40


def drawn_size(metres: float) -> float:
    """Metres that an object of a real longest side is drawn at."""
    power = _SMALL_POWER if metres < _MIDDLE else _LARGE_POWER
    return _MIDDLE * (metres / _MIDDLE) ** power


def draw_types(scene_type: str, count: int, rng: np.random.Generator) -> list[str]:
    """Draws the types of a scene's objects, the likeliest to be placed first.

    More are returned than `count`, for those that find no place.
    """
    row = taxonomy.load().scene_type_of[scene_type]
    usual = [row.objects[k] for k in rng.permutation(len(row.objects))]
    usual = [name for name in usual if name in type_order()]
    by_category = fillers(row.environment)
    categories = [list(by_category)[k] for k in rng.permutation(len(by_category))]
    others = [str(rng.choice(list(by_category[c]))) for c in categories]
    first = max(2, round(_USUAL * count))
    chosen = usual[:first] + [name for name in others if name not in usual][: count - first]
    if rng.random() < 0.3:
        chosen.append(chosen[int(rng.integers(len(chosen)))])  # two of a kind
    spare = [name for name in (*usual[first:], *others) if name not in chosen]
    return chosen + spare[:4]


@functools.cache
def fillers(environment: str) -> Mapping[str, tuple[str, ...]]:
    """COCO category -> types of it that may be found anywhere in an environment group."""
    known = taxonomy.load()
    found: dict[str, list[str]] = {}
    for name in sorted(type_order()):
        kind = known.types[name]
        if kind.coco and environment in kind.environments and kind.size_m[0] <= _MOVABLE:
            found.setdefault(kind.coco, []).append(name)
    return {category: tuple(names) for category, names in found.items()}


def draw_identity(name: str, rng: np.random.Generator) -> int:
    """Index, within any series, of one of the type's identities."""
    order = type_order()
    return order.index(name) + int(rng.integers(_IDENTITIES)) * len(order)
