"""What the training loop promises besides resuming (tests/laws/test_train_resume.py)."""

from __future__ import annotations

import dataclasses
import re
import threading

import jax.numpy as jnp
import numpy as np
import pytest
from support import tiny_training
from support.tiny_training import CONFIG

from trace_jax.errors import FaultsError, UserError
from trace_jax.train import checkpoint, loop, metrics_log, optimizer
from trace_jax.train.batches import Prefetcher


def _config(**changes):
    return dataclasses.replace(CONFIG, **changes)


def _rows(workdir, kind):
    return [row for row in metrics_log.read(workdir / "metrics.jsonl") if row["kind"] == kind]


def test_it_learns_and_logs_means_over_the_window(tmp_path) -> None:
    losses = {}

    def loss(params, batch, rng):
        del rng
        value = jnp.mean(jnp.square(batch["x"] @ params["first"]["kernel"] - 1))
        return value, {"step_number": batch["step"]}

    def batches(step):
        losses[step] = True
        return {**tiny_training.batches(step), "step": np.float32(step)}

    fitted = tiny_training.train(
        tmp_path, batches, loss=loss, config=_config(steps=100, log_every=10, eval_every=0)
    )
    rows = _rows(tmp_path, "train")
    assert [row["step"] for row in rows] == list(range(10, 101, 10))
    assert rows[0]["step_number"] == np.mean(range(10))
    assert rows[-1]["loss"] < 0.9 * rows[0]["loss"]
    assert sorted(losses) == list(range(100))
    assert {"grad_norm", "lr", "time/steps_per_second", "time/wait_share"} <= rows[0].keys()
    assert fitted.status == "finished" and 0 <= fitted.wait_share <= 1
    assert fitted.steps_per_second > 0
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_a_value_that_is_not_finite_is_named(tmp_path) -> None:
    def loss(params, batch, rng):
        value, terms = tiny_training.loss(params, batch, rng)
        poison = jnp.where(batch["poison"].sum() > 0, jnp.log(-1.0), 0.0)
        second = jnp.sum(params["second"]["kernel"]) * poison
        return value + second, {**terms, "second": second}

    def batches(step):
        poison = np.full(8, step == 6, "f")
        return {**tiny_training.batches(step), "poison": poison}

    with pytest.raises(FaultsError) as caught:
        tiny_training.train(tmp_path, batches, loss=loss)
    text = str(caught.value)
    assert text.startswith("step 7: values are not finite")
    assert "term 'second' is nan" in text and "term 'error'" not in text
    assert re.search("first gradient leaf not finite: second/kernel", text)
    newest = checkpoint.newest(tmp_path / "checkpoints")
    assert newest is not None and newest.step == 5


def test_a_bad_input_is_named(tmp_path) -> None:
    def batches(step):
        batch = tiny_training.batches(step)
        if step == 3:
            batch["y"][0, 0] = np.inf
        return batch

    with pytest.raises(FaultsError, match="input 'y' already holds values that are not finite"):
        tiny_training.train(tmp_path, batches)


def test_early_stopping_keeps_the_best(tmp_path) -> None:
    scores = iter([0.1, 0.5, 0.4, 0.5, 0.3, 0.9])
    saved = {}
    fitted = tiny_training.train(
        tmp_path,
        config=_config(eval_every=2, patience=3, save_every=0),
        evaluate=lambda params, step: {"score": next(scores)},
        on_best=lambda params, step, metrics: saved.update({step: (params, metrics)}),
    )
    # A tie is no improvement: 0.5 at step 2, then 0.4, 0.5, 0.3.
    assert (fitted.status, fitted.step, fitted.best_step) == ("stopped_early", 8, 2)
    assert list(saved) == [0, 2] and saved[2][1]["score"] == 0.5
    again = tiny_training.train(
        tmp_path, source=None, config=_config(eval_every=2, patience=3, save_every=0)
    )
    assert (again.status, again.best_step) == ("stopped_early", 2)
    names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert names == ["00000002", "00000006", "00000008"]
    best = checkpoint.load_params(tmp_path / "checkpoints" / "00000002", tiny_training.params())
    np.testing.assert_array_equal(best["first"]["kernel"], saved[2][0]["first"]["kernel"])


def test_another_run_in_the_same_folder_is_refused(tmp_path) -> None:
    tiny_training.train(tmp_path, stop_at=2, stamp={"config": {"lr": 1e-3, "seed": 0}})
    with pytest.raises(UserError, match=r"config\.lr: 0\.001 in the checkpoint, 0\.002 now"):
        tiny_training.train(tmp_path, stamp={"config": {"lr": 2e-3, "seed": 0}})


