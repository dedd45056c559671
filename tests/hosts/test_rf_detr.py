"""RF-DETR: sizes and settings, the law of the seam, cached features, detections, training."""

from __future__ import annotations

import copy
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("torch")
from support import detectors
from support.vision_language import picture

import converters
from trace_jax import hosts
from trace_jax.errors import FaultsError, UserError
from trace_jax.hosts import rf_detr

CONFIG = {"model_type": "rf_detr", **detectors.TINY}


def _config(top: dict | None = None, backbone: dict | None = None) -> dict:
    config = {**copy.deepcopy(CONFIG), **(top or {})}
    config["backbone_config"] = {**config["backbone_config"], **(backbone or {})}
    return config


def _pictures(count: int) -> list:
    return [picture(40 + 9 * k, 75 - 8 * k, k) for k in range(count)]


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rf_detr")
    return converters.load_host("rf_detr", detectors.save(detectors.build(detectors.TINY), folder))


# ---- sizes and settings

# Side of the images, side of the position grid, patch, windows, decoder layers.
VARIANTS = {
    "nano": (384, 24, 16, 2, 2),
    "small": (512, 32, 16, 2, 3),
    "base": (560, 37, 14, 4, 3),
    "medium": (576, 36, 16, 2, 4),
    "large": (704, 44, 16, 2, 4),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_all_sizes_come_from_the_config(name):
    side, grid, patch, windows, layers = VARIANTS[name]
    stages = [2, 5, 8, 11] if name == "base" else [3, 6, 9, 12]
    config = {
        "model_type": "rf_detr",
        **detectors.MEDIUM,
        "backbone_config": {
            **detectors.MEDIUM["backbone_config"],
            "image_size": grid * patch,
            "patch_size": patch,
            "num_windows": windows,
            "out_features": [f"stage{n}" for n in stages],
        },
        "decoder_layers": layers,
    }
    model = rf_detr.parse(config)
    assert model.stages == tuple(stages) and model.positions == grid
    given = {"size": {"height": side, "width": side}}
    images, _ = rf_detr.RfDetr.companions(model, given, None, False)
    assert images.image_size == side
    # Every stage's next block alone looks at all windows; blocks behind the last do not run.
    whole = [n for n, joined in enumerate(model.joined) if joined > 1]
    assert whole == stages[:-1] and len(model.joined) == stages[-1]
    assert set(model.joined) == {1, windows**2}
    if name == "base":  # its position grid is that of images it does not take
        with pytest.raises(UserError, match="legal sizes are 504 and 560"):
            rf_detr.RfDetr.companions(model, None, None, False)


@pytest.mark.parametrize(
    ("side", "near"),
    [(600, "576 and 608"), (577, "576 and 608"), (31, "288"), (256, "288"), (0, "288")],
)
def test_illegal_sizes_are_refused_with_the_next_legal_ones(side, near):
    model = rf_detr.parse({"model_type": "rf_detr", **detectors.MEDIUM})
    with pytest.raises(UserError, match=f"legal sizes are {near}"):
        model.require_size(side)
    for legal in (288, 576, 608):
        model.require_size(legal)


def test_an_illegal_size_is_told_when_a_host_is_made(host, tmp_path):
    with pytest.raises(UserError, match="legal sizes are 64 and 80"):
        hosts.build("rf_detr", _config(backbone={"image_size": 72}), jax.random.key(0))
    converters.save_host(host, tmp_path)
    settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    settings["size"] = {"height": 90, "width": 90}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="legal sizes are 80 and 96"):
        converters.load_host("rf_detr", tmp_path)


@pytest.mark.parametrize(
    ("top", "backbone", "match"),
    [
        ({"model_type": "rt_detr"}, {}, "this host needs 'rf_detr'"),
        ({}, {"model_type": "dinov2"}, "must be 'rf_detr_dinov2'"),
        ({}, {"image_size": [64, 32]}, "square"),
        ({}, {"image_size": 65}, "no multiple of patch_size"),
        ({}, {"out_features": ["stage3", "stage13"]}, "out_features"),
        ({}, {"out_features": None, "out_indices": [6, 3]}, "must rise"),
        ({}, {"out_indices": [3, 6, 9]}, "are not out_features"),
        ({}, {"num_windows": 0}, "num_windows is 0"),
        ({}, {"num_attention_heads": 5}, "no multiple"),
        ({"decoder_layers": 0}, {}, "decoder_layers is 0"),
        ({"decoder_cross_attention_heads": 3}, {}, "no multiple of decoder_cross_attention_heads"),
        ({"activation_function": "mish"}, {}, "activation_function is 'mish'"),
    ],
)
def test_configs_of_no_model_are_refused(top, backbone, match):
    with pytest.raises(UserError, match=match):
        rf_detr.parse(_config(top, backbone))
    with pytest.raises(UserError, match="no backbone_config"):
        rf_detr.parse({"model_type": "rf_detr"})


