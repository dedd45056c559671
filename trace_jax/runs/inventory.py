"""Which of the taxonomy's identities a data set of objects holds, and in which split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trace_jax.taxonomy import IdentityRow
from trace_jax.types import SPLITS


def split_inventory(
    known: Sequence[IdentityRow], identities: int, seed: int
) -> dict[str, tuple[int, ...]]:
    """The first so many identities, split 80/10/10 (paper section 3); the same for every engine.

    The order has every type once before any twice. Validation and test take identities whose type
    training has too, as many different types as can be.

    Args:
      known: the taxonomy's identities.
      identities: how many; beyond `known` there are no more.
      seed: of the split.

    Returns:
      Split -> ascending indices into `known`.
    """
    seen: dict[str, int] = {}
    number = []
    for row in known:
        number.append(seen.get(row.object_type, 0))
        seen[row.object_type] = number[-1] + 1
    order = sorted(range(len(known)), key=lambda k: (number[k], k))[:identities]
    tenth = round(identities / 10)
    rng = np.random.default_rng([seed, 499])
    # Held out are second and further variants, types in random order, one of each before another.
    place = {name: float(rng.random()) for name in seen}
    spare = sorted(
        (k for k in order if number[k] > 0),
        key=lambda k: (number[k], place[known[k].object_type]),
    )
    if len(spare) < 2 * tenth:
        spare += sorted(
            (k for k in order if number[k] == 0), key=lambda k: place[known[k].object_type]
        )
    held = {"val": spare[:tenth], "test": spare[tenth : 2 * tenth]}
    out = set(held["val"]) | set(held["test"])
    chosen = {"train": [k for k in order if k not in out], **held}
    return {split: tuple(sorted(chosen[split])) for split in SPLITS}
