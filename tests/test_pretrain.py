"""Host pretraining end to end at toy size: data, batches, tokenizer, resume, the written host."""

from __future__ import annotations

import importlib
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from support.toy_renders import SIDE, TYPES, VARIANTS, folder_of, picture

import converters
from trace_jax.data import manifest
from trace_jax.errors import FaultsError, UserError
from trace_jax.runs import pretrain
from trace_jax.train import instances, tokenizer
from trace_jax.types import LEVELS

pytestmark = pytest.mark.usefixtures("compile_once")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("toy") / "data")


@pytest.fixture(scope="module")
def data(folder: Path) -> instances.Instances:
    return instances.load(manifest.read(folder), SIDE)


def _config(page: str, folder: Path) -> ConfigDict:
    config = importlib.import_module(f"configs.nano.{page}").get_config()
    for tower in ("text_config", "vision_config"):
        config.host.config[tower].update(
            hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
        )
    config.host.config.vision_config.image_size = SIDE
    if page == "siglip2_host":
        config.host.config.text_config.projection_size = 16
    config.data.folder, config.data.held_out, config.data.watch = str(folder), 4, ""
    config.batch.update(size=8, hard_types=2)
    config.optim.warmup_steps = 2
    config.loop.update(steps=6, log_every=2, eval_every=3, save_every=3)
    return config


def _run(config: ConfigDict, workdir: Path, **options) -> pretrain.PretrainResult:
    return pretrain.run(
        config,
        load_host=converters.load_host,
        save_host=converters.save_host,
        workdir=workdir,
        **options,
    )


def test_a_resumed_run_ends_as_an_unbroken_one(folder: Path, tmp_path: Path) -> None:
    config = _config("siglip2_host", folder)
    whole = _run(config, tmp_path / "whole")
    broken = _run(config, tmp_path / "broken", stop_at=4)
    assert (broken.status, broken.step, broken.folder) == ("paused", 4, None)
    resumed = _run(config, tmp_path / "broken")
    assert whole.status == resumed.status == "finished"
    assert whole.folder and resumed.folder
    one, other = (f / "model.safetensors" for f in (whole.folder, resumed.folder))
    assert one.read_bytes() == other.read_bytes()
    assert whole.metrics == resumed.metrics


def test_the_written_clip_host_loads_and_has_learned(folder: Path, tmp_path: Path) -> None:
    config = _config("clip_host", folder)
    watched = folder_of(tmp_path / "watched", split="val", levels=LEVELS)
    config.data.watch = str(watched)
    result = _run(config, tmp_path / "run")
    assert result.folder
    assert set(result.metrics) == {"r_at_1", "zero_shot", *(f"watch_{s}" for s in LEVELS)}
    # The watched levels repeat the pristine pictures, so each finds its own.
    assert result.metrics["watch_L0"] > 0.9
    host = converters.load_host("clip_nano", weights=str(result.folder))
    features = host.tap(host.preprocess([picture(0, 0)]))
    assert features.tokens.shape == (1, 4, 16)
    assert host.encode_text(["a kind a of look 1."]).shape == (1, 128)


def test_too_few_instances_are_refused(folder: Path, tmp_path: Path) -> None:
    config = _config("siglip2_host", folder)
    config.batch.size = 64
    with pytest.raises(UserError, match="batch needs 64"):
        _run(config, tmp_path)


def test_batches_are_a_pure_function_of_seed_and_step(data: instances.Instances) -> None:
    config = instances.BatchConfig(size=8, hard_types=2)
    ids = np.arange(len(data.texts) * 3).reshape(-1, 3)
    members = np.arange(20)
    one, same, other = (
        instances.draw(data, members, ids, config, seed=0, step=step) for step in (5, 5, 6)
    )
    jax.tree.map(np.testing.assert_array_equal, one, same)
    assert (one["first"] != other["first"]).any()
    assert one["first"].shape == one["second"].shape == (8, SIDE, SIDE, 3)


