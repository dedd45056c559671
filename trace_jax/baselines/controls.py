"""The controls that FRM must beat: they cost nothing and know no object.

Each is a recover function `(params, Features) -> Features`, fitted on the training pairs alone.
A fit reads batches {"degraded", "pristine": [B, ..., N, D], "mask": [B, ..., N] (optional),
"severity": [B]} and sums in float64. A token slot counts where its mask is true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from trace_jax.errors import UserError
from trace_jax.types import LEVELS, PRISTINE, SEVERITIES, Features

Params = Mapping[str, Any]
Batch = Mapping[str, Any]
Pairs = Callable[[], Iterable[Batch]]
"""Starts one pass over the pairs."""

LAMBDAS: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Ridge strengths tried on the validation pairs, relative to the inputs' mean variance."""


def identity(params: Params, features: Features) -> Features:
    """Changes nothing: condition `base`, the frozen host on degraded images."""
    del params
    return features


def mean_shift(params: Params, features: Features) -> Features:
    """Adds the training pairs' mean displacement, whatever the level.

    Args:
      params: {"shift": [..., N, D]}, one displacement a token place, or [D], one for all.
      features: degraded.
    """
    return _shift(features, jnp.asarray(params["shift"]))


def mean_shift_oracle(params: Params, features: Features, severity: Any) -> Features:
    """Adds the mean displacement of each image's true level: an oracle, for it is told the level.

    Args:
      params: {"shift": [6, ..., N, D] or [6, D]} by position in `types.SEVERITIES`; pristine's
        row is zero.
      features: degraded, leading axis B.
      severity: [B] int, position in `types.SEVERITIES`.
    """
    shift = jnp.asarray(params["shift"])[jnp.asarray(severity)]
    if shift.ndim < features.tokens.ndim:
        shift = shift.reshape(shift.shape[0], *(1,) * (features.tokens.ndim - 2), -1)
    return _shift(features, shift)


def ridge(params: Params, features: Features) -> Features:
    """One affine map for every token: tokens @ kernel + bias.

    Args:
      params: {"kernel": [D, D], "bias": [D]}.
      features: degraded.
    """
    tokens = features.tokens.astype(jnp.float32)
    mapped = tokens @ jnp.asarray(params["kernel"]) + jnp.asarray(params["bias"])
    return _replace(features, mapped)


def fit_identity(pairs: Pairs) -> dict[str, np.ndarray]:
    """No parameters; `pairs` is not read."""
    del pairs
    return {}


def fit_mean_shift(pairs: Pairs, *, by_place: bool = True) -> dict[str, np.ndarray]:
    """Mean of pristine minus degraded over all training pairs, blind to the level.

    Args:
      pairs: see Pairs.
      by_place: one mean for each token place (scale and place), the stronger rival where images
        share a frame as TRACE's centred objects do; False gives one per channel. Where token
        counts vary (a mask that is not all true) places mean nothing and one per channel is used.

    Returns:
      Parameters of `mean_shift`.
    """
    sums, counts = _displacements(pairs, by_place)
    return {"shift": _means(sums.sum(axis=0), counts.sum(axis=0))}


def fit_mean_shift_oracle(pairs: Pairs, *, by_place: bool = True) -> dict[str, np.ndarray]:
    """`fit_mean_shift` for each level apart; a level without pairs takes the mean of all.

    Returns:
      Parameters of `mean_shift_oracle`.
    """
    sums, counts = _displacements(pairs, by_place)
    blind = _means(sums.sum(axis=0), counts.sum(axis=0))
    shift = np.zeros((len(SEVERITIES), *blind.shape), np.float32)
    for level in LEVELS:
        at = SEVERITIES.index(level)
        shift[at] = _means(sums[at], counts[at]) if counts[at].any() else blind
    shift[SEVERITIES.index(PRISTINE)] = 0.0
    return {"shift": shift}


def fit_ridge(
    pairs: Pairs, validation: Pairs, *, lambdas: Sequence[float] = LAMBDAS
) -> dict[str, np.ndarray]:
    """The affine map of least squared error, its strength chosen on validation pairs.

    Normal equations of centred tokens, in float64. The penalty is lambda times the inputs' mean
    variance and draws the map towards the identity, not towards zero: recovery is residual.

    Args:
      pairs: training pairs.
      validation: pairs of held-out identities.
      lambdas: strengths tried; the one of least validation MSE per element is kept.

    Returns:
      Parameters of `ridge`, and "lambda" [].

    Raises:
      UserError: there are no pairs.
    """
    train, held = _moments(pairs), _moments(validation)
    best: tuple[float, np.ndarray, np.ndarray, float] | None = None
    for strength in lambdas:
        kernel, bias = _solve(train, strength)
        error = _mse(held, kernel, bias)
        if best is None or error < best[0]:
            best = (error, kernel, bias, strength)
    if best is None:
        raise UserError("ridge: give at least one lambda.")
    return {
        "kernel": best[1].astype(np.float32),
        "bias": best[2].astype(np.float32),
        "lambda": np.asarray(best[3], np.float64),
    }


