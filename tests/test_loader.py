"""Pairs and batches from a cache (trace_jax/data/pairs.py, loader.py)."""

from __future__ import annotations

import collections
import itertools
import threading
import time

import ml_dtypes
import numpy as np
import pytest
from support.tiny_host import DIM, TOKENS, TinyHost, make_cache, make_data

from trace_jax.data import loader
from trace_jax.data.feature_cache import FeatureCache, widen
from trace_jax.errors import UserError
from trace_jax.types import SEVERITIES


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    root = tmp_path_factory.mktemp("loader")
    data = make_data(root / "data", identities=10, draws=2)  # 6 train, 2 val, 2 test
    make_cache(data.folder, root / "cache", shard_rows=20)
    return FeatureCache.open(root / "cache")


@pytest.fixture(scope="module")
def train(cache):
    return loader.pairs(cache, "train")


def threads():
    return [t for t in threading.enumerate() if t.name == "read-ahead"]


def same(one, two):
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])


# ---- pairs


def test_each_degraded_row_with_its_pristine(cache, train):
    assert len(train) == 6 * 5 * 2
    for degraded, pristine, severity, identity in zip(
        train.degraded, train.pristine, train.severity, train.identity, strict=True
    ):
        row, target = cache.rows[degraded], cache.rows[pristine]
        assert row.identity == target.identity == train.identities[identity]
        assert (target.severity, target.view, row.split) == ("pristine", 0, "train")
        assert SEVERITIES[severity] == row.severity != "pristine"


def test_levels_draws_and_identities(cache):
    assert {cache.rows[i].severity for i in loader.pairs(cache, "val", ("L0", "L2")).degraded} == {
        "L0",
        "L2",
    }
    assert {cache.rows[i].draw for i in loader.pairs(cache, "val", draws=(1,)).degraded} == {1}
    first = loader.pairs(cache, "train", identities=2)
    assert first.identities == ("mug_000", "mug_001") and len(first) == 20
    named = loader.pairs(cache, "train", identities={"mug_004", "mug_002"})
    assert named.identities == ("mug_002", "mug_004")
    assert set(named.identity) == {0, 1}


def test_second_views_are_never_the_target(cache):
    pair_set = loader.pairs(cache, "test")
    assert {cache.rows[i].view for i in pair_set.pristine} == {0}
    assert all(cache.rows[i].severity != "pristine" for i in pair_set.degraded)


def test_pristine_pairs(cache, train):
    pair_set = loader.as_pristine(train)
    assert len(pair_set) == 6 and set(pair_set.severity) == {0}
    np.testing.assert_array_equal(pair_set.degraded, pair_set.pristine)
    assert [cache.rows[i].identity for i in pair_set.degraded] == list(train.identities)


def test_an_identity_whose_pristine_failed_has_no_pairs(tmp_path):
    data = make_data(tmp_path / "data", identities=3)
    data.path(data.examples[0]).write_bytes(b"")
    make_cache(data.folder, tmp_path / "cache")
    cache = FeatureCache.open(tmp_path / "cache")
    assert loader.pairs(cache, "train").identities == ("mug_001",)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"split": "dev"}, "unknown split 'dev'"),
        ({"split": "train", "levels": ("L7",)}, "unknown levels"),
        ({"split": "train", "levels": ("pristine",)}, "unknown levels"),
        ({"split": "train", "draws": (9,)}, "no pairs for split 'train'"),
        ({"split": "train", "identities": 7}, "has 6 identities; 7 were asked"),
        ({"split": "train", "identities": 0}, "has 6 identities; 0 were asked"),
        ({"split": "train", "identities": ["mug_009"]}, "no pristine row of identities"),
    ],
)
def test_nothing_to_pair(cache, arguments, wanted):
    with pytest.raises(UserError, match=wanted):
        loader.pairs(cache, **arguments)


# ---- batches


def test_a_batch(cache, train):
    batch = loader.batches(cache, train, batch_size=7, seed=0)[3]
    assert batch["degraded"].shape == batch["pristine"].shape == (7, TOKENS, DIM)
    assert batch["degraded"].dtype == np.float32 and batch["mask"] is None
    assert batch["severity"].dtype == batch["identity"].dtype == np.int32
    for i in range(7):
        name = train.identities[batch["identity"][i]]
        level = SEVERITIES[batch["severity"][i]]
        targets = [r for r, row in enumerate(cache.rows) if row.identity == name]
        own = [r for r in targets if cache.rows[r].severity == level]
        assert any(np.array_equal(batch["degraded"][i], t) for t in cache.tokens(own, "float32"))
        np.testing.assert_array_equal(batch["pristine"][i], cache.tokens(targets[:1], "float32")[0])


