"""Public bug reports about pictures in neighbouring tools, each with its right behaviour here.

4. one truncated image: a traceback, then the run hangs (clip-retrieval 257, 298)
5. same file name in two folders: one silently lost (clip-retrieval 321)
6. EXIF orientation ignored, boxes and sizes wrong (datumaro 1756, detectron2 PR 262)
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image, ImageOps
from support.tiny_host import TinyHost, make_cache

from trace_jax import images
from trace_jax.data import manifest
from trace_jax.data.feature_cache import FeatureCache
from trace_jax.errors import FaultsError
from trace_jax.types import Example

INFO = manifest.DatasetInfo("crops", "cases", "1.0.0", "")


def rows_of(*paths):
    return [Example(p, f"id{i}", "mug", "", "pristine", "test") for i, p in enumerate(paths)]


def write_png(path, colour, size=(16, 16)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


# ---- case 4


@pytest.fixture
def five(tmp_path):
    """Five files: no. 3 a PNG cut to half its bytes, no. 4 text named .jpg, no. 5 empty."""
    rng = np.random.default_rng(0)
    names = ["1.png", "2.png", "3.png", "4.jpg", "5.png"]
    for name in names[:3]:
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(
            tmp_path / "images" / name
        )
    third = tmp_path / "images" / "3.png"
    third.write_bytes(third.read_bytes()[: third.stat().st_size // 2])
    (tmp_path / "images" / "4.jpg").write_text("this is no picture")
    (tmp_path / "images" / "5.png").write_bytes(b"")
    return manifest.write(tmp_path, INFO, rows_of(*(f"images/{name}" for name in names)))


def test_bad_pictures_do_not_stop_the_run(five, tmp_path):
    result = make_cache(five.folder, tmp_path / "out", dtype="float32")
    assert (result.status, result.rows) == (0, 2)
    assert result.failures == (
        ("images/3.png", dict(result.failures)["images/3.png"]),
        ("images/4.jpg", "is not an image of a known format"),
        ("images/5.png", "is empty (0 bytes)"),
    )
    assert result.failures[0][1].startswith("is truncated or damaged")
    lines = (tmp_path / "out" / "failed.jsonl").read_text().splitlines()
    assert [json.loads(line)["path"] for line in lines] == [path for path, _ in result.failures]
    cached = FeatureCache.open(tmp_path / "out")
    assert [row.path for row in cached.rows] == ["images/1.png", "images/2.png"]
    host = TinyHost()
    for index in range(2):
        picture = images.open_rgb(five.path(five.examples[index]))
        alone = np.asarray(host.tap(host.preprocess([picture])).tokens)
        np.testing.assert_allclose(cached.tokens([index]), alone, rtol=0, atol=1e-6)


def test_only_strict_makes_it_an_error(five, tmp_path):
    assert make_cache(five.folder, tmp_path / "out", strict=False).status == 0
    assert make_cache(five.folder, tmp_path / "out", strict=True).status == 3


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_wherever_the_bad_picture_stands(tmp_path, place, batch_size):
    paths = [f"images/{n}.png" for n in range(5)]
    for number, path in enumerate(paths):
        write_png(tmp_path / path, (50 * number, 0, 0))
    (tmp_path / paths[place]).write_bytes(b"x")
    manifest.write(tmp_path, INFO, rows_of(*paths))
    make_cache(tmp_path, tmp_path / "out", batch_size=batch_size)
    rows = FeatureCache.open(tmp_path / "out").rows
    assert [row.path for row in rows] == [p for n, p in enumerate(paths) if n != place]


# ---- case 5


def test_same_name_in_two_folders(tmp_path):
    paths = ["light/0001.jpg", "heavy/0001.jpg"]
    write_png(tmp_path / paths[0], (250, 250, 250))
    write_png(tmp_path / paths[1], (10, 10, 10))
    manifest.write(tmp_path, INFO, rows_of(*paths))
    assert manifest.check(tmp_path) == []
    make_cache(tmp_path, tmp_path / "out")
    cached = FeatureCache.open(tmp_path / "out")
    assert [row.path for row in cached.rows] == paths
    tokens = cached.tokens([0, 1], "float32")
    assert np.abs(tokens[0] - tokens[1]).max() > 0.1
    assert cached.index_of == {paths[0]: 0, paths[1]: 1}


@pytest.mark.parametrize(
    "paths",
    [
        ["a/1.png", "A/1.png"],
        ["a/1.png", "a/1.jpg"],
        ["caf\u00e9.png", "cafe\u0301.png"],
        ["a b.png", "a  b.png"],
        ["1.png", "01.png"],
    ],
)
def test_names_that_only_look_alike(tmp_path, paths):
    for number, path in enumerate(paths):
        write_png(tmp_path / path, (100 * number, 0, 0))
    if len({p.stat().st_ino for p in map(tmp_path.__truediv__, paths)}) < 2:
        pytest.skip("this file system takes the two for one")
    manifest.write(tmp_path, INFO, rows_of(*paths))
    make_cache(tmp_path, tmp_path / "out")
    assert [row.path for row in FeatureCache.open(tmp_path / "out").rows] == paths


@pytest.mark.parametrize("second", ["light/1.png", "./light/1.png", "heavy/../light/1.png"])
def test_a_true_duplicate_is_an_error(tmp_path, second):
    write_png(tmp_path / "light/1.png", (1, 2, 3))
    with pytest.raises(FaultsError):
        manifest.write(tmp_path, INFO, rows_of("light/1.png", second))


# ---- case 6


@pytest.fixture
def turned(tmp_path):
    """A 40x20 JPEG, left half red, Orientation 6."""
    image = Image.new("RGB", (40, 20), (0, 0, 255))
    image.paste((255, 0, 0), (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "images" / "turned.jpg"
    path.parent.mkdir()
    image.save(path, exif=exif, quality=95)
    return path


def test_every_reader_sees_it_upright(turned, tmp_path):
    opened = images.open_rgb(turned)
    assert opened.size == (20, 40)
    # Turned a quarter clockwise the left half is the upper one: the box (0, 0, 20, 20).
    pixels = np.asarray(opened)
    np.testing.assert_allclose(pixels[4:16].mean((0, 1)), [255, 0, 0], atol=8)
    np.testing.assert_allclose(pixels[24:36].mean((0, 1)), [0, 0, 255], atol=8)
    # In memory the same rule holds, and once applied it changes nothing more.
    with Image.open(turned) as raw:
        assert images.to_rgb(raw).tobytes() == opened.tobytes()
    assert ImageOps.exif_transpose(opened).tobytes() == opened.tobytes()


def test_the_cache_sees_it_upright(turned, tmp_path):
    images.open_rgb(turned).save(tmp_path / "images" / "upright.png")
    with Image.open(turned) as raw:
        Image.fromarray(np.asarray(raw)).save(tmp_path / "images" / "lying.png")
    paths = [f"images/{name}" for name in ("turned.jpg", "upright.png", "lying.png")]
    manifest.write(tmp_path, INFO, rows_of(*paths))
    seen = []

    class Watching(TinyHost):
        def preprocess(self, pictures):
            seen.extend(p.size for p in pictures)
            return super().preprocess(pictures)

    make_cache(tmp_path, tmp_path / "out", Watching(), batch_size=3)
    assert seen[-3:] == [(20, 40), (20, 40), (40, 20)]
    tokens = FeatureCache.open(tmp_path / "out").tokens(range(3), "float32")
    np.testing.assert_array_equal(tokens[0], tokens[1])
    assert np.abs(tokens[0] - tokens[2]).max() > 0.1
