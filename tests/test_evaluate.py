"""Evaluation end to end on a tiny host: conditions, controls, resuming, rescoring, refusals."""

import dataclasses
import json
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest
from support import tiny_host as tiny

from trace_jax import frm, report, tasks
from trace_jax.data import manifest
from trace_jax.data.feature_cache import FeatureCache
from trace_jax.errors import FaultsError, UserError
from trace_jax.frm import FRMConfig
from trace_jax.runs import conditions, controls, evaluate, queries, scoring
from trace_jax.types import LEVELS

KEYS = {
    *("task", "dataset", "split", "gallery", "host", "tap", "condition", "severity", "metric"),
    *("value", "low", "high", "n"),
}


def make_frm(folder, source, *, condition="frm", depth=1, seed=0, data_hash=""):
    config = FRMConfig(dim=tiny.DIM, depth=depth, num_heads=2)
    params = frm.init(jax.random.key(seed), config)
    description = frm.Description(
        config=config,
        source=source,
        condition=condition,
        dataset={"name": "tiny_data", "version": "1.0.0", "hash": data_hash},
        training={"data": {"pristine_fraction": 0.3}, "loss": {"name": "mse_cos"}},
        step=7,
    )
    frm.save(folder, params, description)
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("evaluate")
    tiny.make_data(root / "data", identities=20)
    tiny.make_cache(root / "data", root / "cache")
    cache = FeatureCache.open(root / "cache")
    make_frm(root / "frm", cache.source, data_hash=cache.manifest.dataset_hash)
    make_frm(root / "plus", cache.source, condition="frm_plus", seed=1, data_hash="older")
    return root, cache


def config(root, out, **changes):
    values = {
        "frm": (str(root / "frm"), str(root / "plus")),
        "data": root / "data",
        "cache": root / "cache",
        "out": out,
        "batch_size": 8,
        "resamples": 100,
        "command": "bin/eval",
    }
    return evaluate.EvaluateConfig(**(values | changes))


def no_host(*_args, **_kwargs):
    raise AssertionError("features are cached: no host is needed")


def results(folder):
    return json.loads((folder / "results.json").read_text())


def value(raw, **wanted):
    found = [r for r in raw["rows"] if all(r[k] == v for k, v in wanted.items())]
    assert len(found) == 1, found
    return found[0]


def test_from_cache_to_page(world, tmp_path):
    root, _ = world
    out = evaluate.run(config(root, tmp_path / "out"), load_host=no_host)
    raw = results(out)
    assert raw["schema"] == 1
    assert {frozenset(row) for row in raw["rows"]} == {frozenset(KEYS)}
    assert {frozenset(row) for row in raw["groups"]} == {frozenset(KEYS | {"group"})}
    named = list(dict.fromkeys(row["condition"] for row in raw["rows"]))
    assert named == [
        *("base", "frm", "frm_plus", "mean_shift", "mean_shift_oracle", "ridge", "pristine")
    ]
    assert {r["severity"] for r in raw["rows"]} == {*LEVELS, "all", "pristine"}
    assert {r["metric"] for r in raw["rows"]} == {
        *("mse", "cosine", "r_at_1", "r_at_5", "r_at_1_gain"),
        *("r_at_1_gain_over_ridge", "r_at_1_gain_over_mean_shift"),
    }
    # Pristine reference against itself; a second view asks the gallery.
    exact = value(raw, condition="pristine", severity="all", metric="mse")
    assert (exact["value"], exact["n"]) == (0.0, 20)
    harm = value(raw, condition="base", severity="pristine", metric="mse")
    assert (harm["value"], harm["n"]) == (0.0, 4)
    assert raw["meta"]["pristine_view"] == 1
    assert raw["meta"]["queries"] == {**dict.fromkeys(LEVELS, 4), "pristine": 4}
    # The FRMs are near identity at the start, the oracle leaves pristine images alone.
    base = value(raw, condition="base", severity="all", metric="mse")["value"]
    near = value(raw, condition="frm", severity="all", metric="mse")["value"]
    assert near == pytest.approx(base, rel=0.1) and near != base
    oracle = value(raw, condition="mean_shift_oracle", severity="pristine", metric="mse")
    assert oracle["value"] == 0.0
    assert "30% pristine pairs" in next(
        c["about"] for c in raw["meta"]["conditions"] if c["name"] == "frm_plus"
    )
    assert any("frm_plus and the controls" in note for note in raw["meta"]["notes"])
    page = report.write(out)
    text = page.read_text()
    assert "FRM plus" in text and "data:image/webp" in text
    assert "| Condition |" in (out / "results.md").read_text()
    assert "frm_plus" in scoring.summary(out)