def test_pure_function_of_seed_and_step(cache, train):
    options = {"batch_size": 8, "level_balanced": True, "pristine_fraction": 0.25}
    one = loader.batches(cache, train, seed=5, **options)
    two = loader.batches(cache, train, seed=5, **options)
    steps = [9, 0, 1000, 3]
    for step in steps:
        same(one[step], two[step])
    for step, batch in zip(range(4, 9), one.iterate(4, 9), strict=True):
        same(batch, two[step])
    other = loader.batches(cache, train, seed=6, **options)
    assert any((one[s]["identity"] != other[s]["identity"]).any() for s in steps)


def numbers(source, pair_set, steps):
    """(identity, severity, ...) draws as degraded rows are not in a batch: count by both."""
    return collections.Counter(
        (int(i), int(s))
        for step in steps
        for i, s in zip(source[step]["identity"], source[step]["severity"], strict=True)
    )


def test_an_epoch_is_a_permutation(cache, train):
    source = loader.batches(cache, train, batch_size=6, seed=1)  # 60 pairs: 10 steps
    assert source.steps_per_epoch == 10
    for epoch in range(3):
        seen = numbers(source, train, range(10 * epoch, 10 * epoch + 10))
        assert set(seen.values()) == {2}  # two draws of each identity and level
        assert len(seen) == 30
    first, second = ([source[s]["identity"].tolist() for s in range(e, e + 10)] for e in (0, 10))
    assert first != second


def test_neighbouring_seeds_share_no_epoch(cache, train):
    epochs = {
        tuple(
            itertools.chain.from_iterable(
                loader.batches(cache, train, batch_size=6, seed=seed)[s]["identity"].tolist()
                for s in range(10 * epoch, 10 * epoch + 10)
            )
        )
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(epochs) == 9


def test_the_rest_is_dropped(cache, train):
    source = loader.batches(cache, train, batch_size=7, seed=1)  # 60 = 8 * 7 + 4
    assert source.steps_per_epoch == 8
    assert max(numbers(source, train, range(8)).values()) <= 2
    assert sum(numbers(source, train, range(8)).values()) == 56


def test_level_balance(cache):
    rows = loader.pairs(cache, "train")
    keep = (rows.severity == 1) | (rows.identity == 0)  # many L0, few of the others
    skewed = loader.PairSet(
        rows.degraded[keep], rows.pristine[keep], rows.severity[keep], rows.identity[keep],
        rows.identities,
    )  # fmt: skip
    source = loader.batches(cache, skewed, batch_size=10, seed=0, level_balanced=True)
    for step in (0, 1, 77):
        assert collections.Counter(source[step]["severity"].tolist()) == dict.fromkeys(
            range(1, 6), 2
        )
    level0 = collections.Counter(
        int(i)
        for step in range(6)  # 12 rows of L0: one pass
        for i, s in zip(source[step]["identity"], source[step]["severity"], strict=True)
        if s == 1
    )
    assert level0 == dict.fromkeys(range(6), 2)


@pytest.mark.parametrize("balanced", [False, True])
def test_pristine_fraction(cache, train, balanced):
    source = loader.batches(
        cache, train, batch_size=20, seed=0, pristine_fraction=0.3, level_balanced=balanced
    )
    severity = np.concatenate([source[s]["severity"] for s in range(10)])
    assert abs((severity == 0).mean() - 0.3) < 0.01
    batch = source[2]
    at = batch["severity"] == 0
    np.testing.assert_array_equal(batch["degraded"][at], batch["pristine"][at])
    if balanced:
        counts = [(severity == level).mean() for level in range(1, 6)]
        np.testing.assert_allclose(counts, 0.14, atol=0.01)


def test_processes_get_slices_of_the_same_batch(cache, train):
    whole = loader.batches(cache, train, batch_size=6, seed=2)[4]
    parts = [
        loader.batches(cache, train, batch_size=6, seed=2, process=p, processes=3)[4]
        for p in range(3)
    ]
    for name in ("degraded", "pristine", "severity", "identity"):
        np.testing.assert_array_equal(whole[name], np.concatenate([p[name] for p in parts]))


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"batch_size": 61}, "more than the 60 pairs"),
        ({"batch_size": 6, "processes": 4}, "does not divide over 4 processes"),
        ({"batch_size": 6, "pristine_fraction": 1.0}, "pristine_fraction"),
    ],
)
def test_refusals(cache, train, options, wanted):
    with pytest.raises(UserError, match=wanted):
        loader.batches(cache, train, seed=0, **options)


