"""What every test shares: one CPU thread pool a worker, no network."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Before jax is imported anywhere: tests run on the CPU, and the hub is never asked.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="module")
def compile_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Equal programs of several runs are compiled once: most of these tests' time is XLA's."""
    import jax

    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update(names[0], str(tmp_path_factory.mktemp("compiled")))
    jax.config.update(names[1], 0.0)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
