"""Squares for detectors: against torch's antialiased resize, the written formula, old settings."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torch")
import torch

from trace_jax.errors import FaultsError, UserError
from trace_jax.hosts.detector_images import DetectorImages

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)
# The published file: annotations' settings are there too.
PUBLISHED = {
    "do_convert_annotations": True,
    "do_normalize": True,
    "do_pad": True,
    "do_rescale": True,
    "do_resize": True,
    "format": "coco_detection",
    "image_mean": [0.485, 0.456, 0.406],
    "image_processor_type": "RfDetrImageProcessor",
    "image_std": [0.229, 0.224, 0.225],
    "resample": 2,
    "rescale_factor": 0.00392156862745098,
    "size": {"height": 96, "width": 96},
}


def picture(width: int, height: int) -> Image.Image:
    """Noise, which shows every error of a filter, over a slope."""
    noise = np.random.default_rng(width).integers(0, 200, (height, width, 3))
    slope = np.arange(width)[None, :, None] * 55 // width
    return Image.fromarray((noise + slope).astype(np.uint8))


def _levels(values: np.ndarray) -> np.ndarray:
    return (values * STD + MEAN) * 255


def _torch(array: torch.Tensor, height: int, width: int, antialias: bool = True) -> torch.Tensor:
    return torch.nn.functional.interpolate(
        array, (height, width), mode="bilinear", antialias=antialias, align_corners=False
    )


@pytest.mark.parametrize(
    ("size", "vertical_first"),
    [
        ((640, 480), False),
        ((64, 64), False),
        ((20, 30), False),
        ((333, 50), False),
        # Pillow shrinks the height first where that leaves it less to do.
        ((50, 333), True),
    ],
)
def test_pixels_equal_torchs_antialiased_resize(size, vertical_first):
    image = picture(*size)
    got = DetectorImages(None, image_size=64)([image])["pixel_values"][0]
    assert got.dtype == np.float32
    array = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None]
    # Pillow rounds to 8 bits between the two directions; exact values lie within a level.
    exact = _torch(array.double(), 64, 64)[0].permute(1, 2, 0).numpy()
    assert np.abs(_levels(got) - exact).max() < 1.001
    middle = (64, size[0]) if vertical_first else (size[1], 64)
    want = _torch(_torch(array, *middle), 64, 64)[0].permute(1, 2, 0).numpy()
    difference = np.abs(_levels(got) - want)
    assert difference.max() < 1.001
    assert (difference > 0.5).mean() < 0.01  # halves that were rounded the other way


def test_shrinking_without_antialiasing_gives_another_picture():
    image = picture(640, 480)
    got = DetectorImages(None, image_size=64)([image])["pixel_values"][0]
    array = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None].float()
    plain = _torch(array, 64, 64, antialias=False)[0].permute(1, 2, 0).numpy()
    assert np.abs(_levels(got) - plain).mean() > 10


def test_a_picture_of_the_right_size_is_scaled_and_normalised_only():
    image = picture(64, 64)
    got = DetectorImages(None, image_size=64)([image])["pixel_values"][0]
    want = (np.asarray(image).astype(np.float64) / 255 - MEAN) / STD
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_sizes_are_those_of_the_pictures_as_shown(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    picture(30, 20).save(tmp_path / "a.jpg", exif=exif)
    pictures = [picture(50, 33), Image.open(tmp_path / "a.jpg"), picture(9, 8).convert("L")]
    inputs = DetectorImages(None, image_size=32)(pictures)
    assert inputs["sizes"].dtype == np.int32
    assert inputs["sizes"].tolist() == [[33, 50], [30, 20], [8, 9]]
    assert inputs["pixel_values"].shape == (3, 32, 32, 3)
    assert DetectorImages(None, image_size=32)([])["sizes"].shape == (0, 2)


def test_the_published_settings_are_the_defaults():
    images = DetectorImages(PUBLISHED, image_size=64)
    assert images.image_size == 96
    again = DetectorImages(images.hub_config, image_size=64)
    assert again.description == images.description
    plain = DetectorImages(None, image_size=96)
    assert plain.description == images.description
    np.testing.assert_array_equal(
        plain([picture(50, 40)])["pixel_values"], images([picture(50, 40)])["pixel_values"]
    )


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"size": {"shortest_edge": 800, "longest_edge": 1333}}, "takes squares"),
        ({"size": {"height": 96, "width": 64}}, "takes squares"),
        ({"size": "large"}, "takes squares"),
        ({"resample": 3}, "resample is 3"),
        ({"do_normalize": False}, "do_normalize is off"),
        ({"sharpen": 2}, "'sharpen' = 2 is a setting"),
    ],
)
def test_other_settings_are_refused(change, match):
    with pytest.raises(FaultsError, match=match):
        DetectorImages({**PUBLISHED, **change}, image_size=96)


def test_only_lists_of_pictures_are_taken():
    images = DetectorImages(None, image_size=32)
    with pytest.raises(UserError, match="single one"):
        images(picture(8, 8))
    with pytest.raises(UserError, match="PIL images"):
        images(["a.png"])
