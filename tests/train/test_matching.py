"""The assignment against scipy's, and its costs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from trace_jax.train import matching

SOLVE = jax.jit(jax.vmap(matching.assign))


def _total(cost: np.ndarray, found: np.ndarray) -> float:
    rows = np.flatnonzero(found >= 0)
    return float(cost[rows, found[rows]].astype(np.float64).sum())


def _problems(objects: int, queries: int, count: int, kind: str) -> np.ndarray:
    rng = np.random.default_rng((objects, queries))
    shape = (count, objects, queries)
    if kind == "normal":
        return (3 * rng.normal(size=shape)).astype(np.float32)
    if kind == "ties":
        return rng.integers(0, 3, size=shape).astype(np.float32)
    # Every object wants the same queries, so that each search goes through all before it.
    base = np.sort(rng.random(queries))[None, None] + 0.01 * rng.random(shape)
    return base.astype(np.float32)


@pytest.mark.parametrize("kind", ["normal", "ties", "crowded"])
@pytest.mark.parametrize(
    "objects,queries", [(1, 1), (3, 3), (5, 8), (20, 30), (30, 300), (12, 7), (8, 1)]
)
def test_the_assignment_is_scipys_optimum(objects: int, queries: int, kind: str) -> None:
    cost = _problems(objects, queries, 24, kind)
    mask = np.random.default_rng(1).random(cost.shape[:2]) < 0.75
    found = np.asarray(SOLVE(cost, mask))
    for c, m, f in zip(cost, mask, found, strict=True):
        rows, columns = linear_sum_assignment(c[m])
        chosen = f[f >= 0]
        assert len(chosen) == len(rows) == len(set(chosen.tolist()))
        assert chosen.max(initial=0) < queries
        assert (f[~m] == -1).all()
        best = float(c[m][rows, columns].astype(np.float64).sum())
        np.testing.assert_allclose(_total(c, f), best, rtol=1e-6, atol=1e-5)


def test_no_prices_beat_the_assignment() -> None:
    """Swapping any two objects' queries, or moving one to a free query, never gets cheaper."""
    cost = _problems(9, 14, 1, "normal")[0]
    found = np.asarray(SOLVE(cost[None], np.ones((1, 9), bool)))[0]
    free = sorted(set(range(14)) - set(found.tolist()))
    for i in range(9):
        assert (cost[i, free] >= cost[i, found[i]]).all()
        for j in range(i):
            swapped = cost[i, found[j]] + cost[j, found[i]]
            assert swapped >= cost[i, found[i]] + cost[j, found[j]]


def test_renumbered_queries_give_the_renumbered_assignment() -> None:
    cost = _problems(6, 11, 1, "normal")
    order = np.random.default_rng(3).permutation(11)
    mask = np.ones((1, 6), bool)
    one, other = (np.asarray(SOLVE(c, mask)) for c in (cost, cost[:, :, order]))
    np.testing.assert_array_equal(order[other], one)


def test_a_constant_on_an_object_changes_nothing() -> None:
    cost = _problems(6, 11, 1, "normal")
    raised = cost + np.arange(6, dtype=np.float32)[None, :, None]
    mask = np.ones((1, 6), bool)
    np.testing.assert_array_equal(SOLVE(cost, mask), SOLVE(raised, mask))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_pairs_without_a_cost_are_the_last_resort(bad: float) -> None:
    """As transformers has it: such costs become the largest float."""
    rng = np.random.default_rng(5)
    cost = rng.normal(size=(40, 4, 6)).astype(np.float32)
    cost[rng.random(cost.shape) < 0.4] = bad
    cost[0] = bad
    found = np.asarray(SOLVE(cost, np.ones((40, 4), bool)))
    # scipy in float64, with a cost that outweighs all others but lets them be told apart.
    plain = np.where(np.isfinite(cost), cost, 1e6)
    for c, f in zip(plain, found, strict=True):
        assert len(set(f.tolist())) == 4
        best = c[linear_sum_assignment(c)].astype(np.float64).sum()
        np.testing.assert_allclose(_total(c, f), best, rtol=1e-6, atol=1e-4)


def test_no_objects() -> None:
    assert matching.assign(jnp.zeros((0, 5)), jnp.zeros((0,), bool)).shape == (0,)
    none = SOLVE(np.zeros((2, 3, 5), np.float32), np.zeros((2, 3), bool))
    np.testing.assert_array_equal(none, -np.ones((2, 3)))
    nan = SOLVE(np.full((1, 3, 5), np.nan, np.float32), np.zeros((1, 3), bool))
    np.testing.assert_array_equal(nan, -np.ones((1, 3)))


def test_each_group_is_matched_on_its_own() -> None:
    cost = _problems(4, 21, 2, "normal")
    mask = np.array([[True, True, False, True], [False] * 4])
    found = np.asarray(jax.jit(matching.match, static_argnums=2)(cost, mask, 3))
    assert found.shape == (2, 3, 4)
    for group in range(3):
        part = cost[:, :, 7 * group : 7 * (group + 1)]
        alone = np.asarray(SOLVE(part, mask))
        np.testing.assert_array_equal(found[:, group], np.where(alone >= 0, alone + 7 * group, -1))


def test_no_gradient_flows_through_the_match() -> None:
    def loss(cost: jax.Array) -> jax.Array:
        index = matching.match(cost, jnp.ones((1, 3), bool))
        return jnp.take_along_axis(cost, index[:, 0, :, None], axis=-1).sum()

    grad = np.asarray(jax.grad(loss)(jnp.asarray(_problems(3, 5, 1, "normal"))))
    assert sorted(grad.ravel().tolist()) == [0.0] * 12 + [1.0] * 3