def test_every_other_batch_is_hard_and_never_repeats_an_instance(
    data: instances.Instances,
) -> None:
    config = instances.BatchConfig(size=8, hard_types=2, same_view=1.0)
    ids = np.arange(len(data.texts))[:, None]
    members = np.arange(len(data.identity))
    for step in range(20):
        batch = instances.draw(data, members, ids, config, 0, step)
        if step % 2:
            assert len(np.unique(batch["object_type"])) == 2
        flat = batch["first"].reshape(8, -1)
        np.testing.assert_array_equal(batch["first"], batch["second"])
        assert len(np.unique(flat, axis=0)) == 8


def test_rare_types_are_filled_up(data: instances.Instances) -> None:
    config = instances.BatchConfig(size=16, hard_types=2)
    ids = np.arange(len(data.texts))[:, None]
    batch = instances.draw(data, np.arange(len(data.identity)), ids, config, 0, 1)
    assert len(batch["object_type"]) == 16


def test_held_out_instances_are_spread(data: instances.Instances) -> None:
    marks = instances.held_out(100, 10)
    assert marks.sum() == 10
    assert np.diff(np.flatnonzero(marks)).max() <= 12
    assert not instances.held_out(5, 0).any()


def test_captions_share_the_draws_with_templates(data: instances.Instances) -> None:
    said = [data.texts[i] for i in data.captions[0]]
    assert "a photo of a kind a." in said
    assert sum("look" in text for text in said) == len(instances.TEMPLATES) == len(said) / 2
    assert data.material.shape == (TYPES * VARIANTS, 2)


def test_unreadable_pictures_are_all_named(tmp_path: Path) -> None:
    broken = folder_of(tmp_path / "data")
    for name in ("0_0_pristine.png", "3_1_pristine.png"):
        (broken / "images" / name).write_bytes(b"nothing")
    with pytest.raises(FaultsError, match="2 found") as caught:
        instances.load(manifest.read(broken), SIDE)
    assert "3_1_pristine.png" in str(caught.value)


@pytest.mark.parametrize("family", ["siglip2", "clip"])
def test_the_tokenizer_reads_back_in_transformers(family: str, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    words = tokenizer.vocabulary(["A red Fire_truck, bi-fold."])
    built = tokenizer.build(words, family)
    tokenizer.save(built, tmp_path, family, context=8)
    read = PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    lines = ["RED fire truck", "zebra " * 20]
    ids = read(lines, padding="max_length", truncation=True, max_length=8)["input_ids"]
    special = tokenizer.special_ids(built, family)
    eos, pad = special["eos_token_id"], special["pad_token_id"]
    body = [built.token_to_id(word) for word in ("red", "fire", "truck")]
    unknown = built.token_to_id("<unk>")
    if family == "siglip2":
        assert (pad, eos) == (0, 1)
        assert ids[0] == [*body, eos, *[pad] * 4]
        assert ids[1] == [*[unknown] * 7, eos]
    else:
        bos = special["bos_token_id"]
        assert eos == pad == built.get_vocab_size() - 1
        assert ids[0] == [bos, *body, *[eos] * 4]
        assert ids[1] == [bos, *[unknown] * 6, eos]


def test_an_unknown_family_has_no_tokenizer() -> None:
    with pytest.raises(ValueError, match="bert"):
        tokenizer.build(["a"], "bert")


def test_positions_tell_every_patch_from_every_other() -> None:
    table = pretrain.positions(36, 192)
    assert table.shape == (36, 192)
    assert np.abs(table).max() <= 1.0
    distances = np.linalg.norm(table[:, None] - table[None], axis=-1)
    # Loud against the embedding of a white patch (about 1.3 a channel), and nearer is more alike.
    assert distances[~np.eye(36, dtype=bool)].min() > 2.0
    assert distances[0, 1] < distances[0, 2] < distances[0, 4]
