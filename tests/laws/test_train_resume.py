"""A broken and resumed run ends as an unbroken one: same parameters, same log."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from support import tiny_training

from trace_jax.train import metrics_log

SCRIPT = Path(tiny_training.__file__)
ROOT = SCRIPT.parents[2]


def rows(workdir):
    """The log without what depends on the machine."""
    return [
        {name: value for name, value in row.items() if not name.startswith("time/")}
        for row in metrics_log.read(Path(workdir) / "metrics.jsonl")
    ]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("unbroken")
    return workdir, tiny_training.train(workdir)


def same(fitted, workdir, unbroken):
    jax.tree.map(np.testing.assert_array_equal, fitted.params, unbroken[1].params)
    assert rows(workdir) == rows(unbroken[0])
    assert (fitted.best_step, fitted.best_metrics) == (
        unbroken[1].best_step,
        unbroken[1].best_metrics,
    )


@pytest.mark.parametrize("pauses", [(8,), (1, 7, 10, 15)], ids=["8+8", "1+6+3+5+1"])
def test_paused_and_resumed(tmp_path, unbroken, pauses) -> None:
    for step in pauses:
        paused = tiny_training.train(tmp_path, stop_at=step)
        assert (paused.status, paused.step) == ("paused", step)
    same(tiny_training.train(tmp_path), tmp_path, unbroken)


def test_a_finished_run_does_nothing_more(tmp_path) -> None:
    first = tiny_training.train(tmp_path)
    before = {p: p.read_bytes() for p in (tmp_path / "checkpoints").rglob("*") if p.is_file()}
    again = tiny_training.train(tmp_path, source=None)
    assert again.status == "finished"
    jax.tree.map(np.testing.assert_array_equal, first.params, again.params)
    assert before == {
        p: p.read_bytes() for p in (tmp_path / "checkpoints").rglob("*") if p.is_file()
    }


def _start(workdir, delay):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(workdir), str(delay)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _kill_loop(workdir, unbroken, kills, seed):
    """Kills after each of `kills` moments, spread over the run, then lets it end."""
    moments = random.Random(seed)
    for _ in range(kills):
        process = _start(workdir, 0.05)
        with process:
            deadline = time.monotonic() + 120
            # The moment counts from the first sign of life: start-up takes longer than the run.
            while not (workdir / "metrics.jsonl").exists() and process.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            time.sleep(moments.uniform(0.0, 1.5))
            process.send_signal(signal.SIGKILL)
    with _start(workdir, 0.0) as last:
        out, err = last.communicate(timeout=300)
    assert out.split() == ["finished", str(tiny_training.STEPS)], err
    saved = np.load(workdir / "params.npz")
    for name, leaf in zip(saved.files, jax.tree.leaves(unbroken[1].params), strict=True):
        np.testing.assert_array_equal(saved[name], leaf)
    assert rows(workdir) == rows(unbroken[0])


def test_killed_and_run_again(tmp_path, unbroken) -> None:
    _kill_loop(tmp_path, unbroken, kills=2, seed=0)


@pytest.mark.slow
def test_killed_at_twenty_moments(tmp_path, unbroken) -> None:
    for seed in range(5):
        workdir = tmp_path / str(seed)
        workdir.mkdir()
        _kill_loop(workdir, unbroken, kills=4, seed=seed)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_so(tmp_path, unbroken, number) -> None:
    process = _start(tmp_path, 0.3)
    with process:
        deadline = time.monotonic() + 120
        while not (tmp_path / "metrics.jsonl").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1.0)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert out.split()[0] == "interrupted", (out, err)
    assert f"{number.name} at step {out.split()[1]}: saved" in err
    same(tiny_training.train(tmp_path), tmp_path, unbroken)


@pytest.mark.parametrize("victim", ["d", "meta.json", "checksums.json"])
def test_a_damaged_checkpoint_falls_back(tmp_path, unbroken, capsys, victim) -> None:
    tiny_training.train(tmp_path, stop_at=10)
    newest = tmp_path / "checkpoints" / "00000010"
    files = [p for p in newest.rglob("*") if p.is_file()]
    chosen = max(
        (p for p in files if victim in (p.name, p.parent.name)), key=lambda p: p.stat().st_size
    )
    data = bytearray(chosen.read_bytes())
    data[len(data) // 2] ^= 0x55
    chosen.write_bytes(bytes(data))
    resumed = tiny_training.train(tmp_path)
    errors = capsys.readouterr().err
    assert "00000010: damaged checkpoint" in errors
    assert "going on from" in errors and "00000008" in errors
    same(resumed, tmp_path, unbroken)
