"""A tiny vision-language host from cache to scores, through the library bodies of the commands."""

from __future__ import annotations

import dataclasses
import json

import jax
import pytest

import converters
from configs.nano import qwen3_vl_frm, qwen3_vl_taps
from trace_jax import hosts, taxonomy
from trace_jax.data import manifest
from trace_jax.data.manifest import DatasetInfo
from trace_jax.errors import UserError
from trace_jax.runs import ablate, answering, cache, evaluate, train
from trace_jax.runs.ablate import AblationConfig
from trace_jax.tasks import answers
from trace_jax.tasks.generation import GENERATION_TASKS
from trace_jax.train import chat_tokenizer
from trace_jax.types import LEVELS, Example, PartMaterial

pytestmark = pytest.mark.slow

TOWER = {
    "depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 32,
    "num_position_embeddings": 4, "deepstack_visual_indexes": [0], "patch_size": 16,
}  # fmt: skip
TEXT = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16,
    "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "mrope_section": [4, 2, 2],
                        "mrope_interleaved": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Weights on disk, a data folder, a feature cache and a trained FRM."""
    from PIL import Image

    root = tmp_path_factory.mktemp("vlm")
    words = chat_tokenizer.build(["wood, metal", "user\nassistant\n"], [], 300)
    chat_tokenizer.save(words, root / "tokenizer")
    config = {
        "model_type": "qwen3_vl",
        "image_token_id": words.get_vocab()[chat_tokenizer.IMAGE],
        "tie_word_embeddings": True,
        "vision_config": TOWER,
        "text_config": {**TEXT, "vocab_size": words.get_vocab_size()},
    }
    host = hosts.build(
        "qwen3_vl_nano", config, jax.random.key(0), tokenizer=root / "tokenizer",
        preprocessor={"min_pixels": 64 * 64, "max_pixels": 64 * 64},
    )  # fmt: skip
    converters.save_host(host, root / "host")
    known = taxonomy.load()
    rows = []
    for number in range(12):
        kind = known.types[known.object_types[number]]
        split = ("train", "val", "test")[number % 3]
        for place, state in enumerate(("pristine", *LEVELS)):
            path = f"images/{number}_{state}.png"
            (root / "data" / "images").mkdir(parents=True, exist_ok=True)
            colour = (40 * place, 20 * number, 90)
            Image.new("RGB", (48 + number, 64), colour).save(root / "data" / path)
            metrics = {"soot_coverage": 0.4, "structural_integrity": 0.9} if place else {}
            parts = tuple(PartMaterial(p, m[0]) for p, m in kind.parts.items())
            rows.append(
                Example(path, f"thing-{number}", kind.name, "", state, split, parts,
                        kind.functions, metrics=metrics)
            )  # fmt: skip
    manifest.write(root / "data", DatasetInfo("objects", "tiny", "1.0.0", known.name), rows)
    cached = cache.run(
        cache.CacheConfig(
            host="qwen3_vl_nano", weights=str(root / "host"), data=root / "data",
            out=root / "cache", batch_size=8,
        ),
        load_host=converters.load_host,
    )  # fmt: skip
    page = qwen3_vl_frm.get_config()
    page.host.weights = str(root / "host")
    page.data.cache = str(cached.folder)
    page.data.batch_size = page.data.val_batch_size = 8
    page.epochs, page.evals_per_epoch = 1, 1
    trained = train.run(page, load_host=converters.load_host, workdir=root / "train")
    return root, trained.best or trained.last


@pytest.fixture(autouse=True)
def _short_answers(monkeypatch):
    # A random model never stops by itself: a few tokens show all there is to see.
    for name, task in GENERATION_TASKS.items():
        short = dataclasses.replace(task, max_new_tokens=5)
        monkeypatch.setitem(GENERATION_TASKS, name, short)


def config(root, frm, out, **changes):
    values = {
        "frm": (f"frm={frm}",), "data": root / "data", "cache": root / "cache",
        "weights": str(root / "host"), "out": out, "batch_size": 8, "resamples": 20,
    }  # fmt: skip
    return evaluate.EvaluateConfig(**{**values, **changes})


def test_all_tasks_from_cache_to_rows(world, tmp_path):
    root, frm = world
    out = evaluate.run(config(root, frm, tmp_path / "out"), load_host=converters.load_host)
    raw = json.loads((out / "results.json").read_text())
    found = {(r["task"], r["condition"], r["metric"]) for r in raw["rows"]}
    for task, metric in (
        ("retrieval", "r_at_1"), ("feature_recovery", "mse"), ("material", "micro_f1"),
        ("description", "description_score"), ("function", "function_score"),
        ("damage", "accuracy"),
    ):  # fmt: skip
        for condition in ("base", "frm", "pristine"):
            if (task, condition) != ("damage", "pristine"):
                assert (task, condition, metric) in found, (task, condition)
    rows = answers.read(out / "answers.jsonl")
    assert len(rows) == 4 * 6 * 2 * len(GENERATION_TASKS)
    # The gate: FRM is on for what the object was, off for its present damage.
    for row in rows:
        assert row.recovered == (row.condition == "frm" and row.task != "damage")
    by_key = {row.key: row for row in rows}
    for row in rows:
        if row.task == "damage":
            assert row.answer == by_key[row.task, "base", row.path].answer
    assert raw["meta"]["answers"]["tokens_per_second"] > 0


def test_asking_goes_on_after_a_kill_and_can_be_narrowed(world, tmp_path, monkeypatch):
    root, frm = world
    whole = config(root, frm, tmp_path / "a", tasks=("material",), batch_size=4)
    evaluate.run(whole, load_host=converters.load_host)
    broken = config(root, frm, tmp_path / "b", tasks=("material",), batch_size=4)
    inner, calls = answering._Asker._batch, 0

    def dying(self, *args):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return inner(self, *args)

    monkeypatch.setattr(answering._Asker, "_batch", dying)
    with pytest.raises(KeyboardInterrupt):
        evaluate.run(broken, load_host=converters.load_host)
    monkeypatch.setattr(answering._Asker, "_batch", inner)
    path = tmp_path / "b" / "answers.jsonl"
    path.write_bytes(path.read_bytes()[:-7])
    evaluate.run(broken, load_host=converters.load_host)
    one, two = (answers.read(tmp_path / name / "answers.jsonl") for name in ("a", "b"))
    assert sorted(r.key for r in one) == sorted(r.key for r in two)
    assert {r.key: r.answer for r in one} == {r.key: r.answer for r in two}
    narrow = config(
        root, frm, tmp_path / "c", tasks=("material",), conditions=("base",),
        only_ids=("thing-2",),
    )  # fmt: skip
    evaluate.run(narrow, load_host=converters.load_host)
    rows = answers.read(tmp_path / "c" / "answers.jsonl")
    assert {r.identity for r in rows} == {"thing-2"} and {r.condition for r in rows} == {"base"}


def test_table_nine_in_small(world, tmp_path, monkeypatch):
    """Five trainings less two: a recovered stream, both taps; a second call does nothing anew."""
    root, _ = world
    monkeypatch.chdir(tmp_path)
    page = qwen3_vl_taps.get_config()
    assert AblationConfig.read(page).ends["No FRM"]["description/identity_accuracy"] == 32.69
    page.page.epochs, page.page.evals_per_epoch = 1, 1
    page.page.data.batch_size = page.page.data.val_batch_size = 8
    page.page.host.weights = str(root / "host")
    given = {"load_host": converters.load_host, "data": root / "data"}
    table = ablate.run(page, weights=str(root / "host"), **given)
    text = table.read_text(encoding="utf-8")
    for title in ("No FRM", "DeepStack off", "DeepStack on", "FRM pre-merger", "Pristine ceiling"):
        assert title in text
    assert "| 36.54 |" in text and "| 72.90 |" in text
    lines = json.loads((table.parent / "ablation.json").read_text())["rows"]
    assert [line["run"] for line in lines] == ["", "post_merger", "post_merger", "pre_merger", ""]
    # One retrieval for both treatments of the streams: it looks at the tap alone.
    first = "retrieval/r_at_1"
    assert lines[1]["cells"][first] == lines[2]["cells"][first]
    asked = json.loads((table.parent / "eval/post_merger-recovered/results.json").read_text())
    assert asked["meta"]["answers"]["deepstack"] == "recovered"
    stamp = (table.parent / "train/stream_0/best/frm.json").stat().st_mtime_ns
    ablate.run(page, weights=str(root / "host"), **given)
    assert (table.parent / "train/stream_0/best/frm.json").stat().st_mtime_ns == stamp
    assert table.read_text(encoding="utf-8") == text


def test_streams_and_their_treatment_must_match(world, tmp_path):
    root, frm = world
    for changes in ({"deepstack": "recovered"}, {"streams": (str(frm),)}):
        with pytest.raises(UserError, match="takes 1, one --streams|fits other"):
            evaluate.run(
                config(root, frm, tmp_path, tasks=("material",), **changes),
                load_host=converters.load_host,
            )