def test_numbers_agree_with_a_plain_computation(world, tmp_path):
    root, cache = world
    raw = results(evaluate.run(config(root, tmp_path, frm=("none",)), load_host=no_host))
    rows = [i for i, r in enumerate(cache.rows) if r.split == "test" and r.severity == "L3"]
    reference = {
        r.identity: i
        for i, r in enumerate(cache.rows)
        if r.split == "test" and r.severity == "pristine" and r.view == 0
    }
    tokens = cache.tokens(range(len(cache)), "float32").astype(np.float64)
    errors = [np.mean((tokens[i] - tokens[reference[cache.rows[i].identity]]) ** 2) for i in rows]
    found = value(raw, condition="base", severity="L3", metric="mse")
    assert found["value"] == pytest.approx(np.mean(errors))
    assert found["n"] == len(rows)
    pooled = tokens.mean(axis=1)
    pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
    gallery = list(reference.values())
    right = [
        gallery[int(np.argmax(pooled[gallery] @ pooled[i]))] == reference[cache.rows[i].identity]
        for i in rows
    ]
    assert value(raw, condition="base", severity="L3", metric="r_at_1")["value"] == np.mean(right)


def test_batch_size_changes_nothing_that_matters(world, tmp_path):
    root, _ = world
    one = results(evaluate.run(config(root, tmp_path / "a", batch_size=3), load_host=no_host))
    two = results(evaluate.run(config(root, tmp_path / "b", batch_size=64), load_host=no_host))
    for left, right in zip(one["rows"], two["rows"], strict=True):
        assert left["value"] == pytest.approx(right["value"], abs=1e-5)


def test_what_is_measured_is_kept_and_what_changed_is_measured(world, tmp_path, monkeypatch):
    root, cache = world
    first = evaluate.run(config(root, tmp_path), load_host=no_host)
    before = results(first)["rows"]
    measured = []
    inner = queries.measure
    monkeypatch.setattr(
        evaluate.queries, "measure", lambda *a: measured.append(a[2].name) or inner(*a)
    )
    evaluate.run(config(root, tmp_path), load_host=no_host)
    assert measured == []
    assert results(first)["rows"] == before
    make_frm(tmp_path / "other", cache.source, seed=5)
    evaluate.run(config(root, tmp_path, frm=(str(tmp_path / "other"),)), load_host=no_host)
    assert measured == ["frm"]
    measured.clear()
    evaluate.run(config(root, tmp_path, gallery="all"), load_host=no_host)
    assert len(measured) == 6


def test_a_run_that_stops_goes_on(world, tmp_path, monkeypatch):
    root, _ = world
    whole = results(evaluate.run(config(root, tmp_path / "whole"), load_host=no_host))
    inner = queries.measure

    def stops(cache, chosen, condition, *rest):
        if condition.name == "mean_shift":
            raise KeyboardInterrupt
        return inner(cache, chosen, condition, *rest)

    monkeypatch.setattr(evaluate.queries, "measure", stops)
    with pytest.raises(KeyboardInterrupt):
        evaluate.run(config(root, tmp_path / "part"), load_host=no_host)
    with pytest.raises(UserError, match="not finished"):
        scoring.score(tmp_path / "part")
    measured = []
    monkeypatch.setattr(
        evaluate.queries, "measure", lambda *a: measured.append(a[2].name) or inner(*a)
    )
    part = results(evaluate.run(config(root, tmp_path / "part"), load_host=no_host))
    assert measured == ["mean_shift", "mean_shift_oracle", "ridge"]
    assert part["rows"] == whole["rows"] and part["groups"] == whole["groups"]


