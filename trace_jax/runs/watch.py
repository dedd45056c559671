"""Retrieval by severity on another data folder, watched while a host is pretrained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trace_jax.data import manifest
from trace_jax.metrics import retrieval
from trace_jax.train import instances
from trace_jax.types import LEVELS, PRISTINE


class Watch:
    """R@1 of a TRACE-like data folder's validation identities; its test ones are never opened.

    Args:
      folder: the data folder; "" or one that does not exist: nothing is watched.
      side: pixels.
      pooled: (params, uint8 pictures [n, S, S, 3]) -> mean tokens [n, D].
    """

    def __init__(
        self, folder: str, side: int, pooled: Callable[[Any, np.ndarray], np.ndarray]
    ) -> None:
        self._pooled = pooled
        self._watched: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        if not folder or not (Path(folder) / manifest.INFO_FILE).exists():
            return
        dataset = manifest.read(folder)
        rows = [e for e in dataset.examples if e.split == "val" and e.view == 0 and e.draw == 0]
        gallery = {
            e.identity: place for place, e in enumerate(e for e in rows if e.severity == PRISTINE)
        }
        for severity in (PRISTINE, *LEVELS):
            chosen = [e for e in rows if e.severity == severity and e.identity in gallery]
            if chosen:
                self._watched[severity] = (
                    instances.decode(dataset, chosen, side),
                    np.array([gallery[e.identity] for e in chosen]),
                )

    def measure(self, params: Any) -> dict[str, float]:
        """{"watch_L0": R@1, ...} of these parameters."""
        if PRISTINE not in self._watched:
            return {}
        gallery = self._pooled(params, self._watched[PRISTINE][0])
        values = {}
        for severity, (pictures, targets) in self._watched.items():
            if severity != PRISTINE:
                found = retrieval.search(self._pooled(params, pictures), gallery, targets)
                values[f"watch_{severity}"] = float(np.mean(found.rank == 0))
        return values
