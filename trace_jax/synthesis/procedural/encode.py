"""Pictures as files: one identity rendered and encoded, the unit of work of a worker process."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
from PIL import Image

from trace_jax.synthesis.procedural.world import Picture, Request, pictures

FORMATS = {"webp": "WEBP", "png": "PNG"}


@dataclasses.dataclass(frozen=True)
class EncodedPicture:
    """A picture's row (its `pixels` dropped to nothing) and its file's bytes."""

    picture: Picture
    data: bytes


def encode(picture: Picture, format: str, quality: int) -> bytes:
    """The file of one picture; see `encode_pixels`."""
    return encode_pixels(picture.pixels, format, quality)


def encode_pixels(pixels: np.ndarray, format: str, quality: int) -> bytes:
    """uint8 [H, W, 3] as a file; `quality` 0-100 matters to WebP only."""
    stream = io.BytesIO()
    options = {"quality": quality, "method": 4} if format == "webp" else {"optimize": True}
    Image.fromarray(pixels).save(stream, FORMATS[format], **options)
    return stream.getvalue()


def render_identity(job: tuple[Request, str, int]) -> tuple[Request, list[EncodedPicture]]:
    """Renders and encodes all pictures of one identity; runs in a worker process."""
    request, format, quality = job
    done = []
    for picture in pictures(request):
        data = encode(picture, format, quality)
        done.append(EncodedPicture(dataclasses.replace(picture, pixels=picture.pixels[:0]), data))
    return request, done
