"""Bootstrap by identity and the paired test."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_jax.metrics import intervals

SEEDS = st.integers(0, 2**31 - 1)


def test_mean_is_by_example_and_counts_are_kept():
    found = intervals.mean_interval(np.array([1.0, 1.0, 1.0, 0.0]), ["a", "a", "a", "b"])
    assert (found.value, found.n, found.clusters) == (0.75, 4, 2)
    # Two identities: a resample is aa, ab, ba or bb.
    assert (found.low, found.high) == (0.0, 1.0)


def test_weights_are_counts_behind_a_mean():
    found = intervals.mean_interval(np.array([1.0, 0.0]), ["a", "b"], np.array([3.0, 1.0]))
    assert found.value == 0.75


def test_seeded_and_independent_of_row_order_and_names():
    generator = np.random.default_rng(0)
    values = generator.uniform(size=60)
    names = np.array([f"id{i:03d}" for i in range(20)] * 3)
    first = intervals.mean_interval(values, names, seed=3)
    order = generator.permutation(60)
    again = intervals.mean_interval(values[order], names[order], seed=3)
    assert (first.low, first.high) == pytest.approx((again.low, again.high))
    other = intervals.mean_interval(values, names, seed=4)
    assert (first.low, first.high) != (other.low, other.high)


def test_width_agrees_with_theory_and_sees_clusters():
    generator = np.random.default_rng(1)
    values = generator.normal(size=400)
    alone = intervals.mean_interval(values, np.arange(400))
    half = 1.96 * values.std() / math.sqrt(400)
    assert alone.high - alone.low == pytest.approx(2 * half, rel=0.08)
    # Ten equal images of each identity bring no information: the interval must not shrink.
    tenfold = intervals.mean_interval(np.repeat(values, 10), np.repeat(np.arange(400), 10))
    assert (tenfold.low, tenfold.high) == pytest.approx((alone.low, alone.high))
    assert tenfold.n == 4000


def test_one_identity_has_no_interval():
    found = intervals.mean_interval(np.array([0.0, 1.0]), ["a", "a"])
    assert (found.value, found.low, found.high) == (0.5, None, None)


def test_equal_values_have_width_zero():
    found = intervals.mean_interval(np.ones(30), np.arange(30))
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("values", "clusters", "weights", "message"),
    [
        ([], [], None, "non-empty"),
        ([1.0, np.nan], ["a", "b"], None, "value 1 is not finite"),
        ([1.0], ["a", "b"], None, "differ"),
        ([1.0], ["a"], [0.0], "positive"),
    ],
)
def test_refusals(values, clusters, weights, message):
    weights = None if weights is None else np.array(weights)
    with pytest.raises(ValueError, match=message):
        intervals.mean_interval(np.array(values), np.array(clusters), weights)


def test_pairing_removes_what_both_sides_share():
    generator = np.random.default_rng(2)
    hard = generator.normal(size=200) * 10
    better = hard + 0.5 + 0.1 * generator.normal(size=200)
    names = np.arange(200)
    gain = intervals.paired_interval(better, hard, names)
    assert gain.low > 0.4 and gain.high < 0.6
    assert intervals.sign_flip_p(better, hard, names) == pytest.approx(1 / 10000)
    assert intervals.mean_interval(better, names).low < intervals.mean_interval(hard, names).high


def test_relative_change():
    rivals = np.array([2.0, 4.0, 6.0])
    found = intervals.relative_interval(rivals * 0.7, rivals, np.arange(3))
    assert (found.value, found.low, found.high) == pytest.approx((-0.3, -0.3, -0.3))
    assert intervals.relative_interval(rivals, np.zeros(3), np.arange(3)) is None
    # One identity carries all of the denominator: some resample would divide by zero.
    assert intervals.relative_interval(rivals, np.array([1.0, 0, 0]), np.arange(3)) is None


def test_exact_sign_flip_by_hand():
    # Differences 1, 2, 3: of 8 sign patterns only +++ and --- reach |6|.
    assert intervals.sign_flip_p(np.array([1.0, 2, 3]), np.zeros(3), [0, 1, 2]) == 0.25
    assert intervals.sign_flip_p(np.ones(3), np.ones(3), [0, 1, 2]) == 1.0


def test_no_difference_gives_uniform_p():
    generator = np.random.default_rng(3)
    found = [
        intervals.sign_flip_p(generator.normal(size=40), generator.normal(size=40), np.arange(40))
        for _ in range(200)
    ]
    assert 0.01 <= np.mean(np.array(found) < 0.05) <= 0.10
    assert np.mean(found) == pytest.approx(0.5, abs=0.08)


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_a_constant_shift_moves_the_interval_with_it(seed):
    generator = np.random.default_rng(seed)
    values, names = generator.normal(size=50), generator.integers(0, 12, 50)
    base = intervals.mean_interval(values, names, resamples=300)
    moved = intervals.mean_interval(values + 7.0, names, resamples=300)
    assert moved.low == pytest.approx(base.low + 7.0)
    assert moved.high == pytest.approx(base.high + 7.0)
    assert base.low <= base.high
    p = intervals.sign_flip_p(values, np.zeros(50), names, flips=500)
    assert p == intervals.sign_flip_p(np.zeros(50), values, names, flips=500)
    assert 0 < p <= 1


def test_many_identities_are_not_kept_in_memory():
    values = np.random.default_rng(4).normal(size=3000)
    before = intervals._counts.cache_info().currsize
    found = intervals.mean_interval(values, np.arange(3000), resamples=300)
    assert found.low < found.value < found.high
    assert intervals._counts.cache_info().currsize == before
