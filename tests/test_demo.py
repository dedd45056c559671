"""The embedded default keeps what the README promises: the demo whole, on held-out identities."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LEVEL_BLIND = ("mean_shift", "ridge")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict:
    out = tmp_path_factory.mktemp("demo") / "out"
    # From another folder, as a newcomer might: nothing may depend on where one stands.
    done = subprocess.run(
        [str(ROOT / "bin" / "demo"), f"--out={out}"],
        cwd=out.parent,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == str(out / "report.html")
    assert (out / "report.html").stat().st_size > 50_000
    assert (out / "answers" / "report.html").stat().st_size > 50_000
    assert 'href="answers/report.html"' in (out / "report.html").read_text(encoding="utf-8")
    found = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return found | {"answers": json.loads((out / "answers" / "results.json").read_text())}


def _row(
    results: dict, condition: str, metric: str, severity: str = "all", task: str | None = None
) -> dict:
    found = [
        row
        for row in results["rows"]
        if (row["condition"], row["metric"], row["severity"]) == (condition, metric, severity)
        and task in (None, row["task"])
    ]
    assert len(found) == 1, (condition, metric, severity, len(found))
    return found[0]


def _value(results: dict, condition: str, metric: str, severity: str = "all") -> float:
    return _row(results, condition, metric, severity)["value"]


@pytest.mark.slow
def test_base_falls_with_severity(results: dict) -> None:
    first, last = (_value(results, "base", "r_at_1", level) for level in ("L0", "L4"))
    assert first - last >= 0.40
    assert _row(results, "base", "r_at_1", "L0")["n"] >= 200


@pytest.mark.slow
def test_the_papers_loss_recovers_features(results: dict) -> None:
    assert _row(results, "frm", "r_at_1_gain")["low"] > 0
    base, recovered = (_value(results, name, "mse") for name in ("base", "frm"))
    assert recovered <= 0.70 * base
    for rival in LEVEL_BLIND:
        assert recovered < _value(results, rival, "mse")
        assert _value(results, "frm", "cosine") > _value(results, rival, "cosine")


@pytest.mark.slow
def test_our_recipe_beats_the_level_blind_controls(results: dict) -> None:
    for rival in LEVEL_BLIND:
        assert _row(results, "frm_plus", f"r_at_1_gain_over_{rival}")["low"] > 0
    assert _value(results, "frm_plus", "r_at_1", "L0") >= (
        _value(results, "base", "r_at_1", "L0") - 0.02
    )
    assert _value(results, "frm_plus", "r_at_1", "pristine") >= (
        _value(results, "base", "r_at_1", "pristine") - 0.01
    )


@pytest.mark.slow
def test_oracle_and_ceiling_are_shown(results: dict) -> None:
    assert 0 < _value(results, "mean_shift_oracle", "r_at_1") <= 1
    assert _value(results, "pristine", "r_at_1") >= _value(results, "base", "r_at_1")


@pytest.mark.slow
def test_the_answering_host_shows_every_task(results: dict) -> None:
    own = results["answers"]
    for task, metric in (
        ("retrieval", "r_at_1"),
        ("material", "micro_f1"),
        ("description", "description_score"),
        ("function", "function_score"),
        ("damage", "accuracy"),
    ):
        for condition in ("base", "frm", "frm_plus"):
            assert 0 < _row(own, condition, metric, "all", task)["value"] < 1, (task, condition)
    for metric in ("r_at_1", "description_score", "identity_accuracy", "function_accuracy"):
        first, last = (_value(own, "base", metric, level) for level in ("L0", "L4"))
        assert last < first, metric
    for condition in ("frm", "frm_plus"):
        assert _row(own, condition, "r_at_1_gain")["low"] > 0


@pytest.mark.slow
def test_the_gate_keeps_recovery_out_of_questions_about_damage(results: dict) -> None:
    own = results["answers"]
    for severity in ("L0", "L4", "all", "pristine"):
        base, recovered = (
            _row(own, name, "accuracy", severity, "damage")["value"] for name in ("base", "frm")
        )
        assert base == recovered
