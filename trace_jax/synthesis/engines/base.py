"""What the pipeline asks of an engine, and what can go wrong there."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

from trace_jax import files, images

# Picture files an answer may hold, by their first bytes; the whole file is decoded too.
_KINDS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp"}
_SMALLEST = 64  # pixels of a side: less is an icon or a placeholder, never a picture asked for


@dataclasses.dataclass(frozen=True)
class Picture:
    """An encoded picture as it is sent or came back.

    Attributes:
      label: what it is, said in words before it, e.g. "Reference 1".
      data: the file's bytes.
      media_type: of `data`.
      sha256: what it counts as in a request's key; of the original file where `data` is a copy.
    """

    label: str
    data: bytes = dataclasses.field(repr=False)
    media_type: str
    sha256: str


@dataclasses.dataclass(frozen=True)
class Request:
    """One question to an engine.

    Attributes:
      kind: "image" or "verdict".
      model: the service's model.
      prompt: the text.
      pictures: in the order they are sent.
      settings: JSON-able; seed, aspect_ratio, image_size.
      subject: what is asked for in the taxonomy's terms (identity, type, severity); engines that
        render need it, engines that read prompts do not.
    """

    kind: str
    model: str
    prompt: str
    pictures: tuple[Picture, ...] = ()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    subject: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def key(self, engine: str) -> str:
        """Hex SHA-256 of everything the answer depends on; where the service lives is not in it."""
        return files.sha256_json(
            {
                "engine": engine,
                "kind": self.kind,
                "model": self.model,
                "prompt": self.prompt,
                "pictures": [[picture.label, picture.sha256] for picture in self.pictures],
                "settings": dict(self.settings),
                "subject": dict(self.subject),
            }
        )


class Engine(Protocol):
    """Answers requests; safe to call from threads.

    Attributes:
      name: in the table of engines.
      judges: whether it can answer "verdict" requests.
      model: the only model it has, or "" where the request chooses.
    """

    name: str
    judges: bool
    model: str

    def image(self, request: Request) -> bytes:
        """The picture's file. Raises EngineError."""
        ...

    def verdict(self, request: Request) -> str:
        """The judge's answer, unparsed. Raises EngineError."""
        ...

    def scrub(self, text: str) -> str:
        """`text` without any secret of the engine's."""
        ...


class EngineError(Exception):
    """A request that brought no usable answer; the message is the reason, without secrets.

    Attributes:
      retry: whether asking again may help.
      wait: seconds the service asked to wait, or None.
      billed: whether the service may have charged for it.
    """

    def __init__(
        self, reason: str, *, retry: bool = True, wait: float | None = None, billed: bool = True
    ) -> None:
        super().__init__(reason)
        self.retry, self.wait, self.billed = retry, wait, billed


@dataclasses.dataclass(frozen=True)
class Checked:
    """A picture that came back and is one: its file's suffix, hash and size in pixels."""

    data: bytes = dataclasses.field(repr=False)
    media_type: str
    suffix: str
    sha256: str
    width: int
    height: int


def media_type(data: bytes) -> str:
    """The picture kind that the first bytes tell: one of PNG, JPEG, WebP, or ""."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else ""


def checked(data: bytes) -> Checked:
    """Refuses what is no whole PNG, JPEG or WebP picture, whatever the service called it.

    Raises:
      EngineError: HTML, GIF, nothing, a truncated file ...
    """
    kind = media_type(data)
    if not kind:
        start = data[:12].decode("ascii", "replace") if data else "nothing"
        raise EngineError(f"the picture is no PNG, JPEG or WebP file (starts with {start!r})")
    try:
        image = images.decode_rgb(data)
    except images.BadImageError as error:
        raise EngineError(f"the picture {error}") from error
    if min(image.size) < _SMALLEST:
        raise EngineError(f"the picture is only {image.width} x {image.height} pixels")
    digest = hashlib.sha256(data).hexdigest()
    return Checked(data, kind, _KINDS[kind], digest, image.width, image.height)