def _shift(features: Features, shift: Any) -> Features:
    return _replace(features, features.tokens.astype(jnp.float32) + shift)


def _replace(features: Features, tokens: Any) -> Features:
    tokens = tokens.astype(features.tokens.dtype)
    if features.mask is not None:
        tokens = jnp.where(features.mask[..., None], tokens, features.tokens)
    return features.replace(tokens=tokens)


def _displacements(pairs: Pairs, by_place: bool) -> tuple[np.ndarray, np.ndarray]:
    """Sums of displacements by severity, [6, ..., N, D] or [6, D], and counts [6, ..., N, 1]."""
    sums: dict[int, np.ndarray] = {}
    counts: dict[int, np.ndarray] = {}
    varies = False
    for batch in pairs():
        degraded, pristine = _wide(batch["degraded"]), _wide(batch["pristine"])
        mask = _mask(batch, degraded)
        varies |= not mask.all()
        gap = np.where(mask[..., None], pristine - degraded, 0.0)
        severity = np.asarray(batch["severity"])
        for level in np.unique(severity):
            chosen = severity == level
            sums[level] = sums.get(level, 0.0) + gap[chosen].sum(axis=0)
            counts[level] = counts.get(level, 0.0) + mask[chosen].sum(axis=0, dtype=np.float64)
    if not sums:
        raise UserError("mean_shift: no training pairs. Is the train split in the cache?")
    shape = next(iter(sums.values())).shape
    total = np.zeros((len(SEVERITIES), *shape))
    number = np.zeros((len(SEVERITIES), *shape[:-1], 1))
    for level, value in sums.items():
        total[level], number[level] = value, counts[level][..., None]
    if varies or not by_place:
        axes = tuple(range(1, total.ndim - 1))
        return total.sum(axis=axes), number.sum(axis=axes)
    return total, number


def _means(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return (sums / np.maximum(counts, 1.0)).astype(np.float32)


def _moments(pairs: Pairs) -> dict[str, Any]:
    """Counts, sums and products of degraded x and pristine y over real tokens, float64."""
    m: dict[str, Any] = {}
    for batch in pairs():
        degraded, pristine = _wide(batch["degraded"]), _wide(batch["pristine"])
        mask = _mask(batch, degraded)
        x, y = degraded[mask], pristine[mask]  # [T, D]
        part = {
            "n": len(x),
            "x": x.sum(axis=0),
            "y": y.sum(axis=0),
            "xx": x.T @ x,
            "xy": x.T @ y,
            "yy": np.square(y).sum(),
        }
        m = {name: m.get(name, 0.0) + value for name, value in part.items()}
    if not m or not m["n"]:
        raise UserError("ridge: no pairs. Are the train and val splits in the cache?")
    return m


def _solve(m: Mapping[str, Any], strength: float) -> tuple[np.ndarray, np.ndarray]:
    mean_x, mean_y = m["x"] / m["n"], m["y"] / m["n"]
    cov = m["xx"] / m["n"] - np.outer(mean_x, mean_x)
    cross = m["xy"] / m["n"] - np.outer(mean_x, mean_y)
    dim = len(mean_x)
    penalty = strength * max(np.trace(cov) / dim, np.finfo(np.float64).tiny) * np.eye(dim)
    kernel = np.linalg.solve(cov + penalty, cross + penalty)
    return kernel, mean_y - mean_x @ kernel


def _mse(m: Mapping[str, Any], kernel: np.ndarray, bias: np.ndarray) -> float:
    # sum |x K + b - y|^2 from moments alone: the validation pairs are read once.
    square = np.sum(kernel * (m["xx"] @ kernel)) + m["n"] * bias @ bias + m["yy"]
    cross = 2 * (m["x"] @ kernel) @ bias - 2 * np.sum(kernel * m["xy"]) - 2 * bias @ m["y"]
    return float((square + cross) / (m["n"] * len(bias)))


def _wide(tokens: Any) -> np.ndarray:
    return np.asarray(tokens).astype(np.float64)


def _mask(batch: Batch, tokens: np.ndarray) -> np.ndarray:
    mask = batch.get("mask")
    return np.ones(tokens.shape[:-1], bool) if mask is None else np.asarray(mask, bool)
