"""Losses against plain numpy, their degenerate cases, and one whole loss of a step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trace_jax.train import contrastive

RNG = np.random.default_rng(0)
A = RNG.normal(size=(5, 8)).astype(np.float32)
B = RNG.normal(size=(5, 8)).astype(np.float32)
EYE = np.eye(5, dtype=bool)


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a = a / np.linalg.norm(a, axis=1, keepdims=True)
    b = b / np.linalg.norm(b, axis=1, keepdims=True)
    return a @ b.T


def _log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    return x - np.log(np.exp(x).sum(axis=axis, keepdims=True))


def test_pair_loss_is_infonce_both_ways() -> None:
    logits = 7.0 * _cosines(A, B)
    wanted = -0.5 * (
        np.diag(_log_softmax(logits, 0)).mean() + np.diag(_log_softmax(logits, 1)).mean()
    )
    loss, _ = contrastive.pair_loss(A, B, jnp.log(7.0))
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)


def test_pair_hit_is_strict_for_a_collapsed_encoder() -> None:
    same = jnp.ones((4, 8))
    assert float(contrastive.pair_loss(same, same, jnp.log(7.0))[1]) == 0.0
    assert float(contrastive.pair_loss(A, A, jnp.log(7.0))[1]) == 1.0


def test_the_temperature_is_capped() -> None:
    at_cap = contrastive.pair_loss(A, B, jnp.log(100.0))[0]
    np.testing.assert_allclose(contrastive.pair_loss(A, B, jnp.asarray(9.0))[0], at_cap, rtol=1e-5)


def test_softmax_text_loss_without_duplicates_is_the_pair_loss() -> None:
    wanted = contrastive.pair_loss(A, B, jnp.log(7.0))[0]
    loss = contrastive.softmax_text_loss(A, B, jnp.log(7.0), EYE)
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)


def test_softmax_text_loss_is_lowest_where_equal_captions_share_the_mass() -> None:
    same = EYE.copy()
    same[0, 1] = same[1, 0] = True
    texts = B.copy()
    texts[1] = texts[0]
    images = texts.copy()
    shared = contrastive.softmax_text_loss(images, texts, jnp.log(90.0), same)
    np.testing.assert_allclose(shared, 2 * np.log(2) / 5, atol=1e-3)
    gradient = jax.grad(contrastive.softmax_text_loss)(images, texts, jnp.log(90.0), same)
    assert float(jnp.abs(gradient).max()) < 1e-2


def test_sigmoid_text_loss_is_siglips() -> None:
    logits = 10.0 * _cosines(A, B) - 3.0
    sign = 2.0 * EYE - 1.0
    wanted = np.log1p(np.exp(-sign * logits)).sum() / 5
    loss = contrastive.sigmoid_text_loss(A, B, jnp.log(10.0), jnp.asarray(-3.0), EYE)
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)


def test_unit_of_zero_has_a_finite_gradient() -> None:
    gradient = jax.grad(lambda x: contrastive.unit(x).sum())(jnp.zeros(4))
    assert np.isfinite(gradient).all()


def test_an_unknown_text_loss_is_refused() -> None:
    config = contrastive.ContrastiveConfig(text="tanh")
    with pytest.raises(ValueError, match="tanh"):
        contrastive.make_loss(lambda p, x: (x, x), lambda p, t: t, lambda p: (p, p), config)


@pytest.mark.parametrize("text", ["sigmoid", "softmax"])
def test_the_whole_loss_reaches_every_parameter(text: str) -> None:
    """A linear toy host: patch means to tokens, their mean to the embedding."""
    dim, size, side = 8, 6, 32
    host = {
        "kernel": jax.random.normal(jax.random.key(0), (3, dim)),
        "words": jax.random.normal(jax.random.key(1), (11, dim)),
        "scale": jnp.asarray(1.0),
        "bias": jnp.asarray(-1.0),
    }

    def encode(params: dict, pixels: jax.Array) -> tuple[jax.Array, jax.Array]:
        patches = pixels.reshape(-1, 2, 16, 2, 16, 3).mean(axis=(2, 4)).reshape(-1, 4, 3)
        tokens = jnp.sin(patches @ params["kernel"])
        return tokens, tokens.mean(axis=1)

    config = contrastive.ContrastiveConfig(text=text)
    loss = contrastive.make_loss(
        encode,
        lambda params, ids: params["words"][ids].mean(axis=1),
        lambda params: (params["scale"], params["bias"]),
        config,
    )
    heads = contrastive.init_heads(jax.random.key(2), dim, types=3, materials=2)
    rng = np.random.default_rng(1)
    batch = {
        "first": rng.integers(0, 256, (size, side, side, 3), np.uint8),
        "second": rng.integers(0, 256, (size, side, side, 3), np.uint8),
        "input_ids": rng.integers(0, 11, (size, 4)),
        "text_group": np.arange(size) // 2,
        "object_type": np.arange(size) % 3,
        "material": rng.integers(0, 2, (size, 2)).astype(np.float32),
    }
    params = {"host": host, "heads": heads}
    (value, terms), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(
        params, batch, jax.random.key(3)
    )
    total = sum(
        getattr(config, name) * terms[name]
        for name in ("pooled", "embedding", "caption", "object_type", "material", "colour")
    )
    np.testing.assert_allclose(value, total, rtol=1e-6)
    flat = {
        jax.tree_util.keystr(path): float(jnp.abs(leaf).max())
        for path, leaf in jax.tree_util.tree_flatten_with_path(gradient)[0]
    }
    unused = {"['host']['bias']"} if text == "softmax" else set()
    assert {name for name, size in flat.items() if size == 0.0} == unused
    assert all(np.isfinite(list(flat.values())))
