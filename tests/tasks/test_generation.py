"""Scores of answers against cases worked by hand, and prompts against their snapshots."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest

from trace_jax import taxonomy
from trace_jax.errors import FaultsError
from trace_jax.tasks import answers, prompts
from trace_jax.tasks.answers import AnswerRecord
from trace_jax.tasks.base import Scope
from trace_jax.tasks.generation import GENERATION_TASKS
from trace_jax.tasks.judge import Judge

SCOPE = Scope("d", "test", "", "h", "post_merger", 0, resamples=50)


def record(task: str, answer: str, number: int = 0, **changes) -> AnswerRecord:
    given = AnswerRecord(
        task, "base", f"images/{number}.png", f"images/{number}.png", f"chair-{number}", "chair",
        "everyday", "L0", 0, 0, ("wood", "metal"), ("seating",), answer, 5, False,
    )  # fmt: skip
    return dataclasses.replace(given, **changes)


def scores(name: str, records, judge: Judge | None = None) -> dict[str, float]:
    task = GENERATION_TASKS[name]
    rows = task.scorer.score(task.columns(records, judge or Judge()), SCOPE)
    return {r.metric: r.value for r in rows if r.severity == "L0"}


def test_material_micro_f1_by_hand():
    # right 1+2+0, predicted 1+3+0, true 2+2+2: P = 3/4, R = 3/6, F1 = 2*3 / (4+6)
    found = scores(
        "material",
        [
            record("material", "wood", 0),
            record("material", "wood, steel, glass", 1),
            record("material", "I cannot tell.", 2),
        ],
    )
    assert found["precision"] == pytest.approx(3 / 4)
    assert found["recall"] == pytest.approx(3 / 6)
    assert found["micro_f1"] == pytest.approx(6 / 10)
    assert found["unparseable"] == pytest.approx(1 / 3)


def test_description_by_hand():
    found = scores(
        "description",
        [
            record("description", "This was a chair made of wood and steel, used for sitting.", 0),
            record("description", "This was a table made of wood, used for eating at.", 1),
        ],
    )
    assert found["identity_accuracy"] == 0.5 and found["function_accuracy"] == 0.5
    assert found["micro_f1"] == pytest.approx(2 * 3 / (3 + 4))
    assert found["description_score"] == pytest.approx((0.5 + 6 / 7 + 0.5) / 3)
    assert found["unparseable"] == 0.0


def test_function_by_hand():
    found = scores(
        "function",
        [
            record("function", "Function: seating, lighting\nMaterials: wood", 0),
            record("function", "function - seating, materials: wood and metal", 1),
        ],
    )
    assert found["function_f1"] == pytest.approx(2 * 2 / (3 + 2))
    assert found["restoration_f1"] == pytest.approx(2 * 3 / (3 + 4))
    assert found["function_score"] == pytest.approx((4 / 5 + 6 / 7) / 2)
    # The second answer is not in the form that was asked for: it says nothing, strictly.
    assert found["function_score_strict"] == pytest.approx((2 / (2 + 2) + 2 / (1 + 4)) / 2)


def test_order_of_records_does_not_matter_and_unparseable_is_never_right():
    texts = ["wood", "steel and glass", "", "nothing at all", "plastic"]
    rows = [record("material", text, number) for number, text in enumerate(texts)]
    assert scores("material", rows) == scores("material", rows[::-1])
    for name in ("material", "description", "function"):
        bad = scores(name, [record(name, "", 0), record(name, "Sorry, I cannot.", 1)])
        assert bad.pop("unparseable") == 1.0
        assert all(v == 0 or np.isnan(v) for k, v in bad.items()), (name, bad)


class _Yes:
    name, model = "local", "always"

    def __init__(self):
        self.questions = []

    def __call__(self, question: str) -> str:
        self.questions.append(question)
        return "Yes."


def test_the_judge_is_asked_about_unresolved_phrases_only_and_once(tmp_path):
    engine = _Yes()
    rows = [
        record("description", "This was a flux perch made of wood, used for time travel.", 0),
        record("description", "This was a flux perch made of wood, used for time travel.", 1),
        record("description", "This was a table made of wood, used for eating at.", 2),
    ]
    judge = Judge(engine, tmp_path / "verdicts.jsonl")
    found = scores("description", rows, judge)
    assert len(engine.questions) == 2  # one identity, one function; the table is resolved
    assert found["identity_accuracy"] == pytest.approx(2 / 3)
    assert found["description_score_strict"] < found["description_score"]
    assert found["identity_resolved"] == pytest.approx(1 / 3)
    again = Judge(_Yes(), tmp_path / "verdicts.jsonl")
    assert scores("description", rows, again) == found
    assert again.engine.questions == []
    strict = scores("description", rows)
    assert strict["identity_accuracy"] == 0.0


def test_prompts_are_the_papers_word_for_word():
    assert prompts.MATERIAL.startswith("What were the main materials of this object before")
    hashes = {
        name: hashlib.sha256(text.encode()).hexdigest()[:16]
        for name, text in {
            "material": prompts.MATERIAL,
            "description": prompts.DESCRIPTION,
            "opening": prompts.FUNCTION_OPENING,
            "retrieval": prompts.RETRIEVAL,
        }.items()
    }
    assert hashes == SNAPSHOT
    assert all(tag in prompts.function_prompt() for tag in taxonomy.load().functions)


# Of the texts as they stand in the paper.
SNAPSHOT = {
    "material": "44c12e37a34670a5",
    "description": "c4b32ed5da8188b0",
    "opening": "46fd60c560a3d1df",
    "retrieval": "6323e1a540440b5f",
}


def test_answers_survive_a_file_and_a_kill(tmp_path):
    rows = [record("material", "wood\nünï", n) for n in range(3)]
    path = tmp_path / "answers.jsonl"
    path.write_bytes(b"".join(answers.line(r) for r in rows))
    assert answers.read(path) == rows
    path.write_bytes(path.read_bytes()[:-10])
    assert answers.read(path, partial=True) == rows[:2]
    with pytest.raises(FaultsError):
        answers.read(path)
    path.write_bytes(answers.line(rows[0]) * 2)
    with pytest.raises(FaultsError, match="two answers"):
        answers.read(path)


def test_damage_answers_compare_without_case_and_punctuation():
    rows = [
        record("damage", "yes", 0, expected="Yes."),
        record("damage", "About 40 percent", 1, expected="About 50 percent."),
    ]
    assert scores("damage", rows) == {"accuracy": 0.5}
