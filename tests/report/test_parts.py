"""Choices behind the page: ticks, numbers, words, which pictures are shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.results import make_results

from trace_jax.report import figures, pictures, tables, words
from trace_jax.report.evaluation import Evaluation
from trace_jax.types import LEVELS

FINITE = st.floats(-1e6, 1e6, allow_nan=False)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("parts")
    return Evaluation.read(make_results(root / "out", root / "data", identities=16))


@given(FINITE, FINITE)
def test_ticks_enclose_and_are_few(one, two):
    low, high = min(one, two), max(one, two)
    marks = figures.ticks(low, high)
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert marks[0] <= low + slack and marks[-1] >= high - slack
    assert 2 <= len(marks) <= 9
    assert all(a < b for a, b in zip(marks, marks[1:], strict=False))


def test_numbers_as_printed():
    assert tables.number("r_at_1", 0.6543) == "65.4"
    assert tables.number("mse", 0.12345) == "0.123"
    assert tables.signed("r_at_1", -0.148) == "−14.8"
    assert tables.signed("r_at_1", -0.0001) == "0.0"
    assert tables.signed("mse", -0.434, relative=True) == "−43.4%"
    assert tables.signed("cosine", 0.138) == "+0.138"
    assert tables.interval("r_at_1", {"value": 1.0, "low": 1.0, "high": 1.0}) == ""
    assert tables.interval("r_at_1", {"value": 0.5, "low": 0.4, "high": 0.6}) == "40.0–60.0"
    assert tables.p_value(0.0001) == "p<0.001"


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.01, 0.1, "up"),
        (-0.1, -0.01, "down"),
        (-0.1, 0.1, "no clear difference"),
        (0.0, 0.1, "no clear difference"),
        (None, None, "too few objects to say more"),
    ],
)
def test_an_interval_decides_the_words(low, high, said):
    assert words.verdict(low, high, "up", "down") == said


def test_oracle_and_ceiling_never_win(results):
    table = tables.severity_table(results, "retrieval", "r_at_1")
    assert table is not None
    for line in table.lines:
        if line.kind in ("oracle", "pristine"):
            assert not any(cell.best for cell in line.cells)
    assert all(any(line.cells[i].best for line in table.lines) for i in range(len(table.head) - 1))


def test_contact_sheet_takes_one_of_a_type_first(results):
    album = pictures.Album(results)
    sheet = pictures.contact_sheet(results, album, count=4)
    assert sorted(t.title for t in sheet) == sorted(
        {pictures.plain(r["object_type"]) for r in results.records}
    )
    assert [len(t.pictures) for t in sheet] == [6] * 4 and album.missing == 0
    assert len(pictures.contact_sheet(results, album, count=100)) == 16
    assert len(pictures.contact_sheet(results, album, count=1)) == 1


def test_changes_count_and_show_both_ways(results):
    frm = next(c for c in results.conditions if c.name == "frm")
    found = pictures.changes(results, pictures.Album(results), frm, count=3)
    rank = {(r["condition"], r["path"]): r["rank"] for r in results.records}
    damaged = [p for c, p in rank if c == "base" and "pristine" not in p]
    right = [p for p in damaged if rank["base", p] > 0 and rank["frm", p] == 0]
    assert found.right == len(right) > 0 and found.wrong == 0
    assert len(found.became_right) == min(3, len(right))
    assert sum(pair[0] for pair in found.by_level.values()) == found.right
    assert list(found.by_level) == list(LEVELS)
    first = found.became_right[0].pictures
    assert [p.caption for p in first] == ["query", "Base", "FRM", "truth"]
    assert [p.mark for p in first] == ["", "wrong", "right", ""]
    assert first[2].uri == first[3].uri != ""


def test_long_logs_stay_small():
    rows = [{"step": s, "kind": "train", "loss": 1.0 / (s + 1)} for s in range(50_000)]
    (chart,) = figures.training_charts(rows)
    assert len(chart) < 20_000
    assert figures.training_names(rows) == [("training", 1)]
    assert figures.training_charts([]) == []


def test_custom_frms_get_styles_of_their_own(results):
    taken = [figures.style_of(results, c) for c in results.conditions]
    assert len(set(taken)) == len(taken)
