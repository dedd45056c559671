"""The grounding judge's verdict (paper B.3): strict JSON, or it is none."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

PAPER_ACCEPTANCE = 0.738  # B.3: 21,400 of about 29,000 candidates
_KEYS = {"grounding_score", "reasoning", "pass"}
_LONGEST = 2000  # characters of reasoning kept


class BadVerdictError(Exception):
    """An answer that is no verdict; the message is the reason."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A usable verdict.

    Attributes:
      score: grounding, 0-1.
      reasoning: the judge's short reason.
      accepted: whether the score reaches the threshold.
    """

    score: float
    reasoning: str
    accepted: bool


def parse(text: str, threshold: float) -> Verdict:
    """Reads the judge's answer.

    Args:
      text: must be one JSON object with exactly grounding_score (a number, 0-1), reasoning (text)
        and pass (true or false, as the score and the threshold say).
      threshold: least score that is accepted.

    Raises:
      BadVerdictError: anything else, NaN and a score outside 0-1 among it.
    """
    try:
        raw = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise BadVerdictError(f"is not strict JSON ({error})") from error
    if not isinstance(raw, dict) or set(raw) != _KEYS:
        raise BadVerdictError(f"must hold exactly {', '.join(sorted(_KEYS))}")
    score, reasoning, passed = raw["grounding_score"], raw["reasoning"], raw["pass"]
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise BadVerdictError("grounding_score is not a number")
    if not 0.0 <= score <= 1.0 or not math.isfinite(score):
        raise BadVerdictError(f"grounding_score {score} lies outside 0-1")
    if not isinstance(reasoning, str):
        raise BadVerdictError("reasoning is not text")
    if not isinstance(passed, bool):
        raise BadVerdictError("pass is not true or false")
    accepted = score >= threshold
    if passed != accepted:
        # The judge was told the rule; an answer against itself cannot be read either way.
        raise BadVerdictError(f"pass is {passed} but the score {score} says {accepted}")
    return Verdict(float(score), reasoning[:_LONGEST], accepted)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError("a key is written twice")
    return dict(pairs)
