"""FRM against its equations (paper section 4)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trace_jax import frm
from trace_jax.errors import FaultsError, UserError
from trace_jax.frm import budget, model
from trace_jax.types import Features, FeatureSource

CONFIG = frm.FRMConfig(dim=16, depth=3, num_heads=4, alpha_init=0.5)
recover = jax.jit(frm.recover_tokens, static_argnums=3)


def _random(params, std=0.2):
    """Every leaf drawn anew: fresh ones hide mistakes behind zeros and ones."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(7), len(leaves))
    return jax.tree.unflatten(
        tree, [std * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    )


@pytest.fixture(scope="module")
def params():
    return _random(frm.init(jax.random.key(0), CONFIG))


def _tokens(*shape):
    return jax.random.normal(jax.random.key(1), shape)


def _reference(params, tokens, mask=None):
    """The equations in float64 numpy, head by head."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)["blocks"]
    u, dim, heads = np.asarray(tokens, np.float64), CONFIG.dim, CONFIG.num_heads
    width = dim // heads

    def norm(x, layer, m):
        centred = x - x.mean(-1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + CONFIG.norm_eps)
        return normal * p[layer]["scale"][m] + p[layer]["bias"][m]

    def linear(x, layer, m):
        return x @ p[layer]["kernel"][m] + p[layer]["bias"][m]

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    for m in range(CONFIG.depth):
        q, k, v = np.split(linear(norm(u, "attn_norm", m), "qkv", m), 3, axis=-1)
        merged = []
        for h in range(heads):
            part = slice(h * width, (h + 1) * width)
            scores = q[..., part] @ np.swapaxes(k[..., part], -1, -2) / np.sqrt(width)
            if mask is not None:
                scores = np.where(mask[..., None, :], scores, -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            merged.append(weights / weights.sum(-1, keepdims=True) @ v[..., part])
        u = u + p["attn_alpha"][m] * linear(np.concatenate(merged, -1), "out", m)
        u = u + p["mlp_alpha"][m] * linear(gelu(linear(norm(u, "mlp_norm", m), "up", m)), "down", m)
    return u


def test_equations(params) -> None:
    tokens = _tokens(2, 5, 16)
    recovered = recover(params, tokens, None, CONFIG)
    np.testing.assert_allclose(recovered, _reference(params, tokens), atol=2e-5)


def test_masked_tokens_are_neither_attended_nor_changed(params) -> None:
    tokens, mask = _tokens(2, 5, 16), np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], bool)
    recovered = recover(params, tokens, mask, CONFIG)
    expected = _reference(params, tokens, mask)
    np.testing.assert_allclose(recovered[mask], expected[mask], atol=2e-5)
    np.testing.assert_array_equal(recovered[~mask], tokens[~mask])
    spoilt = jnp.where(mask[..., None], tokens, jnp.nan)
    again = recover(params, spoilt, mask, CONFIG)
    np.testing.assert_array_equal(again[mask], recovered[mask])


def test_padding_changes_nothing(params) -> None:
    tokens = _tokens(2, 5, 16)
    padded = jnp.pad(tokens, ((0, 0), (0, 3), (0, 0)), constant_values=9.0)
    mask = jnp.arange(8) < jnp.full((2, 1), 5)
    recovered = recover(params, padded, mask, CONFIG)[:, :5]
    np.testing.assert_allclose(recovered, recover(params, tokens, None, CONFIG), atol=1e-5)


@pytest.mark.parametrize("lead", [(), (3,), (2, 4), (2, 1, 3)])
def test_any_leading_axes_each_image_apart(params, lead) -> None:
    tokens = _tokens(*lead, 5, 16)
    recovered = recover(params, tokens, None, CONFIG)
    assert recovered.shape == tokens.shape
    flat = tokens.reshape(-1, 5, 16)
    one = recover(params, flat[-1:], None, CONFIG)
    np.testing.assert_allclose(recovered.reshape(-1, 5, 16)[-1:], one, atol=1e-5)


def test_order_of_tokens_does_not_matter(params) -> None:
    tokens, order = _tokens(1, 6, 16), np.array([3, 0, 5, 1, 2, 4])
    moved = recover(params, tokens[:, order], None, CONFIG)
    whole = recover(params, tokens, None, CONFIG)
    np.testing.assert_allclose(moved, whole[:, order], atol=1e-5)


def test_near_identity_at_the_start_and_exact_at_alpha_zero() -> None:
    tokens = _tokens(4, 9, 16)
    for alpha, limit in ((1e-2, 0.05), (1e-5, 5e-5), (0.0, 0.0)):
        config = frm.FRMConfig(dim=16, depth=3, num_heads=4, alpha_init=alpha)
        fresh = frm.init(jax.random.key(0), config)
        gap = jnp.abs(recover(fresh, tokens, None, config) - tokens)
        assert float(gap.max()) <= limit


def test_features_keep_dtype_carry_and_source(params) -> None:
    source = FeatureSource("siglip2", "last_hidden_state", "abc")
    features = Features(_tokens(2, 5, 16).astype(jnp.bfloat16), None, {"grid": 7}, source)
    recovered = jax.jit(lambda p, f: frm.apply(p, f, CONFIG))(params, features)
    assert recovered.tokens.dtype == jnp.bfloat16
    assert (recovered.carry["grid"], recovered.source) == (7, source)


def test_bfloat16_compute_stays_close(params) -> None:
    config = frm.FRMConfig(dim=16, depth=3, num_heads=4, alpha_init=0.5, compute_dtype="bfloat16")
    tokens = _tokens(2, 5, 16)
    half = recover(params, tokens, None, config)
    assert half.dtype == jnp.float32
    np.testing.assert_allclose(half, recover(params, tokens, None, CONFIG), atol=0.02, rtol=0.02)


def test_gradients_are_those_of_the_equations(params) -> None:
    tokens, mask = _tokens(2, 4, 16), jnp.array([[1, 1, 0, 1], [1, 1, 1, 1]], bool)
    direction = _random(params)

    def total(scale, params):
        moved = jax.tree.map(lambda p, d: p + scale * d, params, direction)
        return jnp.sum(jnp.sin(recover(moved, tokens, mask, CONFIG)))

    value = jax.jit(total)
    slope, step = float(jax.jit(jax.grad(total))(0.0, params)), 2e-2
    near = (float(value(step, params)) - float(value(-step, params))) / (2 * step)
    far = (float(value(2 * step, params)) - float(value(-2 * step, params))) / (4 * step)
    # Richardson's extrapolation of central differences.
    np.testing.assert_allclose(slope, (4 * near - far) / 3, rtol=2e-2)


def test_same_key_same_parameters() -> None:
    one, two = (frm.init(jax.random.key(3), CONFIG) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, one, two)
    kernels = np.asarray(one["blocks"]["qkv"]["kernel"])
    assert kernels.shape == (3, 16, 48)
    assert not np.allclose(kernels[0], kernels[1])


@pytest.mark.parametrize(
    ("dim", "depth", "millions"), [(384, 1, 1.77), (2560, 4, 314.6)], ids=["rf_detr", "qwen3_vl"]
)
def test_the_papers_parameter_counts(dim, depth, millions) -> None:
    kernels = depth * budget.block_params(dim, 4)
    assert round(kernels / 1e6, 2 if millions < 10 else 1) == millions
    # Biases 9D, two norms 4D and two alphas 2D a block are all that the paper's count leaves out.
    assert frm.num_params(dim=dim, depth=depth, mlp_ratio=4) == kernels + depth * 15 * dim


def test_overhead_and_depth_from_a_budget() -> None:
    assert round(budget.overhead(1, host_params=33_700_000, dim=384), 4) == 0.0525
    assert round(budget.overhead(4, host_params=4_000_000_000, dim=2560), 4) == 0.0786
    assert budget.depth(0.0526, host_params=33_700_000, dim=384) == 1
    assert budget.depth(0.0787, host_params=4_000_000_000, dim=2560) == 4
    assert budget.depth(0.1, host_params=375_187_970, dim=768) == 5
    # Exact in decimals: 10% of ten blocks is one block.
    assert budget.depth(0.1, host_params=10 * budget.block_params(7, 4), dim=7) == 1
    with pytest.raises(UserError, match="allows no FRM block"):
        budget.depth(0.01, host_params=33_700_000, dim=384)


def test_wrong_geometry_is_named() -> None:
    with pytest.raises(FaultsError, match="num_heads=8 does not divide dim=20"):
        frm.FRMConfig(dim=20, depth=1)
    with pytest.raises(FaultsError, match="activation"):
        frm.FRMConfig(dim=16, depth=1, activation="relu6")
    with pytest.raises(ValueError, match="8 wide, this FRM takes 16"):
        model.recover_tokens({}, _tokens(1, 2, 8), None, CONFIG)