def test_dtypes(cache, train):
    stored = loader.batches(cache, train, batch_size=4, seed=0, dtype=None)[0]
    wide = loader.batches(cache, train, batch_size=4, seed=0)[0]
    assert stored["degraded"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(stored["degraded"].astype(np.float32), wide["degraded"])


def test_widening_is_exact():
    bits = np.arange(2**16, dtype=np.uint16)
    values = bits.view(ml_dtypes.bfloat16)
    wanted = values.astype(np.float32)
    np.testing.assert_array_equal(widen(values, np.dtype("float32")), wanted)
    signs = np.signbit(widen(values, np.dtype("float32")))
    np.testing.assert_array_equal(signs, bits >= 2**15)


def test_masked_batches(tmp_path):
    data = make_data(tmp_path / "data", identities=3)
    make_cache(data.folder, tmp_path / "cache", TinyHost(masked=True), max_tokens=TOKENS)
    cache = FeatureCache.open(tmp_path / "cache")
    pair_set = loader.pairs(cache, "train")
    batch = loader.batches(cache, pair_set, batch_size=4, seed=0)[0]
    assert batch["mask"].shape == (4, TOKENS) and batch["mask"].dtype == bool
    assert not batch["pristine"][~batch["mask"]][batch["degraded"][~batch["mask"]].any(-1)].any()


# ---- reading ahead


def test_threads_end(cache, train):
    source = loader.batches(cache, train, batch_size=6, seed=0)
    assert len(list(source.iterate(0, 5))) == 5
    for batch in source:
        assert batch is not None
        break
    iterator = source.iterate(0)
    next(iterator)
    iterator.close()

    def fails():
        for _ in source.iterate(0, prefetch=1):
            raise RuntimeError("the consumer's own")

    with pytest.raises(RuntimeError, match="own"):
        fails()
    deadline = time.monotonic() + 5
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not threads()


def test_errors_reach_the_consumer(cache, train, monkeypatch):
    source = loader.batches(cache, train, batch_size=6, seed=0)

    def tokens(*_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(cache, "tokens", tokens)
    with pytest.raises(OSError, match="gone"):
        next(source.iterate(0))


def test_the_queue_is_bounded(cache, train, monkeypatch):
    source = loader.batches(cache, train, batch_size=6, seed=0)
    iterator = source.iterate(0, prefetch=2)
    next(iterator)
    reads = []
    original = cache.tokens
    monkeypatch.setattr(cache, "tokens", lambda *a: (reads.append(1), original(*a))[1])
    time.sleep(0.3)
    assert len(reads) <= 2 * 4  # two reads a batch: two ready, one in hand
    iterator.close()


def test_waiting_is_measured(cache, train, monkeypatch):
    source = loader.batches(cache, train, batch_size=6, seed=0)
    original = cache.tokens
    monkeypatch.setattr(cache, "tokens", lambda *a: (time.sleep(0.02), original(*a))[1])
    list(source.iterate(0, 4))
    assert source.wait_seconds > 0.1  # four batches of two reads, nothing to do meanwhile


# ---- in order


def test_ordered(cache):
    rows = [i for i, row in enumerate(cache.rows) if row.split == "test"]
    seen, tokens = [], []
    for batch in loader.ordered(cache, rows, batch_size=5):
        assert batch["tokens"].shape == (5, TOKENS, DIM)
        real = batch["weight"] == 1
        seen += batch["index"][real].tolist()
        tokens.append(batch["tokens"][real])
    assert seen == rows
    np.testing.assert_array_equal(np.concatenate(tokens), cache.tokens(rows, "float32"))
    assert list(loader.ordered(cache, [], batch_size=5)) == []
