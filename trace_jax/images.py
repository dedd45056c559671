"""Opening any image by one rule.

Every reader of pictures goes through `open_rgb`. The rule: decode fully (a truncated file is an
error), apply the EXIF orientation, then bring every mode to 8-bit RGB. Alpha is composited on
white, the studio background of TRACE (paper B.1). 16-bit and 32-bit integer grey is scaled by its
full range (65535), float grey is taken as 0-1 when its maximum is at most 1 and as 0-255 above.
CMYK, YCbCr, LAB, HSV and palettes follow Pillow's conversion.
"""

from __future__ import annotations

import io
import os
import threading
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

# Above every camera's 151 megapixels and below the size at which Pillow itself refuses (179).
MAX_PIXELS = 170_000_000

_WHITE = (255, 255, 255)

# catch_warnings swaps process-wide state, so decode threads take turns at the header.
_HEADER_LOCK = threading.Lock()


class BadImageError(Exception):
    """An image that cannot be used; the message is the reason, without the path."""


def open_rgb(path: str | os.PathLike[str]) -> Image.Image:
    """Opens, decodes and normalises one image file. Safe to call from threads.

    Returns:
      An RGB image, EXIF-transposed, fully decoded; of an animation the first frame.

    Raises:
      BadImageError: missing, empty, not an image, truncated, or larger than MAX_PIXELS.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadImageError(f"cannot be opened ({error.strerror})") from error
    return decode_rgb(data)


def decode_rgb(data: bytes) -> Image.Image:
    """`open_rgb` for an encoded image in memory."""
    if not data:
        raise BadImageError("is empty (0 bytes)")
    try:
        with _header(data) as image:
            if image.width * image.height > MAX_PIXELS:
                raise BadImageError(
                    f"is too large ({image.width}x{image.height}, more than {MAX_PIXELS:,} pixels)"
                )
            image.load()
            return to_rgb(image)
    except BadImageError:
        raise
    except UnidentifiedImageError as error:
        raise BadImageError("is not an image of a known format") from error
    except Image.DecompressionBombError as error:
        raise BadImageError(f"is too large ({error})") from error
    except Exception as error:
        # Pillow's readers let nearly any exception escape from a damaged file (struct.error,
        # zlib.error, SyntaxError, IndexError, ...); whichever it is, the file is at fault.
        raise BadImageError(f"is truncated or damaged ({error or type(error).__name__})") from error


def _header(data: bytes) -> Image.Image:
    with _HEADER_LOCK, warnings.catch_warnings():
        # Our own limit replaces Pillow's warning.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(io.BytesIO(data))


def to_rgb(image: Image.Image) -> Image.Image:
    """Applies the module's rule to an open image: EXIF transpose, then 8-bit RGB."""
    image = ImageOps.exif_transpose(image)
    if image.mode == "RGB":
        return image.copy() if "transparency" not in image.info else _on_white(image)
    if image.mode in ("I;16", "I;16L", "I;16B", "I;16N", "I"):
        values = np.asarray(image).astype(np.float64) / 65535.0
        return _grey(values)
    if image.mode == "F":
        values = np.nan_to_num(np.asarray(image).astype(np.float64))
        return _grey(values if values.max(initial=0.0) <= 1.0 else values / 255.0)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        return _on_white(image)
    return image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode in ("La", "RGBa"):  # premultiplied: Pillow converts these one step at a time
        image = image.convert({"La": "LA", "RGBa": "RGBA"}[image.mode])
    rgba = image.convert("RGBA")
    canvas = Image.new("RGBA", rgba.size, (*_WHITE, 255))
    return Image.alpha_composite(canvas, rgba).convert("RGB")


def _grey(values: np.ndarray) -> Image.Image:
    levels = np.rint(np.clip(values, 0.0, 1.0) * 255.0).astype(np.uint8)
    return Image.fromarray(levels, "L").convert("RGB")
