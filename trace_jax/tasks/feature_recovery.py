"""Feature recovery (paper C.2, Table 3): how close recovered tokens come to the pristine ones.

The target is always the identity's pristine reference view (view 0), the view that its damaged
images share; a second pristine view looks from elsewhere, token grids do not align, and so it is
never scored here. Under condition "pristine" the reference meets itself: 0 and 1 by construction.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trace_jax.metrics import features
from trace_jax.tasks.base import Task, column, mean_of


def measure(
    recovered: np.ndarray, target: np.ndarray, mask: np.ndarray | None = None
) -> dict[str, list[Any]]:
    """Record fields of a batch.

    Args:
      recovered: [B, N, D] tokens after recovery (or [B, S, N, D]).
      target: the same shape, tokens of each identity's pristine reference view.
      mask: [B, N], true where a token is real, or None.

    Raises:
      ValueError: see `metrics.features.feature_sums`.
    """
    sums = features.feature_sums(recovered, target, mask)
    return {
        "tokens": sums.tokens.tolist(),
        "mse": sums.mse().tolist(),
        "cosine": sums.mean_cosine().tolist(),
    }


FEATURE_RECOVERY = Task(
    name="feature_recovery",
    measure=measure,
    metrics=(
        mean_of("mse", column("mse"), weights="tokens", higher_is_better=False),
        mean_of("cosine", column("cosine"), weights="tokens"),
    ),
    gains=(),
    has_gallery=False,
)
