"""The `procedural` engine behind the pipeline: renders, sends nothing, costs nothing, needs no key.

For rehearsing a run (`bin/generate --rehearse`): the pipeline, its folder and its journal are the
real ones, the pictures are the procedural world's. A full data set is rendered faster by
`runs.generate`, where `bin/generate --engine=procedural` goes. It cannot judge, so the judge must
be off.
"""

from __future__ import annotations

import io
import threading
from typing import Any

import numpy as np
from PIL import Image

from trace_jax import taxonomy
from trace_jax.synthesis import procedural
from trace_jax.synthesis.engines.base import EngineError, Request
from trace_jax.synthesis.procedural import scenes
from trace_jax.types import LEVELS, PRISTINE

# Pixels of an object's side, and of a scene: enough to look at, quick to render.
_SIZE, _SCENE = 128, (256, 192)


class ProceduralEngine:
    """See `base.Engine`.

    Args:
      seed: of the world.
    """

    name = "procedural"
    judges = False
    model = "procedural"

    def __init__(self, seed: int) -> None:
        self._seed = seed
        # The rasteriser is compiled on first use and holds the processor anyway.
        self._lock = threading.Lock()

    def scrub(self, text: str) -> str:
        """`text`: there is no secret."""
        return text

    def image(self, request: Request) -> bytes:
        """Renders what `request.subject` names; the prompt is not read."""
        with self._lock:
            pixels = self._render(request.subject)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        return stream.getvalue()

    def verdict(self, request: Request) -> str:
        """Never: a renderer is no judge."""
        raise EngineError("the procedural engine cannot judge; use --nojudge", retry=False)

    def _render(self, subject: Any) -> np.ndarray:
        severity = subject["severity"]
        if "scene" in subject:
            return self._render_scene(subject)
        views, levels = ((0,), ()) if severity == PRISTINE else ((), LEVELS)
        request = procedural.Request(
            "inventory", subject["index"], self._seed, _SIZE, views, levels, 1
        )
        for picture in procedural.pictures(request):
            if picture.severity == severity:
                return np.asarray(picture.pixels)
        raise EngineError(f"the procedural world rendered no {severity}", retry=False)

    def _render_scene(self, subject: Any) -> np.ndarray:
        # A layout's number decides its scene type: take the next number of the type wanted.
        types = len(taxonomy.load().scene_types)
        first = next(k for k in range(types) if scenes.scene_type_of(k) == subject["scene_type"])
        number = int(subject["scene"].rpartition("-")[2]) + subject["candidate"]
        request = scenes.SceneRequest(
            "sample", first + types * number, self._seed, *_SCENE, (subject["severity"],)
        )
        (picture,) = scenes.render_scene(request)
        return np.asarray(picture.pixels)
