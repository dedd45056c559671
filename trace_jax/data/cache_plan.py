"""What a feature cache is to hold, fixed before the first image is encoded.

Everything that could change one stored byte is in the plan, so a run that resumes compares plans
and either goes on to the very same bytes or refuses, naming the difference.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from trace_jax import files
from trace_jax.data import rows as row_schema
from trace_jax.data.rows import Row
from trace_jax.errors import UserError
from trace_jax.types import FeatureSource

SCHEMA = 1
DTYPES: Mapping[str, np.dtype] = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
}

# A kill loses at most the shard in work, so a shard is small: seconds of work on a GPU, under a
# minute on two cores. Few enough files result even for a large host (1,000 shards for 30 GB).
SHARD_BYTES = 32 * 2**20
SHARD_ROWS = 1024


@dataclasses.dataclass(frozen=True)
class CachePlan:
    """The facts of one cache; `plan.json` and the head of `manifest.json`.

    Attributes:
      host, tap, weights_hash: the FeatureSource of every row.
      preprocessing: the host's preprocessing constants.
      dtype: stored dtype, "bfloat16" or "float32".
      shape: of one row's tokens, [..., N, D]; N is the padded count where `masked`.
      masked: whether a mask [..., N] is stored beside the tokens.
      compute_dtype: dtype the host computed in.
      platform: accelerator kind that computed ("cpu", "gpu", "tpu"); rounding differs by kind.
      batch_size: images a call; shards hold whole batches.
      code_version: package version and hash of the sources that make features.
      dataset_name, dataset_version, dataset_hash: the data folder (`manifest.Dataset.hash`).
      splits: which splits were asked for.
      rows: images planned, readable or not.
      rows_hash: SHA-256 over the planned rows in order.
      shard_rows: planned rows a shard; the last may hold fewer.
    """

    host: str
    tap: str
    weights_hash: str
    preprocessing: Mapping[str, Any]
    dtype: str
    shape: tuple[int, ...]
    masked: bool
    compute_dtype: str
    platform: str
    batch_size: int
    code_version: str
    dataset_name: str
    dataset_version: str
    dataset_hash: str
    splits: tuple[str, ...]
    rows: int
    rows_hash: str
    shard_rows: int
    schema: int = SCHEMA

    @property
    def source(self) -> FeatureSource:
        """What the cached features carry as `Features.source`."""
        return FeatureSource(self.host, self.tap, self.weights_hash)

    @property
    def shards(self) -> int:
        """How many shards the rows fill."""
        return math.ceil(self.rows / self.shard_rows)

    @property
    def row_bytes(self) -> int:
        """Stored bytes of one row, tokens and mask."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize + self.mask_bytes

    @property
    def mask_bytes(self) -> int:
        """Stored bytes of one row's mask; 0 without one."""
        return math.prod(self.shape[:-1]) if self.masked else 0

    @property
    def total_bytes(self) -> int:
        """Disk the shards will take."""
        return self.rows * self.row_bytes

    def shard_range(self, shard: int) -> range:
        """The planned rows that a shard holds."""
        first = shard * self.shard_rows
        return range(first, min(first + self.shard_rows, self.rows))

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object."""
        # Through text and back: a tuple in the constants would differ from the list read later.
        return json.loads(json.dumps(dataclasses.asdict(self), sort_keys=True, allow_nan=False))


def plan_shard_rows(row_bytes: int, batch_size: int) -> int:
    """Rows a shard: the most whole batches within SHARD_BYTES and SHARD_ROWS, at least one."""
    rows = min(SHARD_BYTES // max(row_bytes, 1), SHARD_ROWS)
    return max(rows // batch_size, 1) * batch_size


def rows_hash(examples: Sequence[Row]) -> str:
    """Hex SHA-256 over rows in order."""
    return files.sha256_json([row_schema.to_json(example) for example in examples])


def from_json(raw: Any, origin: str) -> CachePlan:
    """Reads a plan back.

    Args:
      raw: a JSON value; further keys are ignored (the manifest has more).
      origin: file name for the message.

    Raises:
      UserError: it is no plan of this schema.
    """
    names = [field.name for field in dataclasses.fields(CachePlan)]
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA or set(names) - set(raw):
        raise UserError(
            f"{origin}: is not a feature cache of schema {SCHEMA}. "
            "Make it again: bin/cache_features --replace."
        )
    fields = {name: raw[name] for name in names}
    return CachePlan(**fields | {"shape": tuple(raw["shape"]), "splits": tuple(raw["splits"])})


def differences(there: CachePlan, here: CachePlan) -> list[str]:
    """One line for each fact in which two plans differ."""
    one, two = there.to_json(), here.to_json()
    return [
        f"{name}: {_short(one[name])} there, {_short(two[name])} here"
        for name in one
        if one[name] != two[name]
    ]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
