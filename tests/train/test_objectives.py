"""The FRM objective and its optional contrastive term."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from trace_jax import frm
from trace_jax.frm import LossConfig
from trace_jax.train.objectives import ContrastConfig, frm_loss, info_nce

CONFIG = frm.FRMConfig(dim=8, depth=1, num_heads=2)
RNG = np.random.default_rng(0)


def _batch():
    return {
        "degraded": RNG.normal(size=(4, 3, 8)).astype("f"),
        "pristine": RNG.normal(size=(4, 3, 8)).astype("f"),
        "identity": np.array([0, 1, 2, 0], np.int32),
        "severity": np.array([1, 2, 3, 4], np.int32),
    }


def test_without_the_term_it_is_the_recovery_loss() -> None:
    params, batch = frm.init(jax.random.key(0), CONFIG), _batch()
    value, terms = frm_loss(CONFIG, LossConfig(), ContrastConfig())(params, batch, None)
    recovered = frm.recover_tokens(params, batch["degraded"], None, CONFIG)
    expected, _ = frm.recovery_loss(recovered, batch["pristine"], None, LossConfig())
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert "loss_contrast" not in terms


def test_with_the_term_the_summands_add_up() -> None:
    params, batch = frm.init(jax.random.key(0), CONFIG), _batch()
    mask = np.ones((4, 3), bool)
    contrast = ContrastConfig(weight=0.3)
    loss_fn = frm_loss(CONFIG, LossConfig(), contrast)
    value, terms = loss_fn(params, batch, None)
    total = sum(v for k, v in terms.items() if k.startswith("loss_"))
    np.testing.assert_allclose(value, total, rtol=1e-6)
    masked, _ = loss_fn(params, {**batch, "mask": mask}, None)
    np.testing.assert_allclose(value, masked, rtol=1e-6)


def test_info_nce_by_hand() -> None:
    queries, targets = RNG.normal(size=(4, 5)), RNG.normal(size=(4, 5))
    identity = np.array([0, 1, 2, 0])
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, targets)]
    logits = unit[0] @ unit[1].T / 0.1
    logits[0, 3] = logits[3, 0] = -np.inf  # the same identity's other picture is no negative
    expected = np.mean(np.log(np.exp(logits).sum(1)) - np.diag(logits))
    value, hits = info_nce(jnp.asarray(queries), jnp.asarray(targets), jnp.asarray(identity), 0.1)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(hits, np.mean(logits.argmax(1) == np.arange(4)))


def test_equal_targets_score_no_hit_and_gradients_stay_finite() -> None:
    same = jnp.ones((3, 4))
    assert info_nce(same, same, jnp.arange(3), 0.1)[1] == 0
    one = jnp.zeros(3, jnp.int32)
    gradient = jax.grad(lambda q: info_nce(q, same, one, 0.1)[0])(jnp.zeros((3, 4)))
    assert bool(jnp.isfinite(gradient).all())
