"""Questions and right answers about rows of a data set, for pretraining a vision-language host."""

from __future__ import annotations

from typing import NamedTuple

from trace_jax import taxonomy
from trace_jax.tasks import prompts
from trace_jax.types import PRISTINE, Example

# Questions about what is to be seen now; the paper's three ask what was.
DAMAGE = (
    "How badly is this object damaged?",
    "Is there soot on this object?",
    "How much of the surface is covered with soot?",
    "Has this object been in a fire?",
    "Is this object still in one piece?",
)
_WHOLE = 0.7  # structural integrity from which an object counts as in one piece


class Turn(NamedTuple):
    """One question and its answer."""

    question: str
    answer: str


def about_origin(example: Example) -> list[Turn]:
    """The three tasks' prompts (paper C.3-C.5) with the row's truth."""
    materials = list(dict.fromkeys(part.material for part in example.materials))
    listed = ", ".join(materials)
    name = example.object_type.replace("_", " ")
    use = _joined([tag.replace("_", " ") for tag in example.functions])
    article = "an" if name[0] in "aeiou" else "a"
    return [
        Turn(prompts.MATERIAL, listed),
        Turn(
            prompts.DESCRIPTION,
            f"This was {article} {name} made of {_joined(materials)}, used for {use}.",
        ),
        Turn(
            prompts.function_prompt(),
            f"{prompts.FUNCTION_LABEL} {', '.join(example.functions)}\n"
            f"{prompts.MATERIALS_LABEL} {listed}",
        ),
    ]


def about_damage(example: Example) -> list[Turn]:
    """What can be seen now, from the row's severity and measured metrics."""
    burnt = example.severity != PRISTINE
    level = {level.name: level.title for level in taxonomy.load().severity}
    soot = example.metrics["soot_coverage"] if burnt else 0.0
    whole = not burnt or example.metrics["structural_integrity"] >= _WHOLE
    answers = (
        f"It shows {level[example.severity]}." if burnt else "It is not damaged.",
        "Yes." if burnt else "No.",
        f"About {round(soot * 10) * 10} percent." if burnt else "None of it.",
        "Yes." if burnt else "No.",
        "Yes." if whole else "No.",
    )
    return [Turn(q, a) for q, a in zip(DAMAGE, answers, strict=True)]


def sentences() -> list[str]:
    """Whole questions, for the tokenizer."""
    return [*prompts.prompts().values(), *DAMAGE]


def _joined(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
