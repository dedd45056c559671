"""A caching run killed at any moment and run again ends with the bytes of an unbroken run."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.tiny_host import make_cache, make_data, snapshot

from trace_jax.data.feature_cache import FeatureCache
from trace_jax.errors import UserError

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "tests" / "support" / "tiny_host.py"
ENVIRONMENT = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
DELAY = "0.1"  # seconds a batch; there are 8 shards of one batch each


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    data = make_data(root / "data")
    data.path(data.examples[6]).write_bytes(b"")  # a failed row must survive kills as well
    make_cache(data.folder, root / "unbroken", shard_rows=4)
    return data.folder, snapshot(root / "unbroken")


def start(data, out):
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(data), str(out), DELAY],
        env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def kill_after(data, out, seconds):
    """Starts a run and kills it `seconds` after its first file; returns whether it was killed."""
    process = start(data, out)
    while process.poll() is None and not (out / "plan.json").exists():
        time.sleep(0.002)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors
    return process.returncode != 0


def is_whole_or_refused(out):
    try:
        FeatureCache.open(out).verify()
    except UserError as error:
        assert "not finished" in str(error) or "no feature cache" in str(error)


def kill_and_resume(world, tmp_path, moments):
    data, unbroken = world
    killed = 0
    for number, seconds in enumerate(moments):
        out = tmp_path / str(number)
        killed += kill_after(data, out, seconds)
        is_whole_or_refused(out)
        make_cache(data, out, shard_rows=4)
        assert snapshot(out) == unbroken, f"killed after {seconds:.3f} s"
    return killed


def test_killed_at_three_moments(world, tmp_path):
    assert kill_and_resume(world, tmp_path, [0.05, 0.4, 0.7]) >= 2


def test_killed_again_and_again_in_one_folder(world, tmp_path):
    data, unbroken = world
    for seconds in (0.3, 0.3):
        kill_after(data, tmp_path / "out", seconds)
    make_cache(data, tmp_path / "out", shard_rows=4)
    assert snapshot(tmp_path / "out") == unbroken


@pytest.mark.slow
def test_killed_at_twenty_random_moments(world, tmp_path):
    rng = random.Random(0)
    assert kill_and_resume(world, tmp_path, [rng.uniform(0, 1.2) for _ in range(20)]) >= 10


@pytest.mark.parametrize("call", ["os.replace", "os.fsync"])
def test_stopped_at_every_write(world, tmp_path, call, monkeypatch):
    """Every single step of every file's writing, exactly, not by chance."""
    data, unbroken = world
    owner = {"os.replace": os, "os.fsync": os}[call]
    name = call.split(".")[1]
    original = getattr(owner, name)

    class Stopped(BaseException):
        pass

    step = 0
    while True:
        calls = 0

        def counted(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > step:  # noqa: B023
                raise Stopped
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)
        out = tmp_path / str(step)
        try:
            make_cache(data, out, shard_rows=4)
        except Stopped:
            monkeypatch.setattr(owner, name, original)
            is_whole_or_refused(out)
            make_cache(data, out, shard_rows=4)
            assert snapshot(out) == unbroken, f"{call} number {step}"
            step += 1 if step < 4 else 5
        else:
            break
    assert step > 15


def test_retry_killed_in_between(world, tmp_path, monkeypatch):
    """A finished cache under --retry_failed is not whole until it is finished again."""
    data, unbroken = world
    out = tmp_path / "out"
    make_cache(data, out, shard_rows=4)
    original = os.replace

    def fails(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(KeyboardInterrupt):
        make_cache(data, out, shard_rows=4, retry_failed=True)
    monkeypatch.setattr(os, "replace", original)
    with pytest.raises(UserError, match="not finished"):
        FeatureCache.open(out)
    make_cache(data, out, shard_rows=4)
    assert snapshot(out) == unbroken


_WORKER = """
import sys; sys.path.insert(0, "tests")
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
from support.tiny_host import make_cache
result = make_cache(sys.argv[3], sys.argv[4], shard_rows=4)
assert result.rows == 31 and result.encoded == 16, result
"""


def test_two_processes_share_the_shards(world, tmp_path):
    data, unbroken = world
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, address, str(n), str(data), str(tmp_path / "out")],
            cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for n in range(2)
    ]  # fmt: skip
    errors = [worker.communicate(timeout=120)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], errors
    assert snapshot(tmp_path / "out") == unbroken
