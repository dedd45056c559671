"""Caching features: what is stored, what is refused, what a bad picture costs."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from PIL import Image
from support.tiny_host import DIM, TOKENS, TinyHost, make_cache, make_data, snapshot

from trace_jax import images
from trace_jax.data import cache_plan, feature_cache, manifest
from trace_jax.data.feature_cache import FeatureCache
from trace_jax.data.pooling import mean_tokens
from trace_jax.errors import FaultsError, UserError
from trace_jax.runs import cache
from trace_jax.types import FeatureSource


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))  # 32 rows


def reference(data, host, examples=None):
    """Features one picture at a time, by the host's own verb."""
    out = [
        host.tap(host.preprocess([images.open_rgb(data.path(example))]))
        for example in examples or data.examples
    ]
    return np.concatenate([np.asarray(f.tokens) for f in out])


def test_float32_values_are_the_taps(data, tmp_path):
    result = make_cache(data.folder, tmp_path, dtype="float32")
    cached = FeatureCache.open(tmp_path)
    assert (result.rows, result.failures, result.compiles, result.status) == (32, (), 1, 0)
    assert cached.rows == data.examples
    # Order of the rows, and each row alone (batch of 1) against a batch of 4.
    np.testing.assert_allclose(
        cached.tokens(range(32)), reference(data, TinyHost()), rtol=0, atol=1e-6
    )


def test_bfloat16_is_the_rounded_value(data, tmp_path):
    make_cache(data.folder, tmp_path / "a", dtype="float32")
    make_cache(data.folder, tmp_path / "b")
    exact, stored = FeatureCache.open(tmp_path / "a"), FeatureCache.open(tmp_path / "b")
    tokens = stored.tokens([3, 1, 3])
    assert tokens.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(tokens, exact.tokens([3, 1, 3]).astype(ml_dtypes.bfloat16))
    wide = stored.tokens([3, 1, 3], "float32")
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(wide, tokens.astype(np.float32))
    assert stored.nbytes * 2 == exact.nbytes


def test_batch_size_changes_nothing_but_rounding(data, tmp_path):
    for size in (1, 8):
        make_cache(data.folder, tmp_path / str(size), dtype="float32", batch_size=size)
    one, eight = (FeatureCache.open(tmp_path / str(size)).tokens(range(32)) for size in (1, 8))
    np.testing.assert_allclose(one, eight, rtol=0, atol=1e-6)


def test_last_batch_is_padded_to_one_shape(data, tmp_path):
    result = make_cache(data.folder, tmp_path, batch_size=7, limit=30)  # 4 batches and 2 rows
    assert (result.rows, result.compiles) == (30, 1)
    assert FeatureCache.open(tmp_path).tokens([29]).any()


def test_manifest_says_what_was_done(data, tmp_path):
    make_cache(data.folder, tmp_path)
    facts = FeatureCache.open(tmp_path).manifest
    assert facts.source == TinyHost().spec.source
    assert facts.shape == (TOKENS, DIM) and facts.dtype == "bfloat16"
    assert facts.preprocessing == {"size": [16, 16], "mean": 0.5}
    assert (facts.dataset_name, facts.dataset_hash) == ("tiny_data", data.hash)
    assert facts.code_version == cache.code_version()
    raw = json.loads((tmp_path / "manifest.json").read_text())
    keys = {"identity", "severity", "split", "path", "view", "draw", "slot"}
    assert all(keys <= set(entry) for entry in raw["index"])


def test_splits_and_limit(data, tmp_path):
    make_cache(data.folder, tmp_path / "a", splits=("test", "val"))
    rows = FeatureCache.open(tmp_path / "a").rows
    assert rows == tuple(e for e in data.examples if e.split in ("val", "test"))
    make_cache(data.folder, tmp_path / "b", limit=5)
    assert FeatureCache.open(tmp_path / "b").rows == data.examples[:5]


def test_pooled_and_index(data, tmp_path):
    make_cache(data.folder, tmp_path)
    cached = FeatureCache.open(tmp_path)
    wide = cached.tokens(range(32), "float32")
    np.testing.assert_allclose(cached.pooled(chunk=5), wide.mean(1), atol=1e-6)
    np.testing.assert_array_equal(cached.pooled([9]), cached.pooled()[9:10])
    assert cached.index_of[data.examples[7].path] == 7
    assert cached.tokens([]).shape == (0, TOKENS, DIM)
    with pytest.raises(IndexError):
        cached.tokens([32])


