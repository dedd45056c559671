"""The average of the parameters: its rule, and what the loop does with it."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import tiny_training

from trace_jax.errors import UserError
from trace_jax.train import ema, loop, metrics_log, optimizer


def test_the_average_follows_the_rule_of_the_recipe() -> None:
    config = ema.EmaConfig()
    transform = ema.averaged(optax.sgd(0.5), config)
    params = {"x": jnp.array([4.0, -2.0])}
    state = transform.init(params)
    wanted = np.array([4.0, -2.0])
    for n in range(1, 8):
        updates, state = transform.update({"x": params["x"] + n}, state, params)
        params = optax.apply_updates(params, updates)
        keep = 0.993 * (1 - math.exp(-n / 100))
        wanted = keep * wanted + (1 - keep) * np.asarray(params["x"])
        np.testing.assert_allclose(ema.average_of(state)["x"], wanted, rtol=1e-6)
    assert int(state.done) == 7


def test_the_decay_rises_to_its_value() -> None:
    config = ema.EmaConfig(decay=0.9, ramp=10.0)
    values = np.asarray(ema.decay_at(jnp.arange(1, 200), config))
    assert (np.diff(values) >= 0).all() and values[0] < 0.1 and values[-1] == pytest.approx(0.9)
    assert float(ema.decay_at(jnp.int32(1), ema.EmaConfig(0.9, 0.0))) == pytest.approx(0.9)


def test_updates_stay_what_they_are_and_other_optimizers_have_no_average() -> None:
    params, grads = {"x": jnp.ones(3)}, {"x": jnp.arange(3.0)}
    plain = optax.adam(1e-2)
    wrapped = ema.averaged(plain, ema.EmaConfig())
    one, state = plain.update(grads, plain.init(params), params)
    other, _ = wrapped.update(grads, wrapped.init(params), params)
    np.testing.assert_array_equal(one["x"], other["x"])
    assert ema.average_of(state) is None


@pytest.mark.parametrize("given", [{"decay": 1.0}, {"decay": 0.0}, {"ramp": -1.0}])
def test_impossible_decays_are_refused(given: dict) -> None:
    with pytest.raises(UserError, match="ema"):
        ema.EmaConfig(**given)


def _train(workdir, **options):
    config = dataclasses.replace(tiny_training.CONFIG, eval_first=False)
    transform = ema.averaged(
        optimizer.make(config.optim, config.steps), ema.EmaConfig(decay=0.9, ramp=4.0)
    )
    return tiny_training.train(workdir, config=config, transform=transform, **options)


def _rows(workdir):
    rows = metrics_log.read(workdir / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def test_the_loop_evaluates_the_average_and_resumes_with_it(tmp_path) -> None:
    whole = _train(tmp_path / "whole")
    assert _train(tmp_path / "broken", stop_at=7).status == "paused"
    resumed = _train(tmp_path / "broken")
    jax.tree.map(np.testing.assert_array_equal, whole.params, resumed.params)
    assert _rows(tmp_path / "whole") == _rows(tmp_path / "broken")
    last = [row for row in _rows(tmp_path / "whole") if row["kind"] == "val"][-1]
    assert {"score", "score_ema"} <= last.keys()
    assert last["score"] != last["score_ema"]


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_better_of_the_two_is_the_best(tmp_path, mode: str) -> None:
    """Weights that only grow: the average lags behind, so it is the better one for "min" alone."""
    found = []

    def loss(params, batch, rng):
        del batch, rng
        return -jnp.sum(params["x"]), {}

    config = loop.LoopConfig(
        steps=6, eval_every=3, best_metric="size", best_mode=mode,
        optim=optimizer.OptimizerConfig(lr=0.1, warmup_steps=0, schedule="constant"),
    )  # fmt: skip
    loop.fit(
        loss,
        {"x": np.ones(2, np.float32)},
        lambda step: {"y": np.zeros(8, np.float32)},
        config,
        workdir=tmp_path,
        transform=ema.averaged(optimizer.make(config.optim, 6), ema.EmaConfig(0.9, 0.0)),
        evaluate=lambda params, step: {"size": float(params["x"].sum())},
        on_best=lambda params, step, metrics: found.append((params["x"].sum(), step, metrics)),
    )
    value, step, metrics = found[-1]
    name = "size" if mode == "max" else "size_ema"
    assert (step, value) == (6 if mode == "max" else 3, pytest.approx(metrics[name]))
    assert metrics["size"] > metrics["size_ema"]
