"""Questions and right answers about rows of a data set, for pretraining a vision-language host."""

from __future__ import annotations

from typing import NamedTuple

from trace_jax.tasks import damage, prompts
from trace_jax.types import Example


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
    """What can be seen now; see tasks.damage."""
    answers = damage.answers(example.severity, example.metrics)
    return [Turn(q, a) for q, a in zip(damage.QUESTIONS, answers, strict=True)]


def sentences() -> list[str]:
    """Whole questions, for the tokenizer."""
    return [*prompts.prompts().values(), *damage.QUESTIONS]


def _joined(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
