"""MSE and token cosine: hand-worked cases and properties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_jax.metrics import features

SEEDS = st.integers(0, 2**31 - 1)


def _random(seed, shape=(4, 5, 6)):
    generator = np.random.default_rng(seed)
    return generator.normal(size=shape), generator.normal(size=shape)


def test_by_hand():
    recovered = np.array([[[3.0, 4.0], [1.0, 0.0]], [[0.0, 0.0], [2.0, 0.0]]])
    target = np.array([[[4.0, 3.0], [0.0, 1.0]], [[1.0, 1.0], [-1.0, 0.0]]])
    sums = features.feature_sums(recovered, target)
    np.testing.assert_array_equal(sums.squared_error, [4.0, 11.0])
    np.testing.assert_array_equal(sums.elements, [4, 4])
    np.testing.assert_allclose(sums.cosine, [24 / 25 + 0, 0 - 1])
    np.testing.assert_array_equal(sums.mse(), [1.0, 2.75])
    np.testing.assert_allclose(sums.mean_cosine(), [0.48, -0.5])


def test_mask_leaves_padding_out_even_when_it_is_nan():
    recovered, target = _random(0)
    mask = np.ones((4, 5), bool)
    mask[1, 3:] = False
    recovered[1, 3:] = np.nan
    sums = features.feature_sums(recovered, target, mask)
    short = features.feature_sums(recovered[1:2, :3], target[1:2, :3])
    assert sums.mse()[1] == pytest.approx(short.mse()[0])
    assert sums.mean_cosine()[1] == pytest.approx(short.mean_cosine()[0])
    assert sums.tokens.tolist() == [5, 3, 5, 5]


def test_stages_count_as_tokens():
    recovered, target = _random(1, (3, 4, 5, 6))
    sums = features.feature_sums(recovered, target)
    flat = features.feature_sums(recovered.reshape(3, 20, 6), target.reshape(3, 20, 6))
    np.testing.assert_array_equal(sums.mse(), flat.mse())


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_refuses_what_is_not_finite(bad):
    recovered, target = _random(2)
    recovered[2, 1, 1] = bad
    with np.errstate(invalid="ignore"), pytest.raises(ValueError, match="image 2"):
        features.feature_sums(recovered, target)


def test_refuses_shapes_and_empty_masks():
    recovered, target = _random(3)
    with pytest.raises(ValueError, match="must be equal"):
        features.feature_sums(recovered, target[:, :2])
    with pytest.raises(ValueError, match="does not fit"):
        features.feature_sums(recovered, target, np.ones((4, 6), bool))
    mask = np.ones((4, 5), bool)
    mask[3] = False
    with pytest.raises(ValueError, match="image 3"):
        features.feature_sums(recovered, target, mask)


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_perfect_and_worst(seed):
    recovered, _ = _random(seed)
    same = features.feature_sums(recovered, recovered)
    assert same.mse().max() == 0.0
    np.testing.assert_allclose(same.mean_cosine(), 1.0)
    np.testing.assert_allclose(features.feature_sums(recovered, -recovered).mean_cosine(), -1.0)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.sampled_from([1e-200, 1e-30, 3.0, 1e30, 1e150]))
def test_cosine_does_not_see_scale_and_mse_is_its_square(seed, scale):
    recovered, target = _random(seed)
    base = features.feature_sums(recovered, target)
    one = features.feature_sums(recovered * scale, target)
    np.testing.assert_allclose(one.mean_cosine(), base.mean_cosine(), rtol=1e-9, atol=1e-12)
    both = features.feature_sums(recovered * 4.0, target * 4.0)
    np.testing.assert_allclose(both.mse(), base.mse() * 16.0)


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_order_of_images_and_tokens_is_indifferent(seed):
    recovered, target = _random(seed)
    generator = np.random.default_rng(seed)
    images, tokens = generator.permutation(4), generator.permutation(5)
    base = features.feature_sums(recovered, target)
    moved = features.feature_sums(recovered[images][:, tokens], target[images][:, tokens])
    np.testing.assert_allclose(moved.mse(), base.mse()[images])
    np.testing.assert_allclose(moved.mean_cosine(), base.mean_cosine()[images])


def test_float32_and_bfloat16_inputs_are_summed_in_float64():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    ones = np.ones((1, 4096, 64), np.float32) * 1e-3
    sums = features.feature_sums(ones, np.zeros_like(ones))
    assert sums.mse()[0] == pytest.approx(float(np.float32(1e-3)) ** 2, rel=1e-12)
    half = np.full((2, 3, 4), 0.5, ml_dtypes.bfloat16)
    assert features.feature_sums(half, half).mse().tolist() == [0.0, 0.0]
