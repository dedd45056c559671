"""A local HTTP service of Gemini's form that misbehaves as told; nothing leaves the machine."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from PIL import Image

KEY = "AIza-stand-in-secret/0123+=XYZ"
GOOD = {"grounding_score": 0.9, "reasoning": "believable", "pass": True}
POOR = {"grounding_score": 0.4, "reasoning": "painterly", "pass": False}

Script = Callable[[int, dict[str, Any]], Any]


def picture(seed: int | str, size: tuple[int, int] = (96, 72), format: str = "PNG") -> bytes:
    """A small picture that differs by seed."""
    digest = hashlib.sha256(str(seed).encode()).digest()
    image = Image.frombytes("RGB", (4, 2), digest[:24]).resize(size)
    stream = io.BytesIO()
    image.save(stream, format)
    return stream.getvalue()


class Asked:
    """One request as the service saw it."""

    def __init__(self, model: str, body: dict[str, Any], headers: dict[str, str]) -> None:
        self.model, self.body, self.headers = model, body, headers
        parts = body["contents"][0]["parts"]
        self.prompt = parts[0]["text"]
        self.labels = [p["text"] for p in parts[1:] if "text" in p]
        self.pictures = [
            base64.urlsafe_b64decode(p["inlineData"]["data"]) for p in parts if "text" not in p
        ]
        self.config = body.get("generationConfig", {})
        self.judged = "image" not in model

    @property
    def print(self) -> str:
        """Hash of the whole question."""
        return hashlib.sha256(
            json.dumps([self.model, self.body], sort_keys=True).encode()
        ).hexdigest()


class Service:
    """Records what is asked; answers from `answer`, which a test may replace.

    `answer(number, asked)` gives: bytes (a picture), a dict or str (the judge's text), or one of
    `Status`, `Cut`, `Raw`, `Slow`. `number` counts requests of the same model from 0.
    """

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.busy = self.most_busy = 0
        self.answer: Callable[[int, Asked], Any] = default
        self.address = ""

    def of(self, judged: bool) -> list[Asked]:
        return [a for a in self.asked if a.judged == judged]


def default(number: int, asked: Asked) -> Any:
    return GOOD if asked.judged else picture(asked.config["seed"])


class Status:
    """An HTTP error."""

    def __init__(self, code: int, headers: dict[str, str] | None = None, said: str = "no") -> None:
        self.code, self.headers, self.said = code, headers or {}, said


class Cut:
    """The connection is reset in the middle of an answer."""


class Raw:
    """A body sent as it is, with status 200."""

    def __init__(self, body: bytes) -> None:
        self.body = body


class Slow:
    """Answers after some seconds."""

    def __init__(self, seconds: float, then: Any) -> None:
        self.seconds, self.then = seconds, then


def wrap(part: dict[str, Any]) -> bytes:
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
    return json.dumps({"candidates": [candidate]}).encode()


def inline(data: bytes, said: str = "image/png") -> Raw:
    """A picture part that says it is of type `said`, whatever it is."""
    return Raw(wrap({"inlineData": {"mimeType": said, "data": base64.b64encode(data).decode()}}))


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else every answer waits 40 ms
    service: Service

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:  # noqa: N802 - http.server's name
        service = self.service
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        model = self.path.split("/models/")[1].split(":")[0]
        asked = Asked(model, body, {k.lower(): v for k, v in self.headers.items()})
        with service.lock:
            number = service.counts[model]
            service.counts[model] += 1
            service.asked.append(asked)
            service.busy += 1
            service.most_busy = max(service.most_busy, service.busy)
        try:
            self._send(service.answer(number, asked))
        finally:
            with service.lock:
                service.busy -= 1

    def _send(self, answer: Any) -> None:
        if isinstance(answer, Slow):
            time.sleep(answer.seconds)
            answer = answer.then
        if isinstance(answer, Cut):
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(b'{"candidates": [')
            self.wfile.flush()
            # Linger 0 makes close a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if isinstance(answer, Status):
            error = {"code": answer.code, "message": answer.said, "status": "X"}
            self._reply(answer.code, json.dumps({"error": error}).encode(), answer.headers)
        elif isinstance(answer, Raw):
            self._reply(200, answer.body, {})
        elif isinstance(answer, bytes):
            self._reply(200, inline(answer).body, {})
        else:
            text = answer if isinstance(answer, str) else json.dumps(answer)
            self._reply(200, wrap({"text": text}), {})

    def _reply(self, code: int, body: bytes, headers: dict[str, str]) -> None:
        try:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client's patience ended first


@contextmanager
def serving() -> Iterator[Service]:
    """A running service on a free port of this machine."""
    service = Service()
    handler = type("Handler", (_Handler,), {"service": service})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    service.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
