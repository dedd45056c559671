"""From records to rows: pooling, pairing, groups, what is missing."""

import numpy as np
import pytest

from trace_jax import tasks
from trace_jax.errors import FaultsError, UserError
from trace_jax.tasks import records as record_table
from trace_jax.tasks.records import Record
from trace_jax.types import LEVELS

SCOPE = tasks.Scope("toy", "test", "split", "host", "tap", pristine_view=1, resamples=200)


def record(condition, identity, severity, *, view=0, rank=None, mse=None, tokens=4, group="hazard"):
    path = f"images/{identity}_{severity}_{view}.png"
    return Record(
        condition=condition,
        path=path,
        shown=path,
        identity=identity,
        object_type="lamp",
        group=group,
        severity=severity,
        view=view,
        draw=0,
        tokens=None if mse is None else tokens,
        mse=mse,
        cosine=None if mse is None else 1.0 - mse,
        rank=rank,
        similarity=None if rank is None else 0.5,
        nearest=None if rank is None else ((identity, path, 0.5),),
    )


def row(rows, **wanted):
    found = [r for r in rows if all(getattr(r, k) == v for k, v in wanted.items())]
    assert len(found) == 1, found
    return found[0]


@pytest.fixture
def world():
    rows = []
    for number in range(10):
        for level, severity in enumerate(LEVELS):
            # base finds the first 10 - 2 x level identities, frm one more at each level but L0.
            base = 0 if number < 10 - 2 * level else 3
            frm = 0 if number < 10 - 2 * level + (level > 0) else 7
            group = "hazard" if number < 4 else "everyday"
            rows.append(
                record("base", f"i{number}", severity, rank=base, mse=0.5 * level, group=group)
            )
            rows.append(
                record("frm", f"i{number}", severity, rank=frm, mse=0.25 * level, group=group)
            )
        for condition in ("base", "frm"):
            rows.append(record(condition, f"i{number}", "pristine", rank=9, mse=0.0))
            rows.append(record(condition, f"i{number}", "pristine", view=1, rank=0))
    return rows


def test_retrieval_rows(world):
    rows = tasks.TASKS["retrieval"].score(world, SCOPE)
    r1 = [row(rows, condition="base", severity=s, metric="r_at_1").value for s in (*LEVELS, "all")]
    assert r1 == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.6])
    r5 = row(rows, condition="base", severity="L4", metric="r_at_5")
    assert (r5.value, r5.low, r5.high, r5.n) == (1.0, 1.0, 1.0, 10)
    pooled = row(rows, condition="frm", severity="all", metric="r_at_1_gain")
    assert pooled.value == pytest.approx(4 / 50) and pooled.n == 50
    assert pooled.low <= pooled.value <= pooled.high
    # Pristine queries are the second view; the reference view, rank 9 here, is left out.
    assert row(rows, condition="frm", severity="pristine", metric="r_at_1").value == 1.0
    assert {r.gallery for r in rows} == {"split"}
    assert not [r for r in rows if r.condition == "base" and "gain" in r.metric]
    assert not [r for r in rows if r.metric == "r_at_1_gain_over_ridge"]


def test_reference_view_queries_where_there_is_no_second_one(world):
    scope = tasks.Scope("toy", "test", "split", "host", "tap", pristine_view=0, resamples=50)
    rows = tasks.TASKS["retrieval"].score(world, scope)
    assert row(rows, condition="frm", severity="pristine", metric="r_at_1").value == 0.0


def test_feature_rows_weigh_tokens():
    rows = tasks.TASKS["feature_recovery"].score(
        [
            record("base", "a", "L0", mse=1.0, tokens=1),
            record("base", "b", "L0", mse=0.0, tokens=3),
        ],
        SCOPE,
    )
    assert row(rows, severity="L0", metric="mse").value == 0.25
    assert row(rows, severity="all", metric="cosine").value == 0.75
    assert {r.gallery for r in rows} == {""}
    assert {r.severity for r in rows} == {"L0", "all"}  # missing levels give no rows


