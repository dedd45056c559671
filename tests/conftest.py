"""What every test shares: one CPU thread pool a worker, no network."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Before jax is imported anywhere: tests run on the CPU, and the hub is never asked.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--parity",
        action="store_true",
        help="tell each file's largest difference from the PyTorch references (with -n0)",
    )


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """The README's parity figures: of every comparison that must be below 1e-4, the largest."""
    if not config.getoption("--parity"):
        return
    from support.references import END, MEASURED

    found: dict[str, list[float]] = {}
    for test, value in MEASURED:
        if value < END:  # a test may also show that a wrong way differs
            found.setdefault(test.split("::")[0], []).append(value)
    for file, values in sorted(found.items()):
        terminalreporter.write_line(f"{file}: {len(values)} comparisons, at most {max(values):.1e}")


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
