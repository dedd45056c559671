"""Pretraining a vision-language host end to end at toy size: answers learned, runs resumed."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from support.toy_renders import SIDE, folder_of, picture

import converters
from configs.nano import qwen3_vl_host
from trace_jax.data import manifest
from trace_jax.errors import UserError
from trace_jax.runs import pretrain_language
from trace_jax.tasks import prompts
from trace_jax.train import augment, contrastive, language
from trace_jax.types import LEVELS

pytestmark = pytest.mark.usefixtures("compile_once")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ConfigDict:
    root = tmp_path_factory.mktemp("toy")
    page = qwen3_vl_host.get_config()
    page.host.tower, page.host.vocabulary = "", 300
    page.host.preprocessor.update(min_pixels=SIDE * SIDE, max_pixels=SIDE * SIDE)
    page.host.config.vision_config.update(
        depth=2, hidden_size=16, num_heads=2, intermediate_size=32, out_hidden_size=16,
        patch_size=8, num_position_embeddings=16, deepstack_visual_indexes=[0],
    )  # fmt: skip
    page.host.config.text_config.update(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16,
    )  # fmt: skip
    page.host.config.text_config.rope_parameters.mrope_section = [4, 2, 2]
    page.data.folder, page.data.side = str(folder_of(root / "data")), SIDE
    page.data.burnt = str(folder_of(root / "burnt", levels=LEVELS))
    page.data.held_out, page.data.watch = 4, ""
    page.batch.update(size=8, hard_types=2, burnt=4)
    page.optim.warmup_steps, page.optim.lr = 2, 3e-3
    page.loop.update(steps=6, log_every=2, eval_every=3, save_every=3)
    return page


def _run(config: ConfigDict, workdir: Path, **options) -> pretrain_language.PretrainResult:
    return pretrain_language.run(
        config,
        load_host=converters.load_host,
        save_host=converters.save_host,
        workdir=workdir,
        **options,
    )


def test_a_resumed_run_ends_as_an_unbroken_one(config: ConfigDict, tmp_path: Path) -> None:
    whole = _run(config, tmp_path / "whole")
    broken = _run(config, tmp_path / "broken", stop_at=4)
    assert (broken.status, broken.step, broken.folder) == ("paused", 4, None)
    resumed = _run(config, tmp_path / "broken")
    assert whole.folder and resumed.folder
    one, other = (f / "model.safetensors" for f in (whole.folder, resumed.folder))
    assert one.read_bytes() == other.read_bytes()
    assert whole.metrics == resumed.metrics


@pytest.mark.slow
def test_the_written_host_answers_in_the_form_it_was_taught(
    config: ConfigDict, tmp_path: Path
) -> None:
    longer = config.copy_and_resolve_references()
    longer.loop.steps, longer.loop.eval_every, longer.optim.lr = 300, 300, 1e-2
    result = _run(longer, tmp_path)
    assert result.folder and result.metrics["token_hit"] > 0.5
    host = converters.load_host("qwen3_vl_nano", weights=str(result.folder))
    features = host.tap(host.preprocess([picture(0, 0)]))
    assert features.tokens.shape == (1, 4, 16)
    (said,) = host.generate(features, [prompts.MATERIAL], max_new_tokens=8)
    assert set(said.replace(",", "").split()) <= {"wood", "steel"}, said


def test_pictures_without_damage_are_refused(config: ConfigDict, tmp_path: Path) -> None:
    calm = config.copy_and_resolve_references()
    calm.data.burnt = calm.data.folder
    with pytest.raises(UserError, match="no damaged training pictures"):
        _run(calm, tmp_path)


def test_rows_that_say_nothing_are_refused(config: ConfigDict, tmp_path: Path) -> None:
    mute = config.copy_and_resolve_references()
    read = manifest.read(mute.data.folder)
    rows = [dataclasses.replace(e, functions=()) for e in read.examples]
    shutil.copytree(mute.data.folder, tmp_path / "data")
    manifest.write(tmp_path / "data", read.info, rows)
    mute.data.folder = str(tmp_path / "data")
    with pytest.raises(UserError, match="24 rows have no functions"):
        _run(mute, tmp_path / "run")


def test_every_term_has_its_weight() -> None:
    """The loss alone, on stand-ins for the host: a term's weight scales its share and no other."""
    views = augment.AugmentConfig(clean=1.0, flip=0.0)
    batch = {
        "first": np.zeros((2, 8, 8, 3), np.uint8),
        "second": np.full((2, 8, 8, 3), 90, np.uint8),
        "burnt": np.zeros((1, 8, 8, 3), np.uint8),
        "object_type": np.array([0, 1]),
        "material": np.array([[1.0, 0.0], [0.0, 1.0]], np.float32),
        "ids": np.array([[1, 2, 3]]),
        "answered": np.array([[False, False, True]]),
        "real": np.ones((1, 3), bool),
        "slots": np.full((1, 3), -1),
        "positions": np.zeros((1, 3, 3), np.int32),
    }
    params = {"host": {}, "heads": contrastive.init_heads(jax.random.key(0), 4, 2, 2)}
    names = ("answer", "pooled", "object_type", "material")

    def value(**weights: float) -> tuple[float, dict]:
        loss = language.make_loss(
            lambda _, pixels: pixels.mean(axis=(1, 2)) @ np.eye(3, 4, dtype=np.float32),
            lambda features: features,
            lambda *_: np.zeros((1, 3, 5), np.float32),
            language.LanguageConfig(
                **{**dict.fromkeys(names, 0.0), **weights},
                label_smoothing=0.0, mean=(0.5,) * 3, std=(0.5,) * 3, views=views,
            ),
        )  # fmt: skip
        total, terms = loss(params, batch, jax.random.key(1))
        return float(total), {k: float(v) for k, v in terms.items()}

    _, terms = value()
    assert terms["answer"] == pytest.approx(np.log(5))
    for name in names:
        assert terms[name] > 0
        assert value(**{name: 0.5})[0] == pytest.approx(0.5 * terms[name], rel=1e-5)