def test_groups(world):
    task = tasks.TASKS["retrieval"]
    hazard = row(
        task.score(world, SCOPE, "hazard"), condition="base", severity="L4", metric="r_at_1"
    )
    everyday = row(
        task.score(world, SCOPE, "everyday"), condition="base", severity="L4", metric="r_at_1"
    )
    assert (hazard.value, hazard.n, hazard.group) == (0.5, 4, "hazard")
    assert (everyday.value, everyday.n, everyday.group) == (0.0, 6, "everyday")


def test_only_shared_queries_are_compared(world):
    some = [r for r in world if not (r.condition == "frm" and r.identity in ("i0", "i1"))]
    rows = tasks.TASKS["retrieval"].score(some, SCOPE)
    assert row(rows, condition="frm", severity="L1", metric="r_at_1_gain").n == 8
    assert row(rows, condition="frm", severity="L1", metric="r_at_1").n == 8


def test_record_order_changes_nothing(world):
    task = tasks.TASKS["retrieval"]
    order = np.random.default_rng(0).permutation(len(world))
    moved = sorted(world, key=lambda r: r.condition != "base")
    moved = [r for r in (world[i] for i in order) if r.condition == "base"] + [
        r for r in moved if r.condition != "base"
    ]
    assert task.score(world, SCOPE) == task.score(moved, SCOPE)


def test_one_identity_has_values_without_intervals():
    rows = tasks.TASKS["retrieval"].score([record("base", "a", "L0", rank=0)], SCOPE)
    one = row(rows, severity="L0", metric="r_at_1")
    assert (one.value, one.low, one.high, one.n) == (1.0, None, None, 1)


def test_comparisons(world):
    found = tasks.TASKS["feature_recovery"].compare(world, SCOPE)
    mse = next(c for c in found if c.metric == "mse" and c.severity == "all")
    assert (mse.condition, mse.against, mse.better) == ("frm", "base", True)
    assert mse.relative == pytest.approx(-0.5) and mse.relative_high == pytest.approx(-0.5)
    assert mse.p == pytest.approx(2 / 2**10)  # all ten identities improve
    level0 = next(c for c in found if c.metric == "mse" and c.severity == "L0")
    assert level0.relative is None and level0.p == 1.0 and not level0.better
    retrieval = tasks.TASKS["retrieval"].compare(world, SCOPE)
    gain = next(c for c in retrieval if c.metric == "r_at_1" and c.severity == "all")
    assert gain.difference == pytest.approx(0.08) and gain.n == 50 and gain.identities == 10


def test_records_round_trip_exactly(tmp_path, world):
    world[0] = record("base", "i0", "L0", rank=0, mse=1 / 3)
    record_table.write(tmp_path / "records.jsonl", world)
    assert record_table.read(tmp_path / "records.jsonl") == world


def test_bad_records_are_all_named(tmp_path):
    path = tmp_path / "records.jsonl"
    with pytest.raises(UserError, match="without --rescore"):
        record_table.read(path)
    good = record("base", "a", "L0", rank=0)
    record_table.write(path, [good, good])
    with open(path, "a") as stream:
        stream.write('{"condition": "base"\n{"condition": "base"}\n')
    with pytest.raises(FaultsError) as caught:
        record_table.read(path)
    assert [fault.split(":")[1] for fault in caught.value.faults] == ["2", "3", "4"]


def test_measures_fill_record_fields():
    generator = np.random.default_rng(0)
    tokens = generator.normal(size=(3, 4, 5)).astype(np.float32)
    same = tasks.TASKS["feature_recovery"].measure(tokens, tokens)
    assert same["mse"] == [0.0] * 3 and same["tokens"] == [4] * 3
    pooled = tokens.mean(axis=1)
    names = [("a", "a.png"), ("b", "b.png"), ("c", "c.png")]
    found = tasks.TASKS["retrieval"].measure(pooled, pooled, np.arange(3), names)
    assert found["rank"] == [0, 0, 0]
    assert [n[0][:2] for n in found["nearest"]] == names
    fields = {f for task in (same, found) for f in task}
    assert fields <= set(Record.__dataclass_fields__)
