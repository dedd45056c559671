"""Opening any image by one rule (trace_jax/images.py)."""

from __future__ import annotations

import struct
import threading
import zlib

import numpy as np
import pytest
from PIL import Image, ImageDraw

from trace_jax import images
from trace_jax.images import BadImageError, open_rgb, to_rgb


def corners(image):
    w, h = image.size
    return [image.getpixel(p) for p in ((0, 0), (w - 1, 0), (0, h - 1), (w - 1, h - 1))]


def picture(size=(6, 4)):
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(tmp_path, orientation):
    # Lossless, so that corners are exact; Pillow writes EXIF into PNG as it does into JPEG.
    red, green, blue, white = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
    image = Image.new("RGB", (4, 2))
    for place, colour in zip(((0, 0), (3, 0), (0, 1), (3, 1)), (red, green, blue, white)):  # noqa: B905
        image.putpixel(place, colour)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / "a.png", exif=exif)
    opened = open_rgb(tmp_path / "a.png")
    # EXIF 2.3, tag 274: where the file's row 0 and column 0 are to be seen.
    wanted = {
        1: [red, green, blue, white],
        2: [green, red, white, blue],
        3: [white, blue, green, red],
        4: [blue, white, red, green],
        5: [red, blue, green, white],
        6: [blue, red, white, green],
        7: [white, green, blue, red],
        8: [green, white, red, blue],
    }[orientation]
    assert opened.size == ((4, 2) if orientation < 5 else (2, 4))
    assert corners(opened) == wanted
    assert opened.getexif().get(0x0112, 1) == 1  # nobody transposes a second time
    assert to_rgb(opened).tobytes() == opened.tobytes()


@pytest.mark.parametrize("orientation", [0, 9, 255])
def test_senseless_orientation_is_none(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture().save(tmp_path / "a.png", exif=exif)
    assert open_rgb(tmp_path / "a.png").size == (6, 4)


def test_garbage_exif_does_not_lose_the_picture(tmp_path):
    picture().save(tmp_path / "a.jpg", exif=b"Exif\0\0garbage that is no TIFF header")
    assert open_rgb(tmp_path / "a.jpg").size == (6, 4)


def test_rgb_is_unchanged(tmp_path):
    picture().save(tmp_path / "a.png")
    assert open_rgb(tmp_path / "a.png").tobytes() == picture().tobytes()


@pytest.mark.parametrize(
    ("mode", "pixel", "wanted"),
    [
        ("L", 100, (100, 100, 100)),
        ("1", 1, (255, 255, 255)),
        ("1", 0, (0, 0, 0)),
        ("LA", (100, 255), (100, 100, 100)),
        ("LA", (100, 0), (255, 255, 255)),
        ("RGBA", (10, 20, 30, 255), (10, 20, 30)),
        ("RGBA", (10, 20, 30, 0), (255, 255, 255)),
        ("RGBA", (0, 0, 0, 128), (127, 127, 127)),
        ("I;16", 65535, (255, 255, 255)),
        ("I;16", 32896, (128, 128, 128)),
        ("I;16", 256, (1, 1, 1)),
    ],
)
def test_modes_in_png(tmp_path, mode, pixel, wanted):
    Image.new(mode, (3, 2), pixel).save(tmp_path / "a.png")
    opened = open_rgb(tmp_path / "a.png")
    assert (opened.mode, opened.size) == ("RGB", (3, 2))
    assert set(corners(opened)) == {wanted}


@pytest.mark.parametrize(
    ("mode", "pixel", "wanted"),
    [
        ("F", 0.5, (128, 128, 128)),
        ("F", 200.0, (200, 200, 200)),
        ("F", float("nan"), (0, 0, 0)),
        ("I", 65535, (255, 255, 255)),
        ("I", -5, (0, 0, 0)),
        ("I;16B", 32896, (128, 128, 128)),
        ("CMYK", (0, 0, 0, 255), (0, 0, 0)),
        ("CMYK", (0, 255, 255, 0), (255, 0, 0)),
        ("HSV", (0, 255, 255), (255, 0, 0)),
        ("YCbCr", (255, 128, 128), (255, 255, 255)),
    ],
)
def test_modes_in_memory(mode, pixel, wanted):
    opened = to_rgb(Image.new(mode, (3, 2), pixel))
    assert opened.mode == "RGB"
    assert set(corners(opened)) == {wanted}


def test_cmyk_jpeg(tmp_path):
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=95)
    pixel = np.asarray(open_rgb(tmp_path / "a.jpg")).reshape(-1, 3).mean(0)
    np.testing.assert_allclose(pixel, [255, 0, 0], atol=6)


