"""Contact sheets: one identity a row, pristine then L0 to L4."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trace_jax.synthesis.procedural.world import Request, pictures


def sheet(requests: Sequence[Request], columns: int = 2) -> np.ndarray:
    """Renders every request as a strip and stacks the strips in `columns`.

    Returns:
      uint8 [H, W, 3], white where strips are shorter.
    """
    strips = [np.concatenate([p.pixels for p in pictures(r)], axis=1) for r in requests]
    wide = max(strip.shape[1] for strip in strips)
    strips = [
        np.pad(s, ((0, 0), (0, wide - s.shape[1]), (0, 0)), constant_values=255) for s in strips
    ]
    rows = -(-len(strips) // columns)
    blank = np.full_like(strips[0], 255)
    strips += [blank] * (rows * columns - len(strips))
    stacked = [np.concatenate(strips[c * rows : (c + 1) * rows]) for c in range(columns)]
    return np.concatenate(stacked, axis=1)
