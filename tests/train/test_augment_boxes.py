"""Views of pictures with boxes: boxes follow pixels, nothing degenerates, all is repeatable."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from trace_jax.errors import FaultsError
from trace_jax.train import augment_boxes
from trace_jax.train.augment_boxes import BoxViewConfig

SMALL = BoxViewConfig(
    short=(80, 100, 120), crop_least=64, crop_most=120, side=160, sides=(96, 128, 160)
)
COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255))
BOXES = np.array([[10, 12, 40, 30], [100, 20, 30, 50], [60, 70, 50, 25]], float)


def _picture() -> Image.Image:
    """Three boxes of pure colours on black, 150 x 110."""
    pixels = np.zeros((110, 150, 3), np.uint8)
    for (x, y, w, h), colour in zip(BOXES.astype(int), COLOURS, strict=True):
        pixels[y : y + h, x : x + w] = colour
    return Image.fromarray(pixels)


def _view(config: BoxViewConfig, **place: int) -> augment_boxes.BoxView:
    return augment_boxes.view(_picture(), BOXES, config, **{"seed": 0, "step": 0, **place})


def test_boxes_follow_pixels() -> None:
    """In every view each kept box is where its colour is, and a dropped one can hardly be seen."""
    crops = flips = 0
    for index in range(60):
        found = _view(SMALL, index=index)
        assert found.pixels.shape == (160, 160, 3) and found.pixels.dtype == np.uint8
        crops += not np.isclose(found.boxes[:, 2].sum(), 120 / 150)
        for number, colour in enumerate(COLOURS):
            strong = (np.abs(found.pixels.astype(int) - colour) < 128).all(axis=2)
            place = np.flatnonzero(found.kept == number)
            if not len(place):
                assert strong.sum() < 3 * 160
                continue
            ys, xs = np.nonzero(strong)
            cx, cy, w, h = found.boxes[place[0]] * 160
            seen = [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]
            np.testing.assert_allclose(
                seen, [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], atol=2.01
            )
        red, green = (found.boxes[found.kept == n, 0] for n in (0, 1))
        flips += bool(len(red) and len(green) and red[0] > green[0])
    assert crops > 15 and flips > 10


def test_boxes_lie_inside_and_have_an_area() -> None:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 255, (70, 200, 3), dtype=np.uint8))
    low = rng.uniform(0, [200, 70], (40, 2))
    size = np.minimum(rng.exponential(8, (40, 2)) + 0.01, [200, 70] - low)
    boxes = np.concatenate([low, size], axis=1)
    dropped = 0
    for index in range(40):
        found = augment_boxes.view(image, boxes, SMALL, seed=1, step=3, index=index)
        dropped += len(boxes) - len(found.kept)
        low, high = (
            found.boxes[:, :2] - found.boxes[:, 2:] / 2,
            found.boxes[:, :2] + (found.boxes[:, 2:] / 2),
        )
        assert (low >= -1e-6).all() and (high <= 1 + 1e-6).all()
        assert (found.boxes[:, 2:] > 0).all()
        assert np.isfinite(found.boxes).all() and len(found.boxes) == len(found.kept)
    assert dropped > 100


def test_a_view_is_a_pure_function_of_seed_step_and_index() -> None:
    one, same = (_view(SMALL, step=4, index=2) for _ in range(2))
    np.testing.assert_array_equal(one.pixels, same.pixels)
    np.testing.assert_array_equal(one.boxes, same.boxes)
    for other in ({"step": 5, "index": 2}, {"step": 4, "index": 3}, {"step": 4, "index": 2,
                                                                    "seed": 1}):  # fmt: skip
        assert (_view(SMALL, **other).pixels != one.pixels).any()


def test_without_chance_it_is_a_plain_resize() -> None:
    plain = dataclasses.replace(SMALL, flip=0.0, crop=0.0)
    found = _view(plain, index=0)
    whole = np.asarray(_picture().resize((160, 160), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(found.pixels, whole)
    wanted = np.concatenate([BOXES[:, :2] + BOXES[:, 2:] / 2, BOXES[:, 2:]], axis=1)
    np.testing.assert_allclose(found.boxes, wanted / [150, 110, 150, 110], rtol=1e-6)
    mirrored = _view(dataclasses.replace(plain, flip=1.0), index=0)
    np.testing.assert_allclose(mirrored.boxes[:, 0], 1 - found.boxes[:, 0], rtol=1e-5)
    np.testing.assert_allclose(mirrored.pixels.astype(int), whole[:, ::-1].astype(int), atol=1)


def test_pictures_without_boxes_and_smaller_than_a_crop() -> None:
    image = Image.new("RGB", (20, 30))
    config = dataclasses.replace(SMALL, crop=1.0, short=(10,))
    found = augment_boxes.view(image, np.zeros((0, 4)), config, seed=0, step=0, index=0)
    assert found.boxes.shape == (0, 4) and found.pixels.shape == (160, 160, 3)


def test_steps_take_every_side() -> None:
    sides = [augment_boxes.side_of_step(SMALL, 0, step) for step in range(60)]
    assert set(sides) == set(SMALL.sides)
    assert sides == [augment_boxes.side_of_step(SMALL, 0, step) for step in range(60)]
    assert augment_boxes.side_of_step(dataclasses.replace(SMALL, sides=()), 0, 1) == 160


@pytest.mark.parametrize("side", [31, 96, 160, 200])
def test_scaling_is_torchs(side: int) -> None:
    values = np.random.default_rng(0).normal(size=(2, 96, 96, 3)).astype(np.float32)
    wanted = torch.nn.functional.interpolate(
        torch.from_numpy(values.transpose(0, 3, 1, 2).copy()), size=side, mode="bilinear",
        align_corners=False,
    ).numpy()  # fmt: skip
    found = augment_boxes.scaled(values, side)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted.transpose(0, 2, 3, 1), atol=2e-5)


def test_impossible_ranges_are_refused() -> None:
    with pytest.raises(FaultsError) as caught:
        BoxViewConfig(flip=2.0, crop_least=700, least=0.0)
    assert len(caught.value.faults) == 3


def test_the_defaults_are_the_recipes() -> None:
    config = BoxViewConfig()
    assert config.sides == (416, 448, 480, 512, 544, 576, 608, 640, 672, 704, 736)