def test_records_are_whole_before_scoring_and_rescore_alone(world, tmp_path, monkeypatch):
    root, _ = world

    def fails(*_args, **_kwargs):
        raise RuntimeError("scoring")

    with monkeypatch.context() as patch:
        patch.setattr(scoring, "score", fails)
        with pytest.raises(RuntimeError):
            evaluate.run(config(root, tmp_path / "out"), load_host=no_host)
    moved = tmp_path / "moved"
    (tmp_path / "out").rename(moved)
    scoring.score(moved, task_names=("retrieval",), resamples=50)
    raw = results(moved)
    assert {r["task"] for r in raw["rows"]} == {"retrieval"}
    assert raw["meta"]["statistics"]["resamples"] == 50
    lines = [json.loads(line) for line in (moved / "records.jsonl").read_text().splitlines()]
    assert len(lines) == 7 * 4 * 7  # conditions x identities x (5 levels + 2 pristine views)
    assert set(lines[0]) == {f.name for f in dataclasses.fields(tasks.Record)}


def test_gallery_all_and_limit(world, tmp_path):
    root, cache = world
    chosen = queries.select(cache, "test", "all")
    assert len(chosen.gallery) == 20
    few = queries.select(cache, "test", "split", limit=2)
    assert (few.identities, len(few.gallery)) == (2, 4)
    assert any("Only 2 of 4" in note for note in few.notes)


def test_missing_parts_are_noted(tmp_path):
    data = tiny.make_data(tmp_path / "data", identities=10, second_view=False)
    keep = [r for r in data.examples if r.severity != "L2"]
    lost = next(r for r in keep if r.identity == "mug_009" and r.severity == "pristine")
    data.path(lost).write_bytes(b"not an image")
    manifest.write(tmp_path / "data", data.info, keep)
    tiny.make_cache(tmp_path / "data", tmp_path / "cache")
    chosen = queries.select(FeatureCache.open(tmp_path / "cache"), "test", "split")
    assert chosen.pristine_view == 0 and chosen.identities == 1
    text = " ".join(chosen.notes)
    assert "No images at L2" in text and "4 images of 1 identities" in text
    assert "no second pristine view" in text and "1 images of the data set" in text
    settings = evaluate.EvaluateConfig(
        frm=("none",),
        host="tiny",
        data=tmp_path / "data",
        cache=tmp_path / "cache",
        out=tmp_path / "out",
    )
    raw = results(evaluate.run(settings, load_host=no_host))
    assert "L2" not in {r["severity"] for r in raw["rows"]}
    assert value(raw, condition="base", severity="all", metric="r_at_1")["low"] is None
    report.write(tmp_path / "out")


def test_without_training_pairs_there_are_no_controls_and_a_note(world, tmp_path, capsys):
    root, _ = world
    tiny.make_cache(root / "data", tmp_path / "cache", splits=("test",))
    settings = config(root, tmp_path / "out", cache=tmp_path / "cache", frm=(str(root / "frm"),))
    raw = results(evaluate.run(settings, load_host=no_host))
    assert {r["condition"] for r in raw["rows"]} == {"base", "frm", "pristine"}
    assert "no controls" in capsys.readouterr().out
    assert any("no controls" in note for note in raw["meta"]["notes"])
    with pytest.raises(UserError, match="no images of split 'val'"):
        evaluate.run(dataclasses.replace(settings, split="val"), load_host=no_host)


def test_controls_keep_and_refuse(world, tmp_path):
    _, cache = world
    fitted = controls.fit(cache)
    controls.save(tmp_path, fitted)
    again = controls.load(tmp_path, cache.source)
    assert again.sha256 == fitted.sha256 and again.pairs == 60
    with pytest.raises(FaultsError, match="weights_hash"):
        controls.load(tmp_path, dataclasses.replace(cache.source, weights_hash="else"))
    (tmp_path / "controls.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="Fit anew"):
        controls.load(tmp_path, cache.source)


def test_cache_is_built_for_the_embedded_data_only(world, tmp_path, monkeypatch, capsys):
    root, _ = world
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluate.cache_run, "EMBEDDED_DATA", root / "data")
    with pytest.raises(UserError, match="bin/cache_features --host=tiny --data="):
        evaluate.run(
            evaluate.EvaluateConfig(data=root / "data", host="tiny", frm=("none",)),
            load_host=no_host,
        )
    settings = evaluate.EvaluateConfig(host="tiny", frm=("none",), resamples=50)
    out = evaluate.run(settings, load_host=lambda *_a, **_k: tiny.TinyHost())
    assert out == Path("runs/eval/tiny/last_hidden_state/tiny_data/test")
    printed = capsys.readouterr().out
    assert "caching them: bin/cache_features" in printed and "features: runs/cache/tiny" in printed


