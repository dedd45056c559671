"""Controls against their definitions on data whose answer is known."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trace_jax import baselines
from trace_jax.baselines import controls
from trace_jax.errors import UserError
from trace_jax.types import Features


def _batches(count: int = 4, masked: bool = False, seed: int = 0):
    rng = np.random.default_rng(seed)
    place = np.random.default_rng(99).normal(size=(3, 5))
    kernel = np.random.default_rng(98).normal(size=(5, 5))
    out = []
    for _ in range(count):
        degraded = rng.normal(size=(8, 3, 5))
        severity = rng.integers(1, 6, size=8)
        batch = {
            "degraded": degraded.astype(np.float32),
            "severity": severity,
            "shifted": (degraded + place + severity[:, None, None]).astype(np.float32),
            "mapped": (degraded @ kernel + 2.0).astype(np.float32),
        }
        if masked:
            batch["mask"] = rng.random((8, 3)) > 0.3
        out.append(batch)
    return out, place, kernel


def _pairs(batches, target):
    return lambda: [{**b, "pristine": b[target]} for b in batches]


def test_mean_shift_is_the_mean_displacement_of_each_place() -> None:
    batches, place, _ = _batches()
    levels = np.concatenate([b["severity"] for b in batches])
    shift = controls.fit_mean_shift(_pairs(batches, "shifted"))["shift"]
    np.testing.assert_allclose(shift, place + levels.mean(), atol=1e-5)
    flat = controls.fit_mean_shift(_pairs(batches, "shifted"), by_place=False)["shift"]
    np.testing.assert_allclose(flat, place.mean(axis=0) + levels.mean(), atol=1e-5)


def test_oracle_knows_the_level_and_leaves_pristine_alone() -> None:
    batches, _, _ = _batches()
    params = controls.fit_mean_shift_oracle(_pairs(batches, "shifted"))
    batch = batches[0]
    recovered = controls.mean_shift_oracle(params, Features(batch["degraded"]), batch["severity"])
    np.testing.assert_allclose(recovered.tokens, batch["shifted"], atol=1e-5)
    same = controls.mean_shift_oracle(params, Features(batch["degraded"]), np.zeros(8, int))
    np.testing.assert_array_equal(same.tokens, batch["degraded"])


def test_ridge_finds_an_affine_map_and_picks_lambda_on_validation() -> None:
    batches, _, kernel = _batches(8)
    held, _, _ = _batches(2, seed=1)
    params = controls.fit_ridge(_pairs(batches, "mapped"), _pairs(held, "mapped"))
    assert params["lambda"] == min(controls.LAMBDAS)
    np.testing.assert_allclose(params["kernel"], kernel, atol=5e-3)
    exact = controls.fit_ridge(_pairs(batches, "mapped"), _pairs(held, "mapped"), lambdas=(0.0,))
    recovered = controls.ridge(exact, Features(jnp.asarray(held[0]["degraded"])))
    np.testing.assert_allclose(recovered.tokens, held[0]["mapped"], atol=1e-4)


def test_a_strong_penalty_draws_ridge_to_the_identity() -> None:
    batches, _, _ = _batches()
    params = controls.fit_ridge(
        _pairs(batches, "mapped"), _pairs(batches, "mapped"), lambdas=(1e9,)
    )
    np.testing.assert_allclose(params["kernel"], np.eye(5), atol=1e-6)


@pytest.mark.parametrize("name", ["mean_shift", "ridge"])
def test_masked_tokens_neither_count_nor_change(name: str) -> None:
    batches, _, _ = _batches(masked=True)
    target = {"mean_shift": "shifted", "ridge": "mapped"}[name]

    def fit(batches):
        pairs = _pairs(batches, target)
        if name == "ridge":
            return controls.fit_ridge(pairs, pairs)
        return controls.fit_mean_shift(pairs)

    params = fit(batches)
    spoilt = [
        {**b, "degraded": np.where(b["mask"][..., None], b["degraded"], np.nan)} for b in batches
    ]
    jax.tree.map(np.testing.assert_array_equal, params, fit(spoilt))
    features = Features(jnp.asarray(batches[0]["degraded"]), jnp.asarray(batches[0]["mask"]))
    recovered = baselines.RECOVER[name](params, features)
    hidden = ~batches[0]["mask"]
    np.testing.assert_array_equal(recovered.tokens[hidden], features.tokens[hidden])
    assert not np.allclose(recovered.tokens, features.tokens)


def test_no_pairs_is_said() -> None:
    with pytest.raises(UserError, match="no training pairs"):
        controls.fit_mean_shift(lambda: [])
    with pytest.raises(UserError, match="no pairs"):
        controls.fit_ridge(lambda: [], lambda: [])


def test_controls_keep_dtype_and_trace() -> None:
    batches, _, _ = _batches()
    params = controls.fit_mean_shift(_pairs(batches, "shifted"))
    features = Features(jnp.asarray(batches[0]["degraded"], jnp.bfloat16))
    for name in ("base", "mean_shift"):
        recovered = jax.jit(baselines.RECOVER[name])(params, features)
        assert recovered.tokens.dtype == jnp.bfloat16