def test_unknown_settings_and_other_variants_are_refused(host, tmp_path):
    converters.save_host(host, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"num_feature_levels": 2, "attention_bias": False, "two_stage": True}
    config["backbone_config"] |= {"use_swiglu_ffn": True, "num_register_tokens": 4, "rope": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(FaultsError) as caught:
        converters.load_host("rf_detr", tmp_path)
    for part in (
        "num_feature_levels is 2, must be 1",
        "attention_bias is False, must be True",
        "two_stage = True is a setting this host does not know",
        "backbone_config.use_swiglu_ffn is True, must be False",
        "backbone_config.num_register_tokens is 4, must be 0",
        "backbone_config.rope = 1 is a setting",
        "(6 found)",
    ):
        assert part in str(caught.value), part


# ---- the seam


@pytest.mark.parametrize("batch", [1, 5])
def test_resume_of_tap_is_forward(host, batch):
    inputs = host.preprocess(_pictures(batch))
    direct, resumed = host.forward(inputs), host.resume(host.tap(inputs))
    for field, a, b in zip(direct._fields, direct, resumed, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=field)


def test_cached_features_need_the_sizes(host):
    """A cache keeps tokens alone."""
    inputs = host.preprocess(_pictures(3))
    features = host.tap(inputs)
    assert features.tokens.shape == (3, 4, 64, 24)
    assert features.tokens.shape[2:] == (host.spec.tap.tokens, host.spec.tap.dim)
    cached = features.replace(carry=None)
    want = host.resume(features)
    for a, b in zip(host.resume(cached, inputs["sizes"]), want, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(UserError, match="size is not known"):
        host.resume(cached)
    with pytest.raises(UserError, match="size is not known"):
        host.forward({"pixel_values": inputs["pixel_values"]})
    with pytest.raises(UserError, match="pixel_values"):
        host.tap({"pixel_values": np.zeros((1, 32, 32, 3), np.float32)})


# ---- detections


def test_detections_are_the_best_pairs_in_pixels():
    logits = jnp.asarray([[[0.0, 3.0], [1.0, -2.0], [-5.0, 2.0]]])
    boxes = jnp.asarray([[[0.5, 0.5, 1.0, 0.5], [0.25, 0.5, 0.1, 0.2], [0.9, 0.9, 0.4, 0.4]]])
    found = rf_detr.detections(logits, boxes, jnp.asarray([[100, 200]]))
    np.testing.assert_array_equal(found.labels, [[1, 1, 0]])
    np.testing.assert_allclose(found.scores, 1 / (1 + np.exp([[-3.0, -2.0, -1.0]])), rtol=1e-6)
    want = [[0, 25, 200, 75], [140, 70, 220, 110], [40, 40, 60, 60]]
    np.testing.assert_allclose(found.boxes[0], want, rtol=1e-5, atol=1e-5)
    # A query may answer twice; one that never comes up is dropped.
    twice = rf_detr.detections(logits.at[0, 0, 0].set(2.5), boxes, jnp.asarray([[100, 200]]))
    np.testing.assert_array_equal(twice.labels, [[1, 0, 1]])
    np.testing.assert_array_equal(twice.boxes[0, 0], twice.boxes[0, 1])


# ---- training


def test_training_outputs_take_any_legal_size_and_number_of_groups(host):
    def shapes(side, groups):
        pixels = {"pixel_values": jnp.zeros((2, side, side, 3))}
        return jax.eval_shape(
            lambda params: host.train_outputs(params, pixels, groups=groups), host.params
        )

    for side, groups, count in ((64, None, 3), (80, 2, 2)):
        found = shapes(side, groups)
        assert found["logits"].shape == (2, 2, 6 * count, 5)
        assert found["boxes"].shape == (2, 2, 6 * count, 4)
        assert found["enc_logits"].shape == (2, 6 * count, 5)
        assert found["enc_boxes"].shape == (2, 6 * count, 4)
        assert {leaf.dtype for leaf in found.values()} == {jnp.dtype("float32")}
    with pytest.raises(UserError, match="4 groups of queries asked for, the weights have 3"):
        shapes(64, 4)
    with pytest.raises(UserError, match="legal sizes are 64 and 80"):
        shapes(72, 1)


def test_a_fresh_model_starts_where_training_should():
    """Every class at 1%, boxes where the proposals are."""
    host = hosts.build("rf_detr", _config(), jax.random.key(0))
    pixels = np.random.default_rng(0).normal(size=(1, 64, 64, 3)).astype(np.float32)
    found = jax.jit(host.train_outputs)(host.params, {"pixel_values": pixels})
    assert np.abs(jax.nn.sigmoid(found["logits"]).mean() - 0.01) < 0.05
    np.testing.assert_allclose(found["boxes"][-1], found["enc_boxes"], atol=1e-6)
    np.testing.assert_allclose(found["boxes"][..., 2:], 0.05, rtol=1e-5)
