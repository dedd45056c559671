"""Boxes and their overlap, against areas counted by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from trace_jax.nn import boxes


def test_corners_and_back() -> None:
    given = np.random.default_rng(0).random((5, 3, 4)).astype(np.float32)
    np.testing.assert_allclose(boxes.centred(boxes.corners(given)), given, atol=1e-6)
    np.testing.assert_allclose(boxes.corners(jnp.array([0.5, 0.5, 0.2, 0.4])), [0.4, 0.3, 0.6, 0.7])


def test_overlap_of_known_boxes() -> None:
    one = jnp.array([0.0, 0.0, 2.0, 2.0])
    others = jnp.array(
        [[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0], [3.0, 0.0, 4.0, 2.0], [0.5, 0.5, 1.0, 1.0]]
    )
    iou, union = boxes.overlap(one, others)
    np.testing.assert_allclose(iou, [1.0, 1 / 7, 0.0, 1 / 16], rtol=1e-6)
    np.testing.assert_allclose(union, [4.0, 7.0, 6.0, 4.0], rtol=1e-6)
    # Hulls: 4, 9, 8, 4.
    wanted = [1.0, 1 / 7 - 2 / 9, -2 / 8, 1 / 16]
    np.testing.assert_allclose(boxes.generalized_overlap(one, others), wanted, rtol=1e-6)


def test_overlap_is_symmetric_and_keeps_under_scaling() -> None:
    rng = np.random.default_rng(1)
    low = rng.random((40, 2))
    given = np.concatenate([low, low + rng.uniform(0.05, 1, (40, 2))], axis=1).astype(np.float32)
    table = boxes.generalized_overlap(given[:, None], given)
    assert table.shape == (40, 40)
    np.testing.assert_allclose(table, table.T, atol=1e-6)
    np.testing.assert_allclose(table, boxes.generalized_overlap(7 * given[:, None], 7 * given),
                               atol=1e-5)  # fmt: skip
    np.testing.assert_allclose(np.diag(table), 1.0, atol=1e-6)
    assert (table >= -1).all() and (table <= boxes.overlap(given[:, None], given)[0] + 1e-6).all()


def test_distant_boxes_are_drawn_together() -> None:
    """What plain IoU cannot do: its gradient is zero where boxes do not meet."""
    there = jnp.array([0.6, 0.6, 0.8, 0.8])
    grad = jax.grad(boxes.generalized_overlap)(jnp.array([0.1, 0.1, 0.2, 0.2]), there)
    assert (np.asarray(grad)[2:] > 0).all()
