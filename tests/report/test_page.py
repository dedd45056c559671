"""The report as a file: self-contained, escaped, honest about what is missing."""

import json
import re
import shutil
from xml.etree import ElementTree

import pytest
from support.pages import Page
from support.results import make_results

from trace_jax import report
from trace_jax.errors import UserError
from trace_jax.report.evaluation import Evaluation
from trace_jax.runs import scoring
from trace_jax.tasks import answers


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    folder = make_results(root / "out", root / "data")
    text = report.write(folder).read_text(encoding="utf-8")
    return root, folder, text, Page(text)


def test_is_one_file_that_fetches_nothing(made):
    _, folder, text, page = made
    assert "script" not in page.tags and "link" not in page.tags
    for reference in page.references:
        assert (
            reference.startswith(("data:image/webp;base64,", "#")) or (folder / reference).is_file()
        ), reference[:80]
    assert not re.search(r"url\(|@import|https?://", text)
    assert len(text) < 8e6
    anchors = {r[1:] for r in page.references if r.startswith("#")}
    assert anchors <= set(page.ids)


def test_says_what_must_be_said(made):
    _, _, _, page = made
    words = " ".join(" ".join(page.words).split())
    for needed in (
        "needs a human's judgement",
        "not a fair rival: it is told the true severity",
        "Became right",
        "and 0 became wrong",
        "honest ceiling",
        "Hazards and everyday objects",
        "section 5.1 (Table 3)",
        "A note of the run.",
        "Training curves",
        "results.json",
        "bin/eval --frm=<x>",
    ):
        assert needed in words, needed


def test_names_are_escaped(made):
    _, _, text, _ = made
    assert "<b>odd" not in text and "&lt;b&gt;odd &amp; end" in text


def test_charts_are_well_formed(made):
    _, _, text, _ = made
    charts = re.findall(r"<svg.*?</svg>", text, flags=re.S)
    assert len([c for c in charts if 'class="chart"' in c]) == 4 + 3
    for chart in charts:
        ElementTree.fromstring(chart)


def test_markdown_has_the_same_numbers(made):
    _, folder, _, _ = made
    text = (folder / "results.md").read_text(encoding="utf-8")
    raw = json.loads((folder / "results.json").read_text())
    pooled = next(
        r["value"]
        for r in raw["rows"]
        if (r["condition"], r["severity"], r["metric"]) == ("frm", "all", "r_at_1")
    )
    line = next(x for x in text.splitlines() if x.startswith("| FRM |"))
    assert f"{100 * pooled:.1f}" in line
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
        assert len({row.count("|") for row in table.splitlines()}) == 1
    assert "−43.4%" in text and "+14.8" in text and "−30.3%" in text
    assert "human's judgement" in text


def test_a_moved_folder_and_lost_pictures(made, tmp_path):
    _, folder, _, _ = made
    shutil.copytree(folder, tmp_path / "moved")
    raw = json.loads((tmp_path / "moved/results.json").read_text())
    raw["meta"]["data"]["folders"] = [str(tmp_path / "gone")]
    (tmp_path / "moved/results.json").write_text(json.dumps(raw))
    text = report.write(tmp_path / "moved").read_text()
    Page(text)
    assert "data:image" not in text and "not found" in text
    assert "images could not be found" in text
    raw["meta"]["data"]["folders"] = ["../elsewhere"]  # beside the results counts too
    (tmp_path / "moved/results.json").write_text(json.dumps(raw))
    shutil.copytree(made[0] / "data", tmp_path / "elsewhere")
    assert "data:image" in report.write(tmp_path / "moved").read_text()


def test_a_broken_picture_is_a_box(tmp_path):
    folder = make_results(tmp_path / "out", tmp_path / "data", identities=4)
    for path in (tmp_path / "data/images").glob("*L0*"):
        path.write_bytes(path.read_bytes()[:30])
    assert "images could not be found or read" in report.write(folder).read_text()


