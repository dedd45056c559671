"""Detector training end to end at toy size: batches, learning, resume, the written host."""

from __future__ import annotations

import copy
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from support import toy_scenes
from support.toy_scenes import SIDE

import converters
from configs import rfdetr_finetune
from configs.nano import rf_detr_host
from trace_jax import hosts, taxonomy
from trace_jax.data import manifest
from trace_jax.errors import FaultsError, UserError
from trace_jax.runs import pretrain_detection
from trace_jax.train import metrics_log
from trace_jax.train.augment_boxes import BoxViewConfig
from trace_jax.train.scene_batches import SceneBatches, label

pytestmark = pytest.mark.usefixtures("compile_once")

SLOTS = {"bench": 15, "chair": 62, "clock": 85}
VIEWS = BoxViewConfig(
    short=(48, 64), crop_least=40, crop_most=64, side=64, sides=(48, 64), least=1.0
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_scenes.folder_of(tmp_path_factory.mktemp("toy") / "data")


@pytest.fixture
def config(folder: Path) -> ConfigDict:
    page = rf_detr_host.get_config()
    page.host.config.backbone_config.update(
        hidden_size=16, num_attention_heads=2, num_hidden_layers=2, image_size=SIDE, patch_size=8,
        out_features=("stage1", "stage2"),
    )  # fmt: skip
    page.host.config.update(
        d_model=16, c2f_num_blocks=1, decoder_layers=2, decoder_self_attention_heads=2,
        decoder_cross_attention_heads=4, decoder_ffn_dim=32, num_queries=6, group_detr=2,
    )  # fmt: skip
    page.data.folder, page.data.val, page.data.val_batch = str(folder), "", 4
    page.batch.size = 4
    page.views.update(short=(48, 64), crop_least=40, crop_most=64, side=64, sides=(64,), least=1.0)
    page.optim.update(warmup_steps=1, lr=2e-3)
    page.loop.update(steps=6, log_every=2, eval_every=3, save_every=2)
    return page


def _run(page: ConfigDict, workdir: Path, **options):
    return pretrain_detection.run(
        page,
        load_host=converters.load_host,
        save_host=converters.save_host,
        workdir=workdir,
        **options,
    )


def _rows(workdir: Path) -> list[dict]:
    rows = metrics_log.read(workdir / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def test_a_resumed_run_ends_as_an_unbroken_one(config: ConfigDict, tmp_path: Path) -> None:
    whole = _run(config, tmp_path / "whole")
    broken = _run(config, tmp_path / "broken", stop_at=4)
    assert (broken.status, broken.step, broken.folder) == ("paused", 4, None)
    resumed = _run(config, tmp_path / "broken")
    assert whole.status == resumed.status == "finished"
    one, other = (r.folder / "model.safetensors" for r in (whole, resumed))
    assert one.read_bytes() == other.read_bytes()
    assert _rows(tmp_path / "whole") == _rows(tmp_path / "broken")
    assert whole.metrics == resumed.metrics

    rows = _rows(tmp_path / "whole")
    train = [row for row in rows if row["kind"] == "train"]
    assert {"loss", "loss_ce", "loss_bbox_0", "loss_giou_enc", "grad_norm", "lr"} <= train[0].keys()
    val = [row for row in rows if row["kind"] == "val"]
    assert [row["step"] for row in val] == [3, 6]
    assert {"map", "map_50", "map_75", "map_ema", "map_50_ema"} <= val[0].keys()
    # The written host is the best, of the parameters or of their average.
    best = max(max(row["map"], row["map_ema"]) for row in val)
    assert whole.metrics["map"] == pytest.approx(best, abs=1e-6)
    host = converters.load_host("rf_detr_nano", weights=str(whole.folder))
    found = host.forward(host.preprocess([toy_scenes.scene(0)[0]]))
    assert found.boxes.shape == (1, 6, 4)
    # Another page does not go on in this folder.
    config.optim.lr = 1e-3
    with pytest.raises(FaultsError, match="another run"):
        _run(config, tmp_path / "whole")


@pytest.mark.slow
def test_it_learns(config: ConfigDict, tmp_path: Path) -> None:
    """The same few scenes, seen plainly, again and again: the loss falls by half and boxes fit."""
    config.views.update(flip=0.0, crop=0.0, sides=(64,))
    config.optim.update(clip_norm=1.0, weight_decay=0.0, lr=4e-3)
    config.ema.decay = 0.9
    config.loop.update(steps=240, log_every=20, eval_every=240, save_every=0)
    result = _run(config, tmp_path)
    losses = [row["loss"] for row in _rows(tmp_path) if row["kind"] == "train"]
    assert losses[-1] < 0.6 * losses[0]
    assert result.metrics["map_50"] > 0.05


@pytest.mark.slow
def test_training_goes_on_from_given_weights(config: ConfigDict, tmp_path: Path) -> None:
    """Fine-tuning: the recipe's own rates, an epoch for length, bfloat16 inside the step."""
    first = hosts.build("rf_detr_nano", config.host.config.to_dict(), jax.random.key(3))
    converters.save_host(first, tmp_path / "weights")
    recipe = rfdetr_finetune.get_config()
    config.host = ConfigDict(
        {
            "name": "rf_detr_nano",
            "weights": str(tmp_path / "weights"),
            "config": {},
            "compute": "bfloat16",
        }
    )
    config.rates, config.optim, config.ema = recipe.rates, recipe.optim, recipe.ema
    config.epochs, config.loop.steps, config.views.sides = 1, 0, (64,)
    result = _run(config, tmp_path / "run")
    assert result.step == 4  # 17 scenes, 4 a batch
    tuned = converters.load_host("rf_detr_nano", weights=str(result.folder))
    distances = jax.tree.map(lambda a, b: float(abs(a - b).max()), first.params, tuned.params)
    assert distances["detector"]["heads"]["classes"]["kernel"] > 1e-5
    # Adam's first steps are about as long as the rates: 0.8^3 of the last norm's, with two blocks.
    low, high = (
        distances["backbone"][a][b] for a, b in (("positions", "table"), ("norm", "scale"))
    )
    assert 0.35 < low / high < 0.65
    assert 1e-5 < high < 4 * 7.35e-5 * 1.1


@pytest.mark.parametrize(
    "change,message",
    [
        ({"host": {"compute": "float16"}}, "host.compute"),
        ({"epochs": 2}, "either epochs or loop.steps"),
        ({"host": {"weights": "somewhere"}}, "either config.host.weights or config.host.config"),
        ({"host": {"config": {"num_labels": 5}}}, "num_labels=91"),
        ({"views": {"sides": (50,)}}, "next legal sizes"),
        ({"batch": {"size": 40}}, "a batch needs 40"),
        ({"data": {"severities": ("L9",)}}, "severities"),
        ({"data": {"severities": ("L0",)}}, "0 scenes are left"),
        ({"loop": {"eval_every": 0}}, "eval_every"),
        ({"loss": {"focal": 1.0}}, "focal"),
    ],
    ids=str,
)
def test_pages_that_cannot_be_are_refused(
    config: ConfigDict, tmp_path: Path, change: dict, message: str
) -> None:
    page = copy.deepcopy(config)
    with page.unlocked():
        page.update(change)
    with pytest.raises(UserError, match=message):
        _run(page, tmp_path)


def test_class_slots_are_cocos_ids(config: ConfigDict) -> None:
    host = hosts.build("rf_detr_nano", config.host.config.to_dict(), jax.random.key(0))
    slots = pretrain_detection.class_slots(host)
    assert {name: slots[name] for name in SLOTS} == SLOTS
    assert set(slots) == set(taxonomy.load().coco_categories)


# ---- batches


@pytest.fixture(scope="module")
def batches(folder: Path) -> SceneBatches:
    dataset = manifest.read(folder)
    scenes = label([s for s in dataset.scenes if s.split == "train"], SLOTS)
    return SceneBatches(
        dataset, scenes, size=4, views=VIEWS, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4), seed=0
    )


def test_batches_are_a_pure_function_of_the_step(batches: SceneBatches, folder: Path) -> None:
    dataset = manifest.read(folder)
    scenes = label([s for s in dataset.scenes if s.split == "train"], SLOTS)
    again = SceneBatches(
        dataset, scenes, size=4, views=VIEWS, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4), seed=0
    )
    for step in (9, 2):
        jax.tree.map(np.testing.assert_array_equal, batches(step), again(step))
    assert {batches(step)["pixel_values"].shape for step in range(12)} == {
        (4, 48, 48, 3),
        (4, 64, 64, 3),
    }