def test_leading_axes(data, tmp_path):
    make_cache(data.folder, tmp_path, TinyHost(lead=(4,)), dtype="float32")
    cached = FeatureCache.open(tmp_path)
    assert cached.tokens([0, 5]).shape == (2, 4, TOKENS, DIM)
    wanted = reference(data, TinyHost(lead=(4,)))
    np.testing.assert_allclose(cached.tokens(range(32)), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("lead", [(), (2,)])
def test_varying_token_counts(data, tmp_path, lead):
    host = TinyHost(lead=lead, masked=True)
    with pytest.raises(UserError, match="--max_tokens"):
        make_cache(data.folder, tmp_path, host)
    make_cache(data.folder, tmp_path, host, max_tokens=TOKENS + 3, dtype="float32")
    cached = FeatureCache.open(tmp_path)
    tokens, mask = cached.tokens(range(32)), cached.mask(range(32))
    assert tokens.shape == (32, *lead, TOKENS + 3, DIM) and mask.shape == tokens.shape[:-1]
    counts = mask.sum(-1)
    assert len(np.unique(counts)) > 1 and not mask[..., TOKENS:].any()
    assert not tokens[~mask].any()
    wanted = reference(data, host)
    np.testing.assert_allclose(tokens[mask], wanted[mask[..., :TOKENS]], rtol=0, atol=1e-6)
    np.testing.assert_allclose(cached.pooled(), mean_tokens(tokens, mask), atol=1e-6)
    with pytest.raises(UserError, match="was planned for 3"):
        make_cache(data.folder, tmp_path / "small", host, max_tokens=3)


def test_pooling_ignores_what_is_masked():
    tokens = np.array([[[1.0, 3.0], [3.0, 5.0], [np.nan, 7.0]]], np.float32)
    np.testing.assert_array_equal(mean_tokens(tokens, np.array([[True, True, False]])), [[2, 4]])
    with pytest.raises(UserError, match="no real token"):
        mean_tokens(tokens, np.zeros((1, 3), bool))


# ---- refusals


def test_a_reader_that_does_not_match_refuses(data, tmp_path):
    make_cache(data.folder, tmp_path)
    source = TinyHost().spec.source
    FeatureCache.open(tmp_path, expect=source, data_hash=data.hash)
    for name, other in [("host", "clip"), ("tap", "pre_merger"), ("weights_hash", "w1")]:
        with pytest.raises(FaultsError) as caught:
            FeatureCache.open(tmp_path, expect=dataclasses.replace(source, **{name: other}))
        assert len(caught.value.faults) == 1 and caught.value.faults[0].startswith(f"{name}:")
    with pytest.raises(FaultsError) as caught:
        FeatureCache.open(tmp_path, expect=FeatureSource("a", "b", "c"), data_hash="d")
    assert len(caught.value.faults) == 4


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tap", {"host": TinyHost(tap="other")}),
        ("weights_hash", {"host": TinyHost(weights="w1")}),
        ("dtype", {"dtype": "float32"}),
        ("compute_dtype", {"compute_dtype": "bfloat16"}),
        ("batch_size", {"batch_size": 8}),
        ("splits", {"splits": ("val", "test")}),
        ("shape", {"host": TinyHost(lead=(2,))}),
    ],
)
def test_another_plan_is_not_mixed_in(data, tmp_path, name, change):
    make_cache(data.folder, tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises(FaultsError, match="must not be mixed") as caught:
        make_cache(data.folder, tmp_path, **change)
    assert any(fault.startswith(f"{name}: ") for fault in caught.value.faults)
    assert snapshot(tmp_path) == before
    make_cache(data.folder, tmp_path, replace=True, **change)
    assert snapshot(tmp_path) != before


def test_other_data_is_not_mixed_in(tmp_path):
    make_data(tmp_path / "one", identities=2)
    make_data(tmp_path / "two", identities=3)
    make_cache(tmp_path / "one", tmp_path / "out")
    with pytest.raises(FaultsError, match="dataset_hash"):
        make_cache(tmp_path / "two", tmp_path / "out")


def test_other_code(data, tmp_path, monkeypatch, capsys):
    make_cache(data.folder, tmp_path, shard_rows=4)
    before = snapshot(tmp_path)
    monkeypatch.setattr(cache, "code_version", lambda: "9.9")
    make_cache(data.folder, tmp_path, shard_rows=4)  # whole: kept, and said
    assert "kept as it is" in capsys.readouterr().out and snapshot(tmp_path) == before
    (tmp_path / "shards" / "00001.tokens").unlink()  # damaged: the rest must not be mixed
    with pytest.raises(UserError, match="made by other code"):
        make_cache(data.folder, tmp_path, shard_rows=4)


def test_a_folder_of_something_else_is_left_alone(data, tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    for replace in (False, True):
        with pytest.raises(UserError, match="is not a feature cache"):
            make_cache(data.folder, tmp_path, replace=replace)
    assert snapshot(tmp_path) == {"precious.txt": b"mine"}


def test_no_room(data, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(UserError, match="needs 0.0 MB but only"):
        make_cache(data.folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_wrong_flags_are_listed_together(data, tmp_path):
    with pytest.raises(FaultsError) as caught:
        make_cache(
            data.folder, tmp_path, splits=("dev",), dtype="int8", batch_size=0, limit=-1, threads=0
        )
    assert len(caught.value.faults) == 5
    with pytest.raises(UserError, match="no rows of split val"):
        make_data(tmp_path / "d", identities=1)
        make_cache(tmp_path / "d", tmp_path / "o", splits=("val",))


def test_open_what_is_no_cache(data, tmp_path):
    with pytest.raises(UserError, match="no feature cache there"):
        FeatureCache.open(tmp_path / "none")
    make_cache(data.folder, tmp_path / "c", shard_rows=8)
    (tmp_path / "c" / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"not finished \(4 of 4 shards\)"):
        FeatureCache.open(tmp_path / "c")


def test_two_runs_at_once(data, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    make_cache(data.folder, tmp_path)
    with open(tmp_path / "writing.lock.0", "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another run is caching there"):
            make_cache(data.folder, tmp_path)
    make_cache(data.folder, tmp_path)


# ---- damage and repair


def test_damaged_shards_are_made_again(data, tmp_path):
    make_cache(data.folder, tmp_path, shard_rows=8)
    before = snapshot(tmp_path)
    shards = tmp_path / "shards"
    flipped = bytearray((shards / "00001.tokens").read_bytes())
    flipped[17] ^= 1
    (shards / "00001.tokens").write_bytes(flipped)
    (shards / "00002.json").write_text("{")
    (shards / "00003.tokens").write_bytes(b"short")
    with pytest.raises(UserError, match=r"00003.tokens: has 5 bytes"):
        FeatureCache.open(tmp_path)
    assert make_cache(data.folder, tmp_path, shard_rows=8).encoded == 24
    assert snapshot(tmp_path) == before
    FeatureCache.open(tmp_path).verify()
    (shards / "00001.tokens").write_bytes(flipped)
    with pytest.raises(FaultsError, match="00001.tokens: checksum differs"):
        FeatureCache.open(tmp_path).verify()


def test_running_again_encodes_nothing(data, tmp_path):
    make_cache(data.folder, tmp_path)
    before = snapshot(tmp_path)
    result = make_cache(data.folder, tmp_path)
    assert (result.encoded, result.compiles, result.rows) == (0, 0, 32)
    assert snapshot(tmp_path) == before


def break_some(data):
    """Breaks five pictures of a folder, each in its way; returns path -> reason."""
    rows = data.examples
    half = data.path(rows[2]).read_bytes()
    data.path(rows[2]).write_bytes(half[: len(half) // 2])
    data.path(rows[3]).write_text("I am text")
    data.path(rows[9]).write_bytes(b"")
    data.path(rows[30]).unlink()
    Image.new("RGB", (300, 2)).save(data.path(rows[31]))  # the host's preprocessing refuses it
    return {
        rows[2].path: "is truncated or damaged",
        rows[3].path: "is not an image of a known format",
        rows[9].path: "is empty (0 bytes)",
        rows[30].path: "cannot be opened (No such file or directory)",
        rows[31].path: "is refused by the host's preprocessing (aspect ratio above 20)",
    }


def test_bad_pictures_are_skipped_and_listed(tmp_path, capsys):
    data = make_data(tmp_path / "data")
    make_cache(data.folder, tmp_path / "good", shard_rows=8)
    originals = snapshot(data.folder)
    broken = break_some(data)
    result = make_cache(data.folder, tmp_path / "out", shard_rows=8)
    assert result.status == 0 and result.rows == 27
    seen = dict(result.failures)
    assert list(seen) == list(broken)
    assert all(seen[path].startswith(reason) for path, reason in broken.items())
    listed = [json.loads(line) for line in (tmp_path / "out/failed.jsonl").read_text().splitlines()]
    assert {entry["path"]: entry["reason"] for entry in listed} == seen
    assert "5 skipped" in capsys.readouterr().out
    # The others: order kept, values bitwise those of a run without bad pictures.
    good, rest = FeatureCache.open(tmp_path / "good"), FeatureCache.open(tmp_path / "out")
    assert [r.path for r in rest.rows] == [e.path for e in data.examples if e.path not in broken]
    where = [good.index_of[row.path] for row in rest.rows]
    np.testing.assert_array_equal(rest.tokens(range(27)), good.tokens(where))
    assert make_cache(data.folder, tmp_path / "out", shard_rows=8, strict=True).status == 3

    # Repaired: without --retry_failed they stay skipped, with it the whole is as if never broken.
    for name, content in originals.items():
        (data.folder / name).write_bytes(content)
    assert make_cache(data.folder, tmp_path / "out", shard_rows=8).encoded == 0
    again = make_cache(data.folder, tmp_path / "out", shard_rows=8, retry_failed=True, strict=True)
    assert (again.status, again.encoded, again.failures) == (0, 24, ())
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "good")


def test_retrying_what_is_still_broken_changes_nothing(tmp_path):
    data = make_data(tmp_path / "data")
    break_some(data)
    make_cache(data.folder, tmp_path / "out", shard_rows=8)
    before = snapshot(tmp_path / "out")
    make_cache(data.folder, tmp_path / "out", shard_rows=8, retry_failed=True)
    assert snapshot(tmp_path / "out") == before


def test_every_picture_broken(tmp_path):
    data = make_data(tmp_path / "data", identities=1, levels=("L0",))
    for example in data.examples:
        data.path(example).write_bytes(b"")
    assert make_cache(data.folder, tmp_path / "out").rows == 0
    assert len(FeatureCache.open(tmp_path / "out")) == 0


def test_pinned_pictures(tmp_path):
    data = make_data(tmp_path / "data", identities=1, levels=("L0",))
    pinned = [dataclasses.replace(e, sha256="0" * 64) for e in data.examples[1:]]
    manifest.write(data.folder, data.info, [data.examples[0], *pinned])
    result = make_cache(data.folder, tmp_path / "out")
    assert [reason for _, reason in result.failures] == [
        "is not the file that the manifest's sha256 pins"
    ]


def test_features_that_are_not_finite(tmp_path):
    data = make_data(tmp_path / "data", identities=2)
    host = TinyHost()
    host.params = {"kernel": host.params["kernel"].at[0, 0].set(np.nan)}
    result = make_cache(data.folder, tmp_path / "out", host)
    assert result.rows == 0
    assert {reason for _, reason in result.failures} == {"gives features that are not finite"}


def test_a_fault_of_the_host_is_not_blamed_on_pictures(data, tmp_path):
    class Broken(TinyHost):
        def preprocess(self, images):
            raise KeyError("no such constant")

    with pytest.raises(KeyError):
        make_cache(data.folder, tmp_path / "out", Broken())


# ---- plan


@pytest.mark.parametrize(
    ("row_bytes", "batch", "rows"),
    [(301_056, 32, 96), (256, 32, 1024), (256, 30, 1020), (10**9, 8, 8), (301_056, 200, 200)],
)
def test_shards_hold_whole_batches(row_bytes, batch, rows):
    assert cache_plan.plan_shard_rows(row_bytes, batch) == rows


def test_default_folder():
    wanted = Path("runs/cache/siglip2/last_hidden_state/nano_trace")
    assert feature_cache.default_folder("siglip2", "last_hidden_state", "nano_trace") == wanted


def test_several_devices(data, tmp_path):
    """Data-parallel over four devices: same rows, same values up to rounding."""
    script = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from support.tiny_host import *\n"
        "import jax; assert len(jax.local_devices()) == 4\n"
        "from trace_jax.errors import UserError\n"
        "r = make_cache(sys.argv[1], sys.argv[2], dtype='float32', batch_size=8)\n"
        "assert r.compiles == 1, r\n"
        "try: make_cache(sys.argv[1], sys.argv[2] + 'x', batch_size=6)\n"
        "except UserError as e: assert 'does not divide over 4 devices' in str(e)\n"
        "else: raise SystemExit('accepted')\n"
    )
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
    }
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", script, str(data.folder), str(tmp_path / "out")],
        cwd=root, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    cached = FeatureCache.open(tmp_path / "out")
    np.testing.assert_allclose(
        cached.tokens(range(32)), reference(data, TinyHost()), rtol=0, atol=1e-6
    )
