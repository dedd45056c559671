"""Pixels: golden values, old settings files, odd images, the same as transformers' own reading."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image
from support import encoders

import converters
from trace_jax.errors import FaultsError, UserError
from trace_jax.hosts import preprocess
from trace_jax.hosts.preprocess import ImagePreprocessor

# The published file of CLIP ViT-L/14: sizes are integers, the class goes by its old name.
OLD_CLIP = {
    "crop_size": 224,
    "do_center_crop": True,
    "do_normalize": True,
    "do_resize": True,
    "feature_extractor_type": "CLIPFeatureExtractor",
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
    "size": 224,
}
SIGLIP2 = {
    "do_convert_rgb": None,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "SiglipImageProcessor",
    "image_std": [0.5, 0.5, 0.5],
    "processor_class": "SiglipProcessor",
    "resample": 2,
    "rescale_factor": 0.00392156862745098,
    "size": {"height": 224, "width": 224},
}


def picture(width: int = 61, height: int = 40) -> Image.Image:
    """Smooth colours and an edge, the same on every machine."""
    y, x = np.mgrid[0:height, 0:width]
    red = 255 * x // (width - 1)
    green = 255 * y // (height - 1)
    blue = np.where((x // 8 + y // 8) % 2, 220, 30)
    return Image.fromarray(np.stack([red, green, blue], -1).astype(np.uint8))


# Written down once with transformers 5.24 and Pillow 13: [row, column] of the 32x32 result.
GOLDEN = {
    "clip": {
        (0, 0): [-1.164530, -1.737089, 1.648195],
        (5, 17): [0.178525, -1.136779, -0.698116],
        (31, 31): [1.288005, 2.059876, -1.053618],
    },
    "siglip2": {
        (0, 0): [-0.976471, -0.984314, -0.764706],
        (5, 17): [0.098039, -0.670588, -0.749020],
        (31, 31): [0.976471, 0.984314, 0.725490],
    },
}


@pytest.mark.parametrize("family", encoders.NAMES)
def test_golden_pixels(family):
    got = ImagePreprocessor(family, None, image_size=32)([picture()])["pixel_values"]
    assert got.dtype == np.float32 and got.shape == (1, 32, 32, 3)
    for (row, column), want in GOLDEN[family].items():
        np.testing.assert_allclose(got[0, row, column], want, atol=1e-5)


def test_pixels_follow_the_written_formula():
    """Resize with Pillow's named filter, crop, scale, normalise: nothing else happens."""
    image = picture()
    clip = ImagePreprocessor("clip", None, image_size=32)([image])["pixel_values"][0]
    wide = np.asarray(image.resize((48, 32), Image.Resampling.BICUBIC), np.float64)
    mean, std = (np.array(OLD_CLIP[k]) for k in ("image_mean", "image_std"))
    np.testing.assert_allclose(clip, (wide[:, 8:40] / 255 - mean) / std, atol=1e-5)
    siglip = ImagePreprocessor("siglip2", None, image_size=32)([image])["pixel_values"][0]
    square = np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR), np.float64)
    np.testing.assert_allclose(siglip, square / 127.5 - 1, atol=1e-5)


@pytest.mark.parametrize(("family", "config"), [("clip", OLD_CLIP), ("siglip2", SIGLIP2)])
def test_published_files_mean_what_transformers_reads(family, config, tmp_path):
    import transformers

    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    name = "CLIPImageProcessorPil" if family == "clip" else "SiglipImageProcessorPil"
    theirs = getattr(transformers, name).from_pretrained(tmp_path)
    images = [picture(), picture(300, 250), picture(20, 90)]
    want = np.stack(theirs(images)["pixel_values"]).transpose(0, 2, 3, 1)
    ours = ImagePreprocessor(family, config, image_size=224)
    np.testing.assert_array_equal(ours(images)["pixel_values"], want)
    assert ours.constants == ImagePreprocessor(family, None, image_size=224).constants
    # And what we write reads back to the same pixels.
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(ours.hub_config))
    again = getattr(transformers, name).from_pretrained(tmp_path)
    np.testing.assert_array_equal(
        np.stack(again(images)["pixel_values"]).transpose(0, 2, 3, 1), want
    )
    assert ImagePreprocessor(family, ours.hub_config, image_size=224).constants == ours.constants


def test_the_description_names_every_constant_and_is_json():
    description = ImagePreprocessor("siglip2", None, image_size=96).description
    assert description["processor"] == "SiglipImageProcessorPil"
    assert description["resample"] == 2 and description["size"] == {"height": 96, "width": 96}
    assert json.loads(json.dumps(description)) == description


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"size": 224, "crop_size": 224}, "images end as"),
        ({"do_resize": False, "do_center_crop": False}, "sizes would vary"),
        ({"do_sharpen": True}, "'do_sharpen' = True is a setting this host does not know"),
    ],
)
def test_settings_that_do_not_fit_are_refused(config, match):
    with pytest.raises(FaultsError, match=match):
        ImagePreprocessor("clip", config, image_size=96)


def test_case_6_exif_orientation_is_applied():
    stored = Image.new("RGB", (40, 20), "blue")
    stored.paste("red", (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    stored.save(buffer, "JPEG", exif=exif, quality=95)
    pixels = ImagePreprocessor("siglip2", None, image_size=20)([Image.open(buffer)])
    red, _, blue = pixels["pixel_values"][0].transpose(2, 0, 1)
    assert red[:8].min() > 0.5 > red[12:].max()  # the red half is on top
    assert blue[12:].min() > 0.5 > blue[:8].max()


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "CMYK", "1", "I;16", "F"])
def test_every_mode_gives_finite_pixels(mode):
    image = picture().convert("L").convert("I").convert(mode) if mode == "I;16" else None
    image = picture().convert(mode) if image is None else image
    pixels = ImagePreprocessor("clip", None, image_size=28)([image])["pixel_values"]
    assert pixels.shape == (1, 28, 28, 3) and np.isfinite(pixels).all()


def test_batches_equal_single_images_and_may_be_empty():
    processor = ImagePreprocessor("clip", None, image_size=28)
    images = [picture(), picture(28, 28), picture(10, 70)]
    together = processor(images)["pixel_values"]
    for index, image in enumerate(images):
        np.testing.assert_array_equal(together[index], processor([image])["pixel_values"][0])
    assert processor([])["pixel_values"].shape == (0, 28, 28, 3)
    with pytest.raises(UserError, match="list of PIL images"):
        processor(picture())
    with pytest.raises(UserError, match="got str"):
        processor(["picture.png"])


def test_processor_config_of_transformers_5_is_read(tmp_path):
    encoders.folder("clip", tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    nested = {**preprocess.CLIP_DEFAULTS, "size": 28, "crop_size": 28, "resample": 2}
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": nested}))
    host, report = converters.load_host_with_report("clip", tmp_path)
    assert report.preprocessor == "processor_config.json"
    assert host.spec.preprocessing["resample"] == 2
    (tmp_path / "processor_config.json").unlink()
    host, report = converters.load_host_with_report("clip", tmp_path)
    assert report.preprocessor == "" and host.spec.preprocessing["resample"] == 3
