"""What a results folder says of how it was made, and the training logs it keeps beside it."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flax
import jax
import numpy as np

import trace_jax
from trace_jax.data.feature_cache import FeatureCache
from trace_jax.runs import cache as cache_run
from trace_jax.runs.conditions import PRISTINE, Condition
from trace_jax.runs.queries import Queries

if TYPE_CHECKING:
    from trace_jax.runs.evaluate import EvaluateConfig

_CURVES_LIMIT = 8 * 2**20  # bytes of a training log worth copying beside the results


def describe(
    config: EvaluateConfig,
    cache: FeatureCache,
    data_folder: Path | None,
    chosen: Queries,
    found: Sequence[Condition],
    out: Path,
    notes: Sequence[str],
) -> dict[str, Any]:
    """`meta` of a results folder: everything about the run but its numbers."""
    plan = cache.manifest
    return {
        **circumstances(config.command),
        "data": {
            "name": plan.dataset_name,
            "version": plan.dataset_version,
            "hash": plan.dataset_hash,
            "folders": [] if data_folder is None else places(data_folder, out),
        },
        "host": {
            "name": plan.host,
            "tap": plan.tap,
            "weights_hash": plan.weights_hash,
            "shape": list(plan.shape),
        },
        "cache": {"folder": str(cache.folder), "dtype": plan.dtype, "code": plan.code_version},
        "split": config.split,
        "gallery": config.gallery,
        "gallery_size": len(chosen.gallery),
        "pristine_view": chosen.pristine_view,
        "limit": config.limit or None,
        "identities": chosen.identities,
        "queries": chosen.counts,
        "conditions": told((*found, Condition(PRISTINE, PRISTINE))),
        "curves": curves(found, cache.source.host, out),
        "notes": list(notes),
    }


def circumstances(command: str) -> dict[str, Any]:
    """When, by which command, with which versions, on what machine."""
    device = jax.local_devices()[0]
    return {
        "created": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "command": command,
        "versions": {
            "trace_jax": trace_jax.__version__,
            "jax": jax.__version__,
            "flax": flax.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "machine": f"{os.cpu_count()} CPU cores, {jax.device_count()} x {device.device_kind}",
    }


def places(data_folder: Path, out: Path) -> list[str]:
    """Where the pictures lie, seen from the results folder and from here."""
    return [os.path.relpath(data_folder, out), str(data_folder)]


def told(found: Sequence[Condition]) -> list[dict[str, Any]]:
    """What results say of each condition."""
    return [
        {
            "name": c.name,
            "kind": c.kind,
            "about": c.about,
            "origin": c.origin,
            "sha256": c.sha256,
            "num_params": c.num_params,
        }
        for c in found
    ]


def curves(found: Sequence[Condition], host: str, out: Path) -> list[dict[str, str]]:
    """Copies training logs beside the results, so that a moved folder keeps its curves."""
    places = [(c.name, [c.folder, c.folder.parent]) for c in found if c.folder is not None]
    places.append((f"host {host}", [cache_run.EMBEDDED_DATA.parent / host]))
    kept = []
    for name, folders in places:
        for folder in folders:
            log = folder / "metrics.jsonl"
            if log.is_file() and log.stat().st_size <= _CURVES_LIMIT:
                copy = Path("curves") / f"{name.replace(' ', '_')}.jsonl"
                (out / copy).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(log, out / copy)
                kept.append({"name": name, "path": str(copy)})
                break
    return kept
