"""Random views: white stays white, nothing but the key decides, ranges do what they say."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trace_jax.train import augment

SIDE = 32
views = augment.views
STILL = augment.AugmentConfig(
    scale=(1.0, 1.0),
    shift=0.0,
    rotation=0.0,
    flip=0.0,
    brightness=0.0,
    contrast=0.0,
    saturation=0.0,
    clean=0.0,
    soot=0.0,
    holes=0.0,
    warp=0.0,
    occluder=0.0,
)


@pytest.fixture(scope="module")
def pictures() -> np.ndarray:
    images = np.full((6, SIDE, SIDE, 3), 255, np.uint8)
    images[:, 8:24, 10:22] = (180, 90, 40)
    return images


@pytest.mark.parametrize("damaged", [False, True])
def test_a_blank_picture_stays_white(damaged: bool) -> None:
    blank = np.full((4, SIDE, SIDE, 3), 255, np.uint8)
    view, clean = views(jax.random.key(0), blank, augment.AugmentConfig(), damaged)
    np.testing.assert_allclose(view, 1.0, atol=1e-5)
    np.testing.assert_allclose(clean, 1.0, atol=1e-5)


def test_the_far_background_stays_white_under_damage(pictures: np.ndarray) -> None:
    config = dataclasses.replace(STILL, soot=0.95, holes=0.5, occluder=1.0)
    view, _ = views(jax.random.key(1), pictures, config, damaged=True)
    np.testing.assert_allclose(np.asarray(view)[:, :6], 1.0, atol=1e-5)


def test_values_stay_in_range_and_follow_the_key(pictures: np.ndarray) -> None:
    config = augment.AugmentConfig()
    one, _ = views(jax.random.key(2), pictures, config, damaged=True)
    same, _ = views(jax.random.key(2), pictures, config, damaged=True)
    other, _ = views(jax.random.key(3), pictures, config, damaged=True)
    assert float(one.min()) >= 0.0 and float(one.max()) <= 1.0 + 1e-6
    np.testing.assert_array_equal(one, same)
    assert float(jnp.abs(one - other).max()) > 0.1


def test_identical_pictures_of_a_batch_get_different_views(pictures: np.ndarray) -> None:
    view, _ = views(jax.random.key(4), pictures, augment.AugmentConfig(), damaged=True)
    assert float(jnp.abs(view[0] - view[1]).max()) > 0.1


def test_without_ranges_the_view_is_the_picture(pictures: np.ndarray) -> None:
    view, clean = views(jax.random.key(5), pictures, STILL, damaged=False)
    stretched = np.abs(np.asarray(view) - pictures / 255.0)
    # The aspect jitter of 5% remains: only the object's rim may differ.
    assert np.mean(stretched) < 0.03
    np.testing.assert_array_equal(view, clean)


def test_a_sure_flip_mirrors() -> None:
    pictures = np.full((1, SIDE, SIDE, 3), 255, np.uint8)
    pictures[0, 8:24, 2:10] = 0
    config = dataclasses.replace(STILL, flip=1.0)
    view = np.asarray(views(jax.random.key(6), pictures, config, damaged=False)[0])
    assert view[0, :, : SIDE // 2].mean() > 0.99
    assert view[0, 16, 23:29].mean() < 0.1


def test_soot_darkens_what_it_is_told_to(pictures: np.ndarray) -> None:
    config = dataclasses.replace(STILL, soot=0.95)
    view, clean = views(jax.random.key(7), pictures, config, damaged=True)
    assert float(jnp.mean(view)) < float(jnp.mean(clean))
    brighter = np.asarray(view - clean).max(axis=-1)
    assert np.mean(brighter > 0.25) < 0.02


def test_clean_share_of_one_means_no_damage(pictures: np.ndarray) -> None:
    config = dataclasses.replace(augment.AugmentConfig(), clean=1.0)
    view, clean = views(jax.random.key(8), pictures, config, damaged=True)
    np.testing.assert_allclose(view, clean, atol=1e-5)


def test_sample_reads_the_identity_grid_exactly(pictures: np.ndarray) -> None:
    axis = jnp.arange(SIDE, dtype=jnp.float32)
    grid = jnp.stack(jnp.meshgrid(axis, axis, indexing="ij"), axis=-1)
    images = jnp.asarray(pictures / 255.0, jnp.float32)
    out = augment.sample(images, jnp.broadcast_to(grid, (6, SIDE, SIDE, 2)))
    np.testing.assert_allclose(out, images, atol=1e-6)


def test_sample_interpolates_and_pads_with_white() -> None:
    images = jnp.zeros((1, 2, 2, 1)).at[0, 1, 1, 0].set(1.0)
    asked = jnp.array([[[[0.5, 0.5], [-5.0, 0.0]], [[9.0, 9.0], [1.0, 0.75]]]])
    out = np.asarray(augment.sample(images, asked))[0, ..., 0]
    np.testing.assert_allclose(out, [[0.25, 1.0], [1.0, 0.75]], atol=1e-6)


def test_noise_is_about_standard_normal_everywhere() -> None:
    field = np.asarray(augment.smooth_noise(jax.random.key(9), 512, 24, (3, 6)))
    assert abs(field.mean()) < 0.05
    np.testing.assert_allclose(field.std(axis=0), 1.0, atol=0.15)
