"""The gate: held-out questions on the right side, the paper's prompts let through, explained."""

from __future__ import annotations

import pytest

from trace_jax.errors import UserError
from trace_jax.tasks import damage, gate, prompts


def test_held_out_questions():
    rows = gate.questions()
    assert len(rows) == 200
    held = [q for q in rows if q.split == "held_out"]
    assert len(held) == 100 and sum(q.about == gate.ORIGIN for q in held) == 50
    assert gate.accuracy(held) >= 0.97


def test_the_weights_are_those_of_the_questions():
    train = [q for q in gate.questions() if q.split == "train"]
    fitted = gate.fit([*train, *gate.patterned()])
    assert fitted == pytest.approx(gate._weights(), abs=2e-3)


def test_the_papers_prompts_are_recovered_and_damage_questions_are_not():
    assert all(gate.recovers(text) for text in prompts.prompts().values())
    assert not any(gate.recovers(text) for text in damage.QUESTIONS)


def test_modes_and_explanation():
    assert gate.recovers("anything", "always") and not gate.recovers("anything", "never")
    with pytest.raises(UserError, match="known are"):
        gate.recovers("anything", "sometimes")
    cues = gate.explain("How badly is this object damaged?")
    assert cues[0][0] == "(constant)" and sum(w for _, w in cues) == gate.score(
        "How badly is this object damaged?"
    )
    assert gate.recovers("") in (True, False)
