"""Mean over real tokens: the pooled vector of retrieval (paper section 5.1)."""

from __future__ import annotations

import numpy as np

from trace_jax.errors import UserError


def mean_tokens(tokens: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Averages tokens in float32.

    Args:
      tokens: [..., N, D], any float dtype.
      mask: [..., N] bool, or None where every token is real.

    Returns:
      [..., D] float32.

    Raises:
      UserError: a row has no real token.
    """
    wide = np.asarray(tokens).astype(np.float32)
    if mask is None:
        return wide.mean(axis=-2)
    counts = mask.sum(axis=-1, dtype=np.float32)[..., None]
    if not counts.all():
        raise UserError("a row of features has no real token; its mask is all false")
    return np.where(mask[..., None], wide, 0).sum(axis=-2) / counts
