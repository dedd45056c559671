"""Layers against numpy: norms, activations, attention, patch embedding."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from trace_jax.nn import activations, attention, blocks, embeddings, linear, norms


def test_layer_norm_keeps_digits_on_large_offsets():
    rng = np.random.default_rng(0)
    x = (1e3 + rng.normal(size=(2, 3, 16))).astype(np.float32)
    scale, bias = (rng.normal(size=16).astype(np.float32) for _ in range(2))
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias
    got = norms.layer_norm(jnp.asarray(x), jnp.asarray(scale), jnp.asarray(bias), 1e-5)
    np.testing.assert_allclose(got, want, atol=2e-3)  # E[x^2] - E[x]^2 would be off by 0.1
    assert norms.layer_norm(jnp.zeros((2, 4), "bfloat16"), *jnp.ones((2, 4)), 1e-5).dtype == (
        "bfloat16"
    )


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("gelu", lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2)))),
        (
            "gelu_pytorch_tanh",
            lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        ),
        ("quick_gelu", lambda x: x / (1 + math.exp(-1.702 * x))),
    ],
)
def test_the_three_gelus_are_what_their_names_say(name, formula):
    xs = np.linspace(-6, 6, 101)
    got = activations.ACTIVATIONS[name](jnp.asarray(xs, jnp.float32))
    np.testing.assert_allclose(got, [formula(x) for x in xs], atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_numpy(causal):
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(2, 5, 6)).astype(np.float32) for _ in range(3))
    want = np.empty_like(query)
    for b in range(2):
        for h in range(3):
            part = slice(2 * h, 2 * h + 2)
            scores = query[b][:, part] @ key[b][:, part].T / math.sqrt(2)
            if causal:
                scores[np.triu_indices(5, 1)] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            want[b][:, part] = weights / weights.sum(-1, keepdims=True) @ value[b][:, part]
    got = attention.attend(*map(jnp.asarray, (query, key, value)), heads=3, causal=causal)
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_attention_survives_large_scores_and_its_gradient_is_softmaxs():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 4, 2)), jnp.float32)

    def ours(q):
        return attention.attend(q, x, x, heads=1, causal=False).sum()

    def plain(q):
        return (jax.nn.softmax(q @ x.swapaxes(1, 2) / math.sqrt(2)) @ x).sum()

    np.testing.assert_allclose(jax.grad(ours)(x), jax.grad(plain)(x), atol=1e-6)
    assert jnp.isfinite(ours(1e4 * x))


def test_affine_takes_any_leading_axes():
    rng = np.random.default_rng(0)
    kernel, bias = rng.normal(size=(4, 3)), rng.normal(size=3)
    for shape in ((4,), (2, 4), (2, 3, 5, 4)):
        x = rng.normal(size=shape)
        got = linear.affine(*(jnp.asarray(a, jnp.float32) for a in (x, kernel, bias)))
        np.testing.assert_allclose(got, x @ kernel + bias, atol=1e-5)


@pytest.mark.parametrize("patch", [2, 4])
def test_patch_embedding_is_the_convolution_without_padding(patch):
    from converters.rules import patch_kernel

    rng = np.random.default_rng(0)
    torch_kernel = rng.normal(size=(5, 3, patch, patch)).astype(np.float32)
    bias = rng.normal(size=5).astype(np.float32)
    image = rng.normal(size=(2, 8, 8, 3)).astype(np.float32)
    layer = embeddings.PatchEmbedding(
        patch, 5, bias=True, dtype=jnp.dtype("float32"), rngs=nnx.Rngs(params=0)
    )
    layer.kernel[...] = jnp.asarray(patch_kernel(patch).forward(torch_kernel))
    layer.bias[...] = jnp.asarray(bias)
    side = 8 // patch
    want = np.empty((2, side, side, 5), np.float32)
    for row in range(side):
        for column in range(side):
            window = image[
                :, patch * row : patch * (row + 1), patch * column : patch * (column + 1)
            ]
            want[:, row, column] = np.einsum("bhwc,ochw->bo", window, torch_kernel) + bias
    np.testing.assert_allclose(layer(jnp.asarray(image)), want.reshape(2, -1, 5), atol=1e-5)


def test_stacked_blocks_equal_the_same_blocks_one_by_one():
    config = blocks.StackConfig(
        width=8, hidden=16, depth=3, heads=2, activation="gelu", eps=1e-6, causal=False
    )
    stack = blocks.stacked_blocks(config, dtype=jnp.dtype("float32"), rngs=nnx.Rngs(params=0))
    graphdef, params = nnx.split(stack)
    kernels = params["attention"]["query"]["kernel"][...]
    assert kernels.shape == (3, 8, 8) and not (kernels[0] == kernels[1]).any()
    x = jax.random.normal(jax.random.key(0), (2, 5, 8))
    outputs, y = [], x
    for layer in range(3):
        y = nnx.merge(graphdef, jax.tree.map(lambda p, layer=layer: p[layer], params))(y)
        outputs.append(y)
    np.testing.assert_allclose(blocks.run_blocks(stack, x), y, atol=1e-5)
    np.testing.assert_allclose(blocks.collect_blocks(stack, x), jnp.stack(outputs), atol=1e-5)
