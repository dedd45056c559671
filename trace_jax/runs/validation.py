"""Validation during FRM training, on the identities of the val split alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from trace_jax.data import loader
from trace_jax.data.feature_cache import FeatureCache
from trace_jax.data.pooling import mean_tokens
from trace_jax.data.rows import subject_of, view_of
from trace_jax.errors import UserError
from trace_jax.frm import FRMConfig, recover_tokens
from trace_jax.metrics import retrieval
from trace_jax.train import sharding
from trace_jax.types import PRISTINE, SEVERITIES


class Validation:
    """Recovers the val split and measures it.

    Figures: `mse` (per element) and `cosine` (mean over tokens) over all levels; `r_at_1`, mean
    pooled recovered queries in the gallery of the val identities' pristine images, and
    `r_at_1_<level>`; `r_at_1_pristine`, recovered pristine queries (a second view where there is
    one), which tells what recovery harms. Exact ties never favour the target.

    Args:
      cache: features that hold the val split.
      config: FRM's geometry.
      mesh: where parameters lie.
      draws: damage draws to validate on, () for all.
      batch_size: rows a batch, divisible by the mesh's data axis.
    """

    def __init__(
        self,
        cache: FeatureCache,
        config: FRMConfig,
        mesh: Mesh,
        draws: tuple[int, ...],
        batch_size: int,
    ) -> None:
        self._cache, self._mesh, self._batch_size = cache, mesh, batch_size
        found = loader.pairs(cache, "val", draws=draws or None)
        reference = loader.pristine_rows(cache, "val")
        names = list(reference)
        place = {row: number for number, row in enumerate(reference.values())}
        second = {
            subject_of(row): index
            for index, row in enumerate(cache.rows)
            if row.split == "val" and row.severity == PRISTINE and view_of(row) == 1
        }
        own = [second.get(name, reference[name]) for name in names]
        if not names:
            raise UserError(f"{cache.folder}: no pristine rows in the val split")
        self._gallery = _pooled(cache, list(reference.values()))
        self._rows = np.concatenate([found.degraded, own])
        self._pristine = np.concatenate([found.pristine, list(reference.values())])
        self._targets = np.array([place[row] for row in self._pristine])
        self._severity = np.concatenate([found.severity, np.zeros(len(own), np.int64)])

        def measure(params: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
            mask, pristine = batch.get("mask"), batch["pristine"].astype(jnp.float32)
            recovered = recover_tokens(params, batch["tokens"], mask, config)
            real = jnp.ones(recovered.shape[:-1]) if mask is None else mask.astype(jnp.float32)
            square = jnp.mean(jnp.square(recovered - pristine), axis=-1)
            dot = jnp.sum(recovered * pristine, axis=-1)
            norms = jnp.sum(recovered**2, axis=-1) * jnp.sum(pristine**2, axis=-1)
            tokens = tuple(range(1, real.ndim))
            pooled = jnp.sum(recovered * real[..., None], axis=-2)
            pooled = pooled / jnp.maximum(jnp.sum(real, axis=-1), 1.0)[..., None]
            return (
                jnp.sum(square * real, axis=tokens),
                jnp.sum(dot * jax.lax.rsqrt(norms + 1e-12) * real, axis=tokens),
                jnp.sum(real, axis=tokens),
                pooled.reshape(pooled.shape[0], -1),
            )

        self._measure = jax.jit(measure, out_shardings=sharding.replicated(mesh))

    def measure(self, params: Any, step: int) -> dict[str, float]:
        """The figures for these parameters; `step` is not used."""
        del step
        parts = []
        for batch, count in self._batches():
            placed = sharding.place(batch, sharding.batch_shardings(batch, self._mesh))
            parts.append([x[:count] for x in jax.device_get(self._measure(params, placed))])
        square, cosine, tokens, pooled = (np.concatenate(p) for p in zip(*parts, strict=True))
        rank = retrieval.search(pooled, self._gallery, self._targets, k=1).rank
        hit = retrieval.recall_at(rank, 1)
        levels = self._severity > 0
        total = tokens[levels].sum(dtype=np.float64)
        values = {
            "r_at_1": float(hit[levels].mean()),
            "mse": float(square[levels].sum(dtype=np.float64) / total),
            "cosine": float(cosine[levels].sum(dtype=np.float64) / total),
        }
        for number, name in enumerate(SEVERITIES):
            chosen = self._severity == number
            if chosen.any():
                values[f"r_at_1_{name}"] = float(hit[chosen].mean())
        return values

    def _batches(self) -> Iterator[tuple[dict[str, np.ndarray], int]]:
        """Batches of one shape, the last filled up with its last row; and how many rows count."""
        for first in range(0, len(self._rows), self._batch_size):
            part = slice(first, first + self._batch_size)
            rows, pristine = self._rows[part], self._pristine[part]
            fill = (0, self._batch_size - len(rows))
            padded = [np.pad(x, fill, mode="edge") for x in (rows, pristine)]
            batch = {
                "tokens": self._cache.tokens(padded[0], "float32"),
                "pristine": self._cache.tokens(padded[1], "float32"),
            }
            masks = [self._cache.mask(x) for x in padded]
            if masks[0] is not None and masks[1] is not None:
                batch["mask"] = masks[0] & masks[1]
            yield batch, len(rows)


def _pooled(cache: FeatureCache, rows: list[int]) -> np.ndarray:
    parts = [
        mean_tokens(cache.tokens(rows[at : at + 256]), cache.mask(rows[at : at + 256]))
        for at in range(0, len(rows), 256)
    ]
    pooled = np.concatenate(parts)
    return pooled.reshape(len(pooled), -1)
