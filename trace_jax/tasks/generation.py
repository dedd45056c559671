"""The three tasks that a vision-language host answers in words (paper C.3 to C.5).

Each is a prompt, a parser and a scorer. Labels are compared as sets; F1, precision and recall are
of the corpus (sums before ratios); shares and means are 0-1.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Mapping, Sequence

from trace_jax.metrics import ratios
from trace_jax.tasks import answers, damage, parse, prompts
from trace_jax.tasks.answers import AnswerRecord
from trace_jax.tasks.base import Metric, Task
from trace_jax.tasks.judge import Judge
from trace_jax.tasks.records import Columns

Measure = Callable[[AnswerRecord, Judge], dict[str, float]]


@dataclasses.dataclass(frozen=True)
class GenerationTask:
    """Attributes:
    name: as in flags and results.
    ask: makes the question about an image: (path, severity, metrics) -> (question, the right answer
      in words or "").
    max_new_tokens: the most an answer has.
    measure: one answer to numbers; NaN where the answer does not count.
    scorer: how numbers become rows.
    """

    name: str
    ask: Callable[[str, str, Mapping[str, float]], tuple[str, str]]
    max_new_tokens: int
    measure: Measure
    scorer: Task

    def columns(self, records: Sequence[AnswerRecord], judge: Judge) -> Columns:
        """The numbers of this task's records."""
        mine = [record for record in records if record.task == self.name]
        return answers.columns(mine, [self.measure(record, judge) for record in mine])


def _metric(name: str, *terms: Callable[[Columns], ratios.Term], better: bool = True) -> Metric:
    return Metric(name, lambda c: [term(c) for term in terms], better)


def _task(name: str, *metrics: Metric) -> Task:
    def refuse(*_: object) -> dict[str, list[object]]:
        raise NotImplementedError("answers are measured one by one, see GenerationTask.measure")

    return Task(name, refuse, metrics, gains=(), has_gallery=False)


def _materials(record: AnswerRecord, judge: Judge) -> dict[str, float]:
    del judge
    read = parse.materials(record.answer)
    return {
        **answers.overlap("material", read.found, record.materials),
        "unparseable": float(read.unparseable),
    }


def _description(record: AnswerRecord, judge: Judge) -> dict[str, float]:
    read = parse.description(record.answer)
    identity = float(read.identity == record.object_type)
    function = float(read.function in record.functions)
    judged_identity, judged_function = identity, function
    if read.identity is None:
        judged_identity = float(
            judge.equivalent("identity", read.identity_phrase, record.object_type)
        )
    if read.function is None:
        judged_function = float(
            any(judge.equivalent("function", read.function_phrase, f) for f in record.functions)
        )
    return {
        **answers.overlap("material", read.materials.found, record.materials),
        "identity": judged_identity,
        "function": judged_function,
        "identity_strict": identity,
        "function_strict": function,
        "identity_resolved": float(read.identity is not None),
        "function_resolved": float(read.function is not None),
        "unparseable": float(read.unparseable),
    }


def _function(record: AnswerRecord, judge: Judge) -> dict[str, float]:
    del judge
    lenient = parse.function_answer(record.answer, strict=False)
    strict = parse.function_answer(record.answer, strict=True)
    return {
        **answers.overlap("function", lenient.functions.found, record.functions),
        **answers.overlap("restoration", lenient.materials.found, record.materials),
        **answers.overlap("strict_function", strict.functions.found, record.functions),
        **answers.overlap("strict_restoration", strict.materials.found, record.materials),
        "unparseable": float(lenient.functions.unparseable and lenient.materials.unparseable),
    }


_F1 = answers.micro_f1("material")

MATERIAL = GenerationTask(
    "material",
    lambda *_: (prompts.MATERIAL, ""),
    prompts.MAX_NEW_TOKENS["material"],
    _materials,
    _task(
        "material",
        _metric("micro_f1", _F1),
        _metric("precision", answers.precision("material")),
        _metric("recall", answers.recall("material")),
        _metric("unparseable", answers.share("unparseable"), better=False),
    ),
)

DESCRIPTION = GenerationTask(
    "description",
    lambda *_: (prompts.DESCRIPTION, ""),
    prompts.MAX_NEW_TOKENS["description"],
    _description,
    _task(
        "description",
        # Paper section 3: the unweighted mean of the three.
        _metric("description_score", answers.share("identity"), _F1, answers.share("function")),
        _metric("identity_accuracy", answers.share("identity")),
        _metric("micro_f1", _F1),
        _metric("function_accuracy", answers.share("function")),
        # Without the judge's fallback: what no table resolves is wrong.
        _metric(
            "description_score_strict",
            answers.share("identity_strict"),
            _F1,
            answers.share("function_strict"),
        ),
        _metric("identity_resolved", answers.share("identity_resolved")),
        _metric("function_resolved", answers.share("function_resolved")),
        _metric("unparseable", answers.share("unparseable"), better=False),
    ),
)

FUNCTION = GenerationTask(
    "function",
    lambda *_: (prompts.function_prompt(), ""),
    prompts.MAX_NEW_TOKENS["function"],
    _function,
    _task(
        "function",
        _metric("function_score", answers.micro_f1("function"), answers.micro_f1("restoration")),
        _metric("function_f1", answers.micro_f1("function")),
        _metric("restoration_f1", answers.micro_f1("restoration")),
        # Only the form that was asked for.
        _metric(
            "function_score_strict",
            answers.micro_f1("strict_function"),
            answers.micro_f1("strict_restoration"),
        ),
        _metric("unparseable", answers.share("unparseable"), better=False),
    ),
)


def _ask_damage(path: str, severity: str, metrics: Mapping[str, float]) -> tuple[str, str]:
    # One question an image, spread evenly and the same in every run.
    number = zlib.crc32(path.encode("utf-8")) % len(damage.QUESTIONS)
    return damage.QUESTIONS[number], damage.answers(severity, metrics)[number]


def _damage(record: AnswerRecord, judge: Judge) -> dict[str, float]:
    del judge
    return {"right": float(damage.same(record.answer, record.expected))}


DAMAGE = GenerationTask(
    "damage",
    _ask_damage,
    prompts.MAX_NEW_TOKENS["damage"],
    _damage,
    _task("damage", _metric("accuracy", answers.share("right"))),
)

GENERATION_TASKS: dict[str, GenerationTask] = {
    task.name: task for task in (MATERIAL, DESCRIPTION, FUNCTION, DAMAGE)
}