@pytest.mark.parametrize("form", ["one index", "a byte each"])
def test_palette_with_transparency(tmp_path, form):
    image = Image.new("P", (2, 1))
    image.putpalette([200, 0, 0, 0, 200, 0])
    image.putpixel((1, 0), 1)
    transparency = 0 if form == "one index" else bytes([0, 255])
    image.save(tmp_path / "a.png", transparency=transparency)
    opened = open_rgb(tmp_path / "a.png")
    assert [opened.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (0, 200, 0)]


@pytest.mark.parametrize(("mode", "colour"), [("L", 7), ("RGB", (7, 8, 9)), ("1", 0)])
def test_colour_key_transparency(tmp_path, mode, colour):
    Image.new(mode, (2, 1), colour).save(tmp_path / "a.png", transparency=colour)
    assert open_rgb(tmp_path / "a.png").getpixel((0, 0)) == (255, 255, 255)


def test_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (8, 8), c) for c in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / "a.png", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / "a.webp", save_all=True, append_images=frames[1:], lossless=True)
    for name in ("a.gif", "a.png", "a.webp"):
        assert open_rgb(tmp_path / name).getpixel((3, 3)) == (255, 0, 0), name


def test_extension_does_not_matter(tmp_path):
    picture().save(tmp_path / "a.png")
    (tmp_path / "a.png").rename(tmp_path / "a.jpg")
    assert open_rgb(tmp_path / "a.jpg").size == (6, 4)


@pytest.mark.parametrize(
    "name", ["mit Leerzeichen.png", "é.png", "e\u0301.png", "图.png", "a#%?.png"]
)
def test_names(tmp_path, name):
    picture().save(tmp_path / name)
    assert open_rgb(tmp_path / name).size == (6, 4)


def test_missing_folder_and_empty(tmp_path):
    with pytest.raises(BadImageError, match="cannot be opened"):
        open_rgb(tmp_path / "none.png")
    with pytest.raises(BadImageError, match="cannot be opened"):
        open_rgb(tmp_path)
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(BadImageError, match="empty"):
        open_rgb(tmp_path / "a.png")


def test_text_is_no_image(tmp_path):
    (tmp_path / "a.jpg").write_text("<html>404</html>")
    with pytest.raises(BadImageError, match="not an image"):
        open_rgb(tmp_path / "a.jpg")


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif", "bmp", "tiff"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_truncated(tmp_path, suffix, share):
    path = tmp_path / f"a.{suffix}"
    picture((64, 64)).save(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(BadImageError):
        open_rgb(path)


def test_flipped_bytes_never_raise_anything_else(tmp_path):
    rng = np.random.default_rng(0)
    for suffix in ("png", "jpg", "webp", "gif", "bmp", "tiff"):
        path = tmp_path / f"a.{suffix}"
        picture((24, 24)).save(path)
        data = np.frombuffer(path.read_bytes(), np.uint8)
        for _ in range(40):
            damaged = data.copy()
            damaged[rng.integers(0, len(data), 6)] = rng.integers(0, 256, 6)
            try:
                assert images.decode_rgb(damaged.tobytes()).mode == "RGB"
            except BadImageError as error:
                assert str(error)


def test_decompression_bomb(tmp_path):
    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    for width, height in ((100_000, 100_000), (17_000, 10_001)):
        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        (tmp_path / "a.png").write_bytes(
            b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", header)
            + chunk(b"IDAT", b"")
            + chunk(b"IEND", b"")
        )
        with pytest.raises(BadImageError, match="too large"):
            open_rgb(tmp_path / "a.png")


def test_threads(tmp_path):
    for number in range(16):
        image = picture((32, 32))
        ImageDraw.Draw(image).rectangle((0, 0, 31, 31), fill=(number, 0, 0))
        image.save(tmp_path / f"{number}.png")
    seen = []

    def work(number):
        for _ in range(8):
            seen.append(open_rgb(tmp_path / f"{number}.png").getpixel((5, 5)) == (number, 0, 0))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 128 and all(seen)
