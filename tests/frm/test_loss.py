"""Recovery losses by their formulas."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trace_jax import frm
from trace_jax.errors import UserError

RNG = np.random.default_rng(0)
RECOVERED = RNG.normal(size=(3, 4, 6)).astype("f") * 2
PRISTINE = RNG.normal(size=(3, 4, 6)).astype("f")


def _cosine(r, p):
    return np.mean(np.sum(r * p, -1) / (np.linalg.norm(r, axis=-1) * np.linalg.norm(p, axis=-1)))


def _standard(x):
    return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)


def _expected(name, r, p):
    gap = np.abs(r - p)
    return {
        "mse_cos": np.mean(gap**2) + 0.1 * (1 - _cosine(r, p)),
        "mse": np.mean(gap**2),
        "ln_mse": np.mean((_standard(r) - _standard(p)) ** 2),
        "huber_cos": np.mean(np.where(gap < 1, gap**2 / 2, gap - 0.5)) + 0.1 * (1 - _cosine(r, p)),
    }[name]


@pytest.mark.parametrize("name", sorted(frm.LOSSES))
def test_formula_and_terms(name) -> None:
    loss, terms = frm.recovery_loss(RECOVERED, PRISTINE, None, frm.LossConfig(name))
    np.testing.assert_allclose(loss, _expected(name, RECOVERED, PRISTINE), rtol=1e-5)
    np.testing.assert_allclose(
        sum(v for k, v in terms.items() if k.startswith("loss_")), loss, rtol=1e-6
    )
    np.testing.assert_allclose(terms["cosine"], _cosine(RECOVERED, PRISTINE), rtol=1e-5)


@pytest.mark.parametrize("name", sorted(frm.LOSSES))
def test_masked_tokens_do_not_count(name) -> None:
    mask = RNG.random((3, 4)) > 0.4
    spoilt = np.where(mask[..., None], RECOVERED, np.nan)
    loss, _ = frm.recovery_loss(spoilt, PRISTINE, mask, frm.LossConfig(name))
    np.testing.assert_allclose(loss, _expected(name, RECOVERED[mask], PRISTINE[mask]), rtol=1e-5)


@pytest.mark.parametrize("name", sorted(frm.LOSSES))
def test_gradients_stay_finite_at_equal_and_zero_tokens(name) -> None:
    for recovered, pristine in ((PRISTINE, PRISTINE), (np.zeros((1, 2, 6)), np.zeros((1, 2, 6)))):
        gradient = jax.grad(
            lambda r, p=pristine: frm.recovery_loss(r, jnp.asarray(p), None, frm.LossConfig(name))[
                0
            ]
        )(jnp.asarray(recovered, jnp.float32))
        assert bool(jnp.isfinite(gradient).all())


def test_the_weight_of_the_cosine_is_lambda() -> None:
    light = frm.recovery_loss(RECOVERED, PRISTINE, None, frm.LossConfig(cos_weight=0.0))[0]
    heavy = frm.recovery_loss(RECOVERED, PRISTINE, None, frm.LossConfig(cos_weight=0.5))[0]
    np.testing.assert_allclose(heavy - light, 0.5 * (1 - _cosine(RECOVERED, PRISTINE)), rtol=1e-5)


def test_unknown_loss_lists_the_known() -> None:
    with pytest.raises(UserError, match="huber_cos"):
        frm.LossConfig("l1")
