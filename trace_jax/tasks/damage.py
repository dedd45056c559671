"""Questions about the present damage: what FRM must leave alone (the paper's open problem).

FRM makes features look pristine, which is wrong for a question about what is to be seen now. These
few questions, ours, measure it; they are no task of the paper's and enter none of its scores.
"""

from __future__ import annotations

from collections.abc import Mapping

from trace_jax import taxonomy
from trace_jax.types import PRISTINE

QUESTIONS = (
    "How badly is this object damaged?",
    "Is there soot on this object?",
    "How much of the surface is covered with soot?",
    "Has this object been in a fire?",
    "Is this object still in one piece?",
)
_WHOLE = 0.7  # structural integrity from which an object counts as in one piece


def answers(severity: str, metrics: Mapping[str, float]) -> tuple[str, ...]:
    """The right answer to each question.

    Args:
      severity: "pristine" or "L0".."L4".
      metrics: measured severity metadata of a burnt image, fractions.
    """
    burnt = severity != PRISTINE
    level = {level.name: level.title for level in taxonomy.load().severity}
    soot = metrics["soot_coverage"] if burnt else 0.0
    whole = not burnt or metrics["structural_integrity"] >= _WHOLE
    return (
        f"It shows {level[severity]}." if burnt else "It is not damaged.",
        "Yes." if burnt else "No.",
        f"About {round(soot * 10) * 10} percent." if burnt else "None of it.",
        "Yes." if burnt else "No.",
        "Yes." if whole else "No.",
    )


def same(answer: str, expected: str) -> bool:
    """Whether two answers say the same, case, space and punctuation aside."""
    return _folded(answer) == _folded(expected)


def _folded(text: str) -> str:
    return " ".join("".join(c if c.isalnum() else " " for c in text.lower()).split())
