"""The `gemini` engine: Google's image and vision-language models through google-genai.

The key comes from the environment and stays in this object: it is no argument, and `scrub` takes it
out of every text that leaves the engine. The client's own retries are off; the pipeline counts and
paces every request itself.
"""

from __future__ import annotations

import datetime
import email.utils
import importlib
import os
import urllib.parse
from collections.abc import Mapping
from typing import Any

from trace_jax.errors import UserError
from trace_jax.synthesis.engines.base import EngineError, Request

VARIABLES = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
_RETRIED = {408, 425, 429}
_LONGEST = 300  # characters of the service's message kept


class GeminiEngine:
    """See `base.Engine`.

    Args:
      base_url: another service of the same form; "" is Google's.
      api_version: e.g. "v1beta"; "" is the client's default.
      timeout: seconds of one request.

    Raises:
      UserError: google-genai is not installed, no key is set, or the address is none.
    """

    name = "gemini"
    judges = True
    model = ""

    def __init__(self, base_url: str = "", api_version: str = "", timeout: float = 180.0) -> None:
        _check_address(base_url)
        try:
            from google import genai
            from google.genai import errors, types
        except ImportError as error:
            raise UserError(
                "--engine=gemini: needs the package google-genai. Install it: bin/setup gemini"
            ) from error
        self._key = key()
        self._types, self._api_error = types, errors.APIError
        options = types.HttpOptions(
            base_url=base_url or None,
            api_version=api_version or None,
            timeout=int(timeout * 1000),
        )
        self._client = genai.Client(api_key=self._key, vertexai=False, http_options=options)
        self._transport = _transport_errors()

    def __repr__(self) -> str:
        return "GeminiEngine()"

    def scrub(self, text: str) -> str:
        """`text` with the key blotted out, as it is and as an address would carry it."""
        for form in (self._key, urllib.parse.quote(self._key, safe="")):
            text = text.replace(form, "***")
        return text

    def image(self, request: Request) -> bytes:
        """The first picture of the answer."""
        settings = request.settings
        picture = self._types.ImageConfig(
            aspect_ratio=settings["aspect_ratio"], image_size=settings["image_size"]
        )
        config = self._types.GenerateContentConfig(
            response_modalities=["IMAGE"], seed=settings["seed"], image_config=picture
        )
        for part in self._ask(request, config):
            if (
                part.inline_data is not None
                and part.inline_data.data is not None
                and not (part.thought)
            ):
                return part.inline_data.data
        raise EngineError("the answer holds no picture")

    def verdict(self, request: Request) -> str:
        """The text of the answer."""
        config = self._types.GenerateContentConfig(
            response_mime_type="application/json", seed=request.settings["seed"], temperature=0.0
        )
        texts = [p.text for p in self._ask(request, config) if p.text and not p.thought]
        return self.scrub("".join(texts))

    def _ask(self, request: Request, config: Any) -> list[Any]:
        parts = [self._types.Part.from_text(text=request.prompt)]
        for picture in request.pictures:
            parts.append(self._types.Part.from_text(text=f"{picture.label}:"))
            parts.append(
                self._types.Part.from_bytes(data=picture.data, mime_type=picture.media_type)
            )
        content = self._types.Content(role="user", parts=parts)
        # `from None`: the client's exceptions hold the request with its headers.
        try:
            reply = self._client.models.generate_content(
                model=request.model, contents=[content], config=config
            )
        except self._api_error as error:
            raise self._refusal(error, request.model) from None
        except self._transport as error:
            reason = self.scrub(str(error))[:_LONGEST]
            raise EngineError(f"no readable answer ({type(error).__name__}: {reason})") from None
        if not reply.candidates:
            blocked = reply.prompt_feedback and reply.prompt_feedback.block_reason
            raise EngineError(f"the service gave no candidate (block reason: {blocked or 'none'})")
        first = reply.candidates[0]
        if first.content is None or not first.content.parts:
            raise EngineError(f"the service gave an empty candidate ({first.finish_reason})")
        return list(first.content.parts)

    def _refusal(self, error: Any, model: str) -> EngineError | UserError:
        code = int(error.code or 0)
        said = self.scrub(str(error.message or error.status or ""))[:_LONGEST]
        if code in (401, 403) or (code == 400 and "api key" in said.lower()):
            return UserError(
                f"the service refused the key of {' or '.join(VARIABLES)} ({code}: {said}). "
                "Nothing was lost; set a valid key and run the same command again."
            )
        if code == 404:
            return UserError(
                f"the service does not know the model {model!r} ({said}). Choose another with "
                "--image_model or --judge_model."
            )
        retry = code in _RETRIED or code >= 500
        wait = _wait(error) if retry else None
        return EngineError(f"{code}: {said}", retry=retry, wait=wait, billed=False)


def key() -> str:
    """The key in the environment.

    Raises:
      UserError: there is none.
    """
    for variable in VARIABLES:
        if value := os.environ.get(variable, "").strip():
            return value
    raise UserError(
        f"--engine=gemini: set {' or '.join(VARIABLES)} in the environment (never in a file of "
        "the project). --dry_run needs no key."
    )


def _check_address(base_url: str) -> None:
    if not base_url:
        return
    try:
        parts = urllib.parse.urlsplit(base_url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        good = False
        parts = urllib.parse.SplitResult("", "", "", "", "")
    # Said without the address: it may hold what should not be shown.
    if not good or parts.query or parts.fragment or parts.username or parts.password:
        raise UserError("--base_url: give http(s)://host[:port][/path], without a key or a query.")


def _transport_errors() -> tuple[type[Exception], ...]:
    """What the client lets through when a connection or a body is broken."""
    found: list[type[Exception]] = [OSError, ValueError, EOFError]
    for module in ("httpx2", "httpx"):  # google-genai 3 uses httpx2, older ones httpx
        try:
            found.append(importlib.import_module(module).HTTPError)
        except ImportError:
            continue
    return tuple(found)


def _wait(error: Any) -> float | None:
    """Seconds to wait: the Retry-After header (number or date), or Google's RetryInfo."""
    headers: Mapping[str, str] = getattr(error.response, "headers", None) or {}
    if said := headers.get("retry-after", "").strip():
        return parse_retry_after(said)
    body = error.details if isinstance(error.details, dict) else {}
    inner = body.get("error", body)
    details = inner.get("details", []) if isinstance(inner, dict) else []
    for item in details if isinstance(details, list) else []:
        delay = str(item.get("retryDelay", "")) if isinstance(item, dict) else ""
        if delay.endswith("s"):
            return parse_retry_after(delay[:-1])
    return None


def parse_retry_after(said: str) -> float | None:
    """Seconds of a Retry-After header, a number or an HTTP date; None where it is neither."""
    try:
        seconds = float(said)
    except ValueError:
        try:
            moment = email.utils.parsedate_to_datetime(said)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        seconds = (moment - datetime.datetime.now(datetime.UTC)).total_seconds()
    return max(seconds, 0.0) if seconds < float("inf") else None
