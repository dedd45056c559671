"""What every test shares: one CPU thread pool a worker, no network."""

from __future__ import annotations

import os

# Before jax is imported anywhere: tests run on the CPU, and the hub is never asked.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
