"""How close recovered features are to their pristine targets: MSE and mean token cosine.

The formulas are the two terms of the paper's recovery loss (section 4, C.2):
MSE = ||z~ - z||^2 / (B N D) and cosine = sum over tokens of cos(z~_bn, z_bn) / (B N). Both are
kept as sums and counts, so that any pooling of images divides once, at the very end; with a mask
only real tokens enter either sum or count.
"""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class FeatureSums:
    """Sums over the real tokens of each image; every array is [B], float64 or int64.

    Attributes:
      squared_error: sum of squared differences over tokens and channels.
      elements: how many numbers that sum has, tokens x D.
      cosine: sum of token cosines.
      tokens: how many tokens that sum has.
    """

    squared_error: np.ndarray
    elements: np.ndarray
    cosine: np.ndarray
    tokens: np.ndarray

    def mse(self) -> np.ndarray:
        """Mean squared error of each image, [B]."""
        return self.squared_error / self.elements

    def mean_cosine(self) -> np.ndarray:
        """Mean token cosine of each image, [B]."""
        return self.cosine / self.tokens


def feature_sums(
    recovered: np.ndarray, target: np.ndarray, mask: np.ndarray | None = None
) -> FeatureSums:
    """Compares tokens one by one, accumulating in float64.

    Args:
      recovered: [B, N, D], or [B, S, N, D] with further axes between; any float dtype.
      target: the same shape.
      mask: [B, N] (or [B, S, N]), true where a token is real; None means all are.

    Returns:
      One entry an image. A token of zero length has cosine 0 with everything.

    Raises:
      ValueError: shapes differ, a real token is not finite, or an image has no real token.
    """
    recovered = np.asarray(recovered)
    target = np.asarray(target)
    if recovered.shape != target.shape or recovered.ndim < 3:
        raise ValueError(
            f"recovered {recovered.shape} and target {target.shape} must be equal and [B, ..., D]"
        )
    batch, dim = recovered.shape[0], recovered.shape[-1]
    real = np.ones(recovered.shape[:-1], bool) if mask is None else np.asarray(mask, bool)
    if real.shape != recovered.shape[:-1]:
        raise ValueError(f"mask {real.shape} does not fit tokens {recovered.shape}")
    real = real.reshape(batch, -1)
    left = recovered.reshape(batch, -1, dim).astype(np.float64)
    right = target.reshape(batch, -1, dim).astype(np.float64)
    if mask is not None:  # whatever padding holds, NaN included, must not reach a sum
        left = np.where(real[..., None], left, 0.0)
        right = np.where(real[..., None], right, 0.0)
    tokens = real.sum(axis=1)
    if np.any(tokens == 0):
        raise ValueError(f"image {int(np.argmin(tokens))} of the batch has no real token")
    difference = left - right
    squared = np.einsum("bnd,bnd->b", difference, difference)
    # Each vector is scaled to its own largest entry first: squares of tiny or huge features
    # must neither vanish nor overflow.
    left, right = _scaled(left), _scaled(right)
    dots = np.einsum("bnd,bnd->bn", left, right)
    norms = np.sqrt(np.einsum("bnd,bnd->bn", left, left) * np.einsum("bnd,bnd->bn", right, right))
    cosines = np.divide(dots, norms, out=np.zeros_like(dots), where=norms > 0)
    cosine = np.clip(cosines, -1.0, 1.0).sum(axis=1)
    if not (np.isfinite(squared).all() and np.isfinite(cosine).all()):
        bad = int(np.argmin(np.isfinite(squared) & np.isfinite(cosine)))
        raise ValueError(f"image {bad} of the batch has features that are not finite")
    return FeatureSums(squared, tokens * dim, cosine, tokens)


def _scaled(vectors: np.ndarray) -> np.ndarray:
    largest = np.abs(vectors).max(axis=-1, keepdims=True, initial=0.0)
    return np.divide(vectors, largest, out=np.zeros_like(vectors), where=largest > 0)
