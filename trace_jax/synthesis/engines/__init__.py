"""Engines of the generation pipeline: name -> maker, one plain dict.

A maker takes `synthesis.settings.Settings` and is called only when a run needs its engine, so the
optional packages behind an engine are not imported before.
"""

from __future__ import annotations

from collections.abc import Callable

from trace_jax.errors import UserError
from trace_jax.synthesis.engines.base import Engine
from trace_jax.synthesis.settings import Settings


def _gemini(settings: Settings) -> Engine:
    from trace_jax.synthesis.engines.gemini import GeminiEngine

    return GeminiEngine(settings.base_url, settings.api_version, settings.timeout)


def _procedural(settings: Settings) -> Engine:
    from trace_jax.synthesis.engines.procedural import ProceduralEngine

    return ProceduralEngine(settings.seed)


ENGINES: dict[str, Callable[[Settings], Engine]] = {"gemini": _gemini, "procedural": _procedural}


def check(name: str) -> None:
    """Refuses an unknown engine.

    Raises:
      UserError: it is none.
    """
    if name not in ENGINES:
        raise UserError(f"--engine={name}: known engines: {', '.join(ENGINES)}.")


def make(name: str, settings: Settings) -> Engine:
    """The engine called `name`.

    Raises:
      UserError: unknown, or what it needs (a package, a key) is missing.
    """
    check(name)
    return ENGINES[name](settings)