def test_without_records_or_curves_the_numbers_remain(tmp_path):
    folder = make_results(
        tmp_path / "out", tmp_path / "data", identities=3, pictures=False, curves=False
    )
    (folder / "records.jsonl").unlink()
    text = report.write(folder).read_text()
    Page(text)
    assert "Training curves" not in text and "Became right" not in text
    assert "R@1, %" in text


def test_one_identity_gives_no_verdict(tmp_path):
    folder = make_results(tmp_path / "out", tmp_path / "data", identities=1, pictures=False)
    text = report.write(folder).read_text()
    assert "too few objects to say more" in text


def test_refuses_what_is_no_results_folder(tmp_path):
    with pytest.raises(UserError, match="Run bin/eval first"):
        report.write(tmp_path)
    (tmp_path / "results.json").write_text('{"schema": 7}')
    with pytest.raises(UserError, match="schema 1"):
        report.write(tmp_path)
    folder = make_results(tmp_path / "out", tmp_path / "data", identities=2, pictures=False)
    (folder / "records.jsonl").write_text("{")
    with pytest.raises(UserError, match="not readable JSON lines"):
        Evaluation.read(folder)


@pytest.fixture(scope="module")
def answered(made, tmp_path_factory):
    """The same results with answers: base says nothing useful, frm says the truth."""
    root, folder, _, _ = made
    out = tmp_path_factory.mktemp("answers") / "out"
    shutil.copytree(folder, out)
    queries = [r for r in Evaluation.read(folder).records if r["condition"] == "base"]
    lines = []
    for row in queries:
        for condition in ("base", "frm"):
            for task, words in (
                ("material", "wood"),
                ("description", "A chair made of wood, used for seating."),
                ("damage", "heavy soot"),
            ):
                if condition == "base" and row["severity"] != "pristine" and task != "damage":
                    words = "unclear remains"
                lines.append(
                    answers.line(
                        answers.AnswerRecord(
                            task, condition, row["path"], row["path"], row["identity"], "chair",
                            row["group"], row["severity"], row["view"], row["draw"], ("wood",),
                            ("seating",), words, 4, condition == "frm", "heavy soot",
                        )
                    )
                )  # fmt: skip
    (out / "answers.jsonl").write_bytes(b"".join(lines))
    state = json.loads((out / "run.json").read_text(encoding="utf-8"))
    state["meta"]["answers"] = {
        "tasks": ["material", "description", "damage"], "gate": "query", "judge": "none",
        "deepstack": "kept", "tokens_per_second": 31.0, "seconds": 1.0, "skipped": ["x.png: torn"],
        "batch_size": 16,
    }  # fmt: skip
    (out / "run.json").write_text(json.dumps(state), encoding="utf-8")
    scoring.score(out, resamples=50)
    text = report.write(out).read_text(encoding="utf-8")
    return out, text, Page(text)


def test_answers_have_tables_sentences_and_dialogues(answered):
    out, text, page = answered
    words = " ".join(" ".join(page.words).split())
    for needed in (
        "Material micro-F1, %",
        "Description score, %",
        "Questions about the damage (gate “query”)",
        "What it says",
        "unclear remains",
        "A chair made of wood, used for seating.",
        "paper, Qwen3-VL-4B",
        "x.png: torn",
        "31 tokens a second",
    ):
        assert needed in words, needed
    assert "answers.jsonl" in page.references and "answers" in page.ids
    found = Evaluation.read(out)
    assert found.row("material", "frm", "all", "micro_f1")["value"] == 1.0
    markdown = (out / "results.md").read_text(encoding="utf-8")
    assert "| paper, Qwen3-VL-4B | 36.00 | 39.24 | +3.2 |" in markdown
    assert "Identity accuracy, %" in markdown


def test_results_without_answers_show_none(made):
    _, _, text, page = made
    assert "answers" not in page.ids and "What it says" not in text
