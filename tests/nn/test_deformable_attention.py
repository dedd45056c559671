"""Deformable attention against torch's grid_sample, values and gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from trace_jax.nn.deformable_attention import sample_levels

LEVELS = {"one": ((6, 6),), "three": ((5, 7), (3, 2), (1, 4))}


def _reference(value, locations, weights, levels):
    """Level by level through grid_sample."""
    batch, _, heads, width = value.shape
    queries, points = locations.shape[1], locations.shape[4]
    total, start = 0.0, 0
    for number, (high, wide) in enumerate(levels):
        maps = value[:, start : start + high * wide].permute(0, 2, 3, 1)
        maps = maps.reshape(batch * heads, width, high, wide)
        grid = 2 * locations[:, :, :, number].transpose(1, 2).flatten(0, 1) - 1
        near = torch.nn.functional.grid_sample(
            maps, grid, mode="bilinear", padding_mode="zeros", align_corners=False
        )  # [B * H, W, Q, P]
        share = weights[:, :, :, number].transpose(1, 2).reshape(batch * heads, 1, queries, points)
        total = total + (near * share).sum(-1)
        start += high * wide
    return total.reshape(batch, heads * width, queries).transpose(1, 2)


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
def test_values_and_gradients_equal_grid_sample(levels):
    rng = np.random.default_rng(0)
    tokens = sum(h * w for h, w in levels)
    shape = (2, 9, 4, len(levels), 3)
    value = rng.normal(size=(2, tokens, 4, 5)).astype(np.float32)
    # A good part of the points lies outside, some on the border.
    locations = rng.uniform(-0.4, 1.4, (*shape, 2)).astype(np.float32)
    locations[:, 0] = 0.0
    weights = rng.normal(size=shape).astype(np.float32)
    out_grad = rng.normal(size=(2, 9, 20)).astype(np.float32)

    given = [torch.tensor(a, requires_grad=True) for a in (value, locations, weights)]
    want = _reference(*given, levels)
    want.backward(torch.tensor(out_grad))

    sample = jax.jit(lambda *a: sample_levels(*a, levels))
    got, pull = jax.vjp(sample, *map(jnp.asarray, (value, locations, weights)))
    np.testing.assert_allclose(got, want.detach().numpy(), atol=1e-5)
    for ours, theirs in zip(pull(jnp.asarray(out_grad)), given, strict=True):
        np.testing.assert_allclose(ours, theirs.grad.numpy(), atol=1e-4)


def test_points_far_away_give_zero():
    value = jnp.ones((1, 4, 1, 2))
    locations = jnp.full((1, 3, 1, 1, 2, 2), 1e9).at[0, 1].set(-1e9)
    locations = locations.at[0, 2].set(0.5)
    out = sample_levels(value, locations, jnp.full((1, 3, 1, 1, 2), 0.5), ((2, 2),))
    np.testing.assert_array_equal(out[0], [[0, 0], [0, 0], [1, 1]])
