"""One rule places every leaf; sharded and many-process runs equal the single device."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P
from support import tiny_training

from trace_jax.errors import UserError
from trace_jax.train import distributed, metrics_log, sharding

SCRIPT = Path(tiny_training.__file__)
ROOT = SCRIPT.parents[2]

FOUR_DEVICES = """
import dataclasses, json, sys
import jax, numpy as np
from support import tiny_training as t
from trace_jax.train import sharding
out = {}
for name, model, devices in (("one", 1, 1), ("data4", 1, 4), ("data2model2", 2, 4)):
    mesh = sharding.make_mesh(model, devices)
    shapes = jax.eval_shape(t.params)
    specs = sharding.tree_shardings(shapes, mesh, 1)
    fitted = t.train(f"{sys.argv[1]}/{name}", mesh=mesh)
    np.savez(f"{sys.argv[1]}/{name}.npz", *jax.tree.leaves(fitted.params))
    out[name] = [list(s.spec) for s in jax.tree.leaves(specs)]
t.train(f"{sys.argv[1]}/moved", mesh=sharding.make_mesh(1, 4), stop_at=7)
moved = t.train(f"{sys.argv[1]}/moved", mesh=sharding.make_mesh(1, 1))
np.savez(f"{sys.argv[1]}/moved.npz", *jax.tree.leaves(moved.params))
print(json.dumps(out))
"""


def _environment(**more):
    base = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    return {**base, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "JAX_PLATFORMS": "cpu", **more}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((32,), P()),  # small
        ((256, 512), P("model", "data")),
        ((4, 512, 256), P(None, "data", "model")),
        ((512, 512), P("model", "data")),  # equal axes: the last takes data
        ((511, 512), P(None, "data")),
        ((511, 513), P()),
    ],
)
def test_the_rule(shape, expected) -> None:
    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    assert sharding.leaf_spec(shape, mesh, 1024) == expected


def test_sharded_equals_single_device(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FOUR_DEVICES, str(tmp_path)],
        env=_environment(XLA_FLAGS="--xla_force_host_platform_device_count=4"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    specs = json.loads(done.stdout)
    assert specs["data4"] == [["data"], [None, "data"], ["data"]]
    one = np.load(tmp_path / "one.npz")
    for name in ("data4", "data2model2", "moved"):
        other = np.load(tmp_path / f"{name}.npz")
        for leaf in one.files:
            np.testing.assert_allclose(other[leaf], one[leaf], atol=1e-6, err_msg=name)


def test_two_processes_reach_the_single_process_loss(tmp_path) -> None:
    alone, both = tmp_path / "alone", tmp_path / "both"
    alone.mkdir()
    both.mkdir()
    tiny_training.train(alone)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # One device a process: the test's own flags may ask for more.
    environment = _environment(XLA_FLAGS="")
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(both), "0", f"127.0.0.1:{port}", "2", str(number)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    ends = [process.communicate(timeout=300) for process in processes]
    for process, (out, err) in zip(processes, ends, strict=True):
        assert process.returncode == 0, err
        assert out.split()[-2:] == ["finished", str(tiny_training.STEPS)]  # gloo talks first
    rows = [
        [r for r in metrics_log.read(folder / "metrics.jsonl") if r["kind"] == "train"]
        for folder in (alone, both)
    ]
    assert len(rows[0]) == len(rows[1]) > 0
    for one, two in zip(*rows, strict=True):
        assert abs(one["loss"] - two["loss"]) <= 1e-6
    # Checkpoints of two processes are whole for one.
    again = tiny_training.train(both, source=None)
    saved = np.load(both / "params.npz")
    for name, leaf in zip(saved.files, jax.tree.leaves(again.params), strict=True):
        np.testing.assert_array_equal(saved[name], leaf)


def test_a_batch_that_does_not_divide_is_named() -> None:
    mesh = AbstractMesh((4, 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with pytest.raises(UserError, match="'x' has 6 rows"):
        sharding.batch_shardings({"x": np.zeros((6, 2))}, mesh)
    with pytest.raises(UserError, match="model axis of 3"):
        sharding.make_mesh(3)


def test_start_up_asks_for_all_or_nothing(monkeypatch) -> None:
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)
    distributed.start()
    with pytest.raises(UserError, match="--process_id"):
        distributed.start("localhost:1", 2)
    monkeypatch.setenv("JAX_PROCESS_ID", "2")
    with pytest.raises(UserError, match=r"process_id 2 is not in 0\.\.1"):
        distributed.start("localhost:1", 2)