def test_parameters_of_another_shape_are_refused(tmp_path) -> None:
    tiny_training.train(tmp_path, stop_at=2)
    other = tiny_training.params()
    other["first"]["bias"] = np.zeros(33, "f")
    with pytest.raises(UserError, match=r"params/first/bias: shape \(32,\) saved, \(33,\) wanted"):
        loop.fit(tiny_training.loss, other, tiny_training.batches, CONFIG, workdir=tmp_path)


def test_all_checkpoints_damaged_is_an_error(tmp_path) -> None:
    tiny_training.train(tmp_path, stop_at=5)
    for path in (tmp_path / "checkpoints").glob("*/meta.json"):
        path.write_text("{}")
    with pytest.raises(UserError, match="all 2 checkpoints are damaged"):
        tiny_training.train(tmp_path)


def test_the_callers_parameters_stay_alive(tmp_path) -> None:
    params = {"w": jnp.ones((4, 4))}

    def loss(p, batch, rng):
        return jnp.sum(p["w"] ** 2) * batch["x"].mean(), {}

    config = loop.LoopConfig(steps=3)
    loop.fit(loss, params, lambda step: {"x": np.ones(2, "f")}, config, workdir=tmp_path)
    np.testing.assert_array_equal(params["w"], 1.0)


def test_constants_reach_the_loss(tmp_path) -> None:
    def loss(p, batch, rng):
        return jnp.sum(p["w"] * batch["frozen"]["scale"]) * batch["x"].mean(), {}

    fitted = loop.fit(
        loss,
        {"w": np.ones((2,), "f")},
        lambda step: {"x": np.ones(2, "f")},
        loop.LoopConfig(steps=1, optim=optimizer.OptimizerConfig(warmup_steps=0)),
        workdir=tmp_path,
        constants={"frozen": {"scale": np.array([1.0, -1.0], "f")}},
    )
    assert fitted.params["w"][0] < 1.0 < fitted.params["w"][1]


def test_iterator_sources_start_where_asked_and_errors_surface() -> None:
    closed = threading.Event()

    def source(start):
        try:
            for step in range(start, 6):
                yield {"step": step}
        finally:
            closed.set()

    ahead = Prefetcher(source, 2, 5)
    assert [ahead.next()[0]["step"] for _ in range(3)] == [2, 3, 4]
    ahead.close()
    assert closed.is_set()
    short = Prefetcher(source, 4, 9)
    assert [short.next()[0]["step"] for _ in range(2)] == [4, 5]
    with pytest.raises(ValueError, match="ended at step 6 of 9"):
        short.next()
    short.close()

    def broken(step):
        raise OSError("disk gone")

    failing = Prefetcher(broken, 0, 3)
    with pytest.raises(OSError, match="disk gone"):
        failing.next()
    failing.close()


def test_the_log_drops_what_a_kill_cut_or_outlived(tmp_path) -> None:
    log = metrics_log.MetricsLog(tmp_path, -1, active=True)
    for step in (1, 2, 3):
        log.write(step, "train", {"loss": 1.0 / step})
    log.close()
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 4, "ki')
    assert [row["step"] for row in metrics_log.read(path)] == [1, 2, 3]
    metrics_log.MetricsLog(tmp_path, 2, active=True).close()
    assert [row["step"] for row in metrics_log.read(path)] == [1, 2]


def test_schedule_and_decay_mask() -> None:
    config = optimizer.OptimizerConfig(lr=1.0, warmup_steps=4, final_fraction=0.1)
    rate = optimizer.schedule(config, 20)
    np.testing.assert_allclose([rate(s) for s in range(5)], [0.25, 0.5, 0.75, 1.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(rate(20), 0.1, rtol=1e-6)
    stacked = {"qkv": {"kernel": np.ones((2, 3, 4)), "bias": np.ones((2, 4))}}
    tree = {"blocks": {**stacked, "mlp_norm": {"scale": np.ones((2, 3))}, "alpha": np.ones((2, 3))}}
    mask = optimizer.decays(tree, config.no_decay)["blocks"]
    assert mask["qkv"] == {"kernel": True, "bias": False}
    assert mask["mlp_norm"] == {"scale": False} and mask["alpha"] is False


def test_wrong_settings_are_named() -> None:
    with pytest.raises(UserError, match="best_mode"):
        loop.LoopConfig(steps=1, best_mode="high")
    with pytest.raises(UserError, match="schedule"):
        optimizer.OptimizerConfig(schedule="step")
