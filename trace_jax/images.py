"""Opening any image by one rule.

Every reader of pictures goes through `open_rgb`. The rule: decode fully (a truncated file is an
error), apply the EXIF orientation, then bring every mode to 8-bit RGB. Alpha is composited on
white, the studio background of TRACE (paper B.1). 16-bit and 32-bit integer grey is scaled by its
full range (65535), float grey is taken as 0-1 when its maximum is at most 1 and as 0-255 above.
CMYK, YCbCr, LAB, HSV and palettes follow Pillow's conversion.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

# 2^28 pixels: larger than any camera gives, small enough not to exhaust memory (768 MiB of RGB).
MAX_PIXELS = 2**28

_WHITE = (255, 255, 255)


class BadImageError(Exception):
    """An image that cannot be used; the message is the reason, without the path."""


def open_rgb(path: str | os.PathLike[str]) -> Image.Image:
    """Opens, decodes and normalises one image file.

    Returns:
      An RGB image, EXIF-transposed, fully decoded.

    Raises:
      BadImageError: missing, empty, not an image, truncated, or larger than MAX_PIXELS.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
    except OSError as error:
        raise BadImageError(f"cannot be opened ({error.strerror})") from error
    if size == 0:
        raise BadImageError("is empty (0 bytes)")
    try:
        with warnings.catch_warnings():
            # Our own limit below replaces Pillow's warning.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise BadImageError(
                        f"has {image.width}x{image.height} pixels, more than {MAX_PIXELS}"
                    )
                image.load()
                return to_rgb(image)
    except UnidentifiedImageError as error:
        raise BadImageError("is not an image of a known format") from error
    except Image.DecompressionBombError as error:
        raise BadImageError(f"is too large ({error})") from error
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise BadImageError(f"is truncated or damaged ({error})") from error


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