def test_default_frm_is_the_newest_that_fits(world, tmp_path, monkeypatch):
    root, cache = world
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(conditions, "SHIPPED", tmp_path / "shipped")
    with pytest.raises(UserError, match="no trained FRM fits"):
        conditions.frm_folders((), cache.source)
    make_frm(tmp_path / "shipped/tiny/frm", cache.source)
    make_frm(tmp_path / "shipped/tiny/frm_plus", cache.source, condition="frm_plus")
    make_frm(Path("runs/train/a/best"), cache.source)
    stale = dataclasses.replace(cache.source, weights_hash="older")
    make_frm(Path("runs/train/b/best"), stale, condition="frm")
    assert conditions.frm_folders((), cache.source) == [
        ("frm", Path("runs/train/a/best")),
        ("frm_plus", tmp_path / "shipped/tiny/frm_plus"),
    ]
    assert conditions.newest_host("other") == "tiny"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("FRM", "FRM"), "two FRMs are called 'frm'"),
        (("ridge=FRM",), "cannot name an FRM"),
        (("nowhere",), "not found"),
    ],
)
def test_frm_refusals(world, given, message):
    root, cache = world
    named = tuple(text.replace("FRM", str(root / "frm")) for text in given)
    with pytest.raises(UserError, match=message):
        conditions.frm_folders(named, cache.source)


def test_an_frm_of_another_source_is_refused(world, tmp_path):
    root, cache = world
    make_frm(tmp_path / "frm", dataclasses.replace(cache.source, weights_hash="else"))
    with pytest.raises(FaultsError, match="weights_hash: trained on 'else'"):
        evaluate.run(
            config(root, tmp_path / "out", frm=(str(tmp_path / "frm"),)), load_host=no_host
        )


def test_features_that_are_not_finite_are_named(world, tmp_path):
    root, cache = world
    loaded = frm.load(root / "frm")
    broken = jax.tree.map(lambda a: a * np.float32(1e38), loaded.params)
    frm.save(tmp_path / "frm", broken, loaded.description)
    with np.errstate(all="ignore"), pytest.raises(UserError, match="frm: features of images/"):
        evaluate.run(
            config(root, tmp_path / "out", frm=(str(tmp_path / "frm"),)), load_host=no_host
        )


@pytest.mark.parametrize(
    "changes", [{"tasks": ("cooking",)}, {"limit": -1}, {"split": "rest"}, {"gallery": "none"}]
)
def test_flag_refusals(world, tmp_path, changes):
    with pytest.raises(UserError):
        evaluate.run(config(world[0], tmp_path, **changes), load_host=no_host)


def test_masked_features_and_stages(tmp_path):
    tiny.make_data(tmp_path / "data", identities=10)
    host = tiny.TinyHost(lead=(2,), masked=True)
    tiny.make_cache(tmp_path / "data", tmp_path / "cache", host, max_tokens=tiny.TOKENS + 2)
    cache = FeatureCache.open(tmp_path / "cache")
    make_frm(tmp_path / "frm", cache.source)
    out = evaluate.run(
        config(tmp_path, tmp_path / "out", frm=(str(tmp_path / "frm"),)), load_host=no_host
    )
    raw = results(out)
    assert {r["condition"] for r in raw["rows"]} >= {"base", "frm", "ridge", "mean_shift"}


def test_command_line(world, tmp_path):
    root, _ = world
    out = evaluate.run(config(root, tmp_path / "out", frm=("none",)), load_host=no_host)
    command = Path(__file__).parent.parent / "bin" / "eval"
    done = subprocess.run(
        [command, f"--rescore={out}", "--task=retrieval", "--resamples=50"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(out / "report.html")
    assert {r["task"] for r in results(out)["rows"]} == {"retrieval"}
    bad = subprocess.run(
        [command, "--frm=nowhere", f"--data={root / 'data'}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert bad.returncode == 2
    assert "nowhere" in bad.stderr and "Traceback" not in bad.stderr
