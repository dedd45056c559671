"""`bin/cache_features` as a user meets it, with a real (tiny, random) host."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest
from support import encoders
from support.tiny_host import make_data

import converters
from trace_jax import images
from trace_jax.data.feature_cache import FeatureCache

ROOT = Path(__file__).parent.parent


def command(*arguments, cwd):
    return subprocess.run(
        [ROOT / "bin" / "cache_features", *map(str, arguments)],
        cwd=cwd, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    encoders.folder("siglip2", root / "weights")
    data = make_data(root / "data", identities=5, levels=("L0", "L4"))
    data.path(data.examples[4]).write_bytes(b"")
    return root, data


def test_from_another_directory_with_default_output(world):
    root, data = world
    arguments = ("--host=siglip2", f"--weights={root / 'weights'}", f"--data={data.folder}")
    done = command(*arguments, "--batch_size=4", "--dtype=float32", "--strict", cwd=root)
    assert done.returncode == 3, done.stderr
    out = root / "runs/cache/siglip2/last_hidden_state/tiny_data"
    assert "compilations 1;" in done.stdout and "1 skipped" in done.stdout
    assert f"skipped: {data.examples[4].path} is empty (0 bytes)" in done.stdout
    assert "images/s" in done.stderr and "\r" not in done.stderr  # plain lines, no bar

    host = converters.load_host("siglip2", root / "weights")
    cache = FeatureCache.open(out, expect=host.spec.source, data_hash=data.hash)
    assert len(cache) == len(data.examples) - 1
    for index in (0, 7):
        picture = images.open_rgb(data.path(cache.rows[index]))
        alone = np.asarray(host.tap(host.preprocess([picture])).tokens)
        np.testing.assert_allclose(cache.tokens([index]), alone, rtol=0, atol=1e-5)
    pooled = np.asarray(jax.jit(lambda t: t.mean(1))(cache.tokens([0, 1])))
    np.testing.assert_allclose(cache.pooled([0, 1]), pooled, atol=1e-5)

    other = command(*arguments, "--batch_size=4", cwd=root)
    assert other.returncode == 2 and "dtype: float32 there, bfloat16 here" in other.stderr
    assert "Traceback" not in other.stderr


@pytest.mark.parametrize(
    ("flag", "wanted"),
    [
        ("--data=nowhere", "no such folder"),
        ("--split=dev", "unknown 'dev'"),
        ("--host=resnet", "resnet"),
        ("--dtype=int8", "int8"),
    ],
)
@pytest.mark.slow
def test_wrong_flags(world, flag, wanted):
    root, data = world
    flags = [f"--weights={root / 'weights'}", f"--data={data.folder}", "--host=siglip2", flag]
    done = command(*flags, cwd=root)
    assert done.returncode != 0 and wanted in done.stderr and "Traceback" not in done.stderr