def test_targets_are_objects_with_a_class(batches: SceneBatches) -> None:
    assert batches.objects == 3 and batches.epoch == 4
    seen = set()
    for step in range(16):
        batch = batches(step)
        real = batch["mask"]
        seen |= set(batch["labels"][real].tolist())
        assert (batch["boxes"][real][:, 2:] > 0).all()
        assert (batch["boxes"][~real] == 0).all()
        # No crowd (the whole picture) and nothing without a category (a strip at the bottom).
        assert (batch["boxes"][real][:, 2] < 0.8).all()
    assert seen == set(SLOTS.values())


def test_the_pixels_are_normalised_and_show_the_labelled_colours(batches: SceneBatches) -> None:
    colours = {SLOTS[name]: np.array(c) / 255 for name, c in toy_scenes.COLOURS.items()}
    for step in range(8):
        batch = batches(step)
        side = batch["pixel_values"].shape[1]
        shown = batch["pixel_values"] * np.array([0.2, 0.3, 0.4]) + np.array([0.5, 0.4, 0.3])
        for image, place in zip(*np.nonzero(batch["mask"]), strict=True):
            x, y = (batch["boxes"][image, place, :2] * side).astype(int)
            wanted = colours[int(batch["labels"][image, place])]
            if (batch["boxes"][image, place, 2:] * side > 5).all():
                np.testing.assert_allclose(shown[image, y, x], wanted, atol=0.1)


def test_a_picture_that_cannot_be_read_is_named(folder: Path, tmp_path: Path) -> None:
    copied = toy_scenes.folder_of(tmp_path / "data", train=4, val=1, empty=0)
    (copied / "images" / "2.png").write_bytes(b"no picture")
    dataset = manifest.read(copied)
    scenes = label([s for s in dataset.scenes if s.split == "train"], SLOTS)
    broken = SceneBatches(
        dataset, scenes, size=4, views=VIEWS, mean=(0, 0, 0), std=(1, 1, 1), seed=0
    )
    with pytest.raises(UserError, match="2.png"):
        broken(0)
