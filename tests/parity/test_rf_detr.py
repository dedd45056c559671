"""RF-DETR against transformers, through the real loader: backbone, selection, decoder, training."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from support import detectors as tiny
from support.references import BLOCK, END, error
from transformers import RfDetrForObjectDetection

import converters
from trace_jax.hosts import rf_detr
from trace_jax.hosts.base import abstract_params

# Scores closer than this may be ranked either way.
TIE = 1e-4
ODD = {
    **tiny.TINY,
    # Rising stages that leave blocks out at both ends, other activations, epsilons and widths.
    "backbone_config": {
        **tiny.BACKBONE,
        "num_hidden_layers": 6,
        "num_windows": 4,
        "patch_size": 4,
        "out_features": ["stage2", "stage3", "stage5"],
        "layer_norm_eps": 1e-3,
        "mlp_ratio": 3,
        "hidden_act": "gelu_pytorch_tanh",
        "use_mask_token": False,
    },
    "layer_norm_eps": 1e-2,
    "activation_function": "relu",
    "decoder_activation_function": "gelu",
    "c2f_num_blocks": 2,
    "hidden_expansion": 0.75,
    "decoder_layers": 3,
    "decoder_n_points": 3,
    "num_queries": 20,
}
# One window; a map of 52 places a side, whose outermost ones make no proposal.
EDGES = {
    **tiny.TINY,
    "backbone_config": {
        **tiny.BACKBONE,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "out_features": ["stage1", "stage2"],
        "num_windows": 1,
        "patch_size": 2,
        "image_size": 104,
    },
    "d_model": 8,
    "num_queries": 300,
    "decoder_layers": 1,
}
CONFIGS = {"tiny": tiny.TINY, "odd": ODD, "edges": EDGES}


def _load(config: dict, folder, std: float = 0.2):
    model = tiny.build(config, std=std)
    return model, converters.load_host("rf_detr", tiny.save(model, folder))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return _load(tiny.TINY, tmp_path_factory.mktemp("rf_detr"))


def _assert_same_ranks(got: np.ndarray, want: np.ndarray, scores: np.ndarray) -> None:
    """Indices into `scores`, best first, are equal but for ties."""
    ours, theirs = (np.take_along_axis(scores, i.astype(np.int64), axis=1) for i in (got, want))
    gaps = np.abs(ours - theirs)[got != want]
    assert (gaps < TIE).all(), gaps.max()


def _compare(model, host, batch: int) -> dict[str, float]:
    values = tiny.pixels(host.image_size, batch)
    sizes = np.asarray([[480, 640], [333, 500], [64, 64]], np.int32)[:batch]
    inputs = {"pixel_values": values, "sizes": sizes}
    features = host.tap(inputs)
    decoded = jax.jit(host.apply_decode)(host.params, features.tokens)
    index = np.asarray(decoded.selected)
    want = tiny.run(model, values, select=index)
    _assert_same_ranks(index, want["index"], want["selection_scores"])
    output = host.resume(features)
    errors = {
        "blocks": error(
            jax.jit(host.apply_blocks)(host.params, inputs),
            want["blocks"][: max(host.model.stages)],
        ),
        "maps": error(features.tokens, want["maps"]),
        **{
            key: error(getattr(decoded, key), want[key])
            for key in ("memory", "enc_logits", "enc_boxes", "references", "states")
        },
        "logits": error(output.logits, want["logits"]),
        "pred_boxes": error(output.pred_boxes, want["pred_boxes"]),
    }
    errors["detections"] = _detections(output, want, sizes)
    return errors


def _detections(output, want: dict, sizes: np.ndarray) -> float:
    """Detections against the official post-processing of the reference's logits and boxes."""
    logits, boxes = (torch.from_numpy(want[key]) for key in ("logits", "pred_boxes"))
    classes = logits.shape[2]
    flat = logits.sigmoid().flatten(1)
    scores, index = torch.topk(flat, logits.shape[1], dim=1)
    centre, size = boxes.split(2, dim=-1)
    corners = torch.cat([centre - size / 2, centre + size / 2], dim=-1)
    high, wide = torch.from_numpy(sizes.astype(np.float32)).unbind(1)
    corners = corners * torch.stack([wide, high, wide, high], dim=1)[:, None]
    corners = torch.gather(corners, 1, (index // classes)[..., None].expand(-1, -1, 4))
    found = error(output.scores, scores.numpy())
    other = np.asarray(output.labels) != (index % classes).numpy()
    # Where another pair of query and class stands at this rank, its score is the same.
    moved = other | (np.abs(np.asarray(output.boxes) - corners.numpy()).max(-1) > END * 640)
    own = (torch.roll(scores, 1, 1) - scores, scores - torch.roll(scores, -1, 1))
    gap = torch.minimum(*(x.abs() for x in own)).numpy()
    assert (gap[moved] < TIE).all(), gap[moved].max()
    assert moved.mean() < 0.1
    return found


def _assert_close(errors: dict[str, float]) -> None:
    print({key: f"{value:.1e}" for key, value in errors.items()})
    wrong = {k: v for k, v in errors.items() if not v <= (BLOCK if k == "blocks" else END)}
    assert not wrong, wrong


@pytest.mark.parametrize("name", CONFIGS)
def test_tiny_models_equal_transformers(name, tmp_path):
    model, host = _load(CONFIGS[name], tmp_path)
    side = CONFIGS[name]["backbone_config"]["image_size"]
    assert host.spec.tap.tokens == (side // CONFIGS[name]["backbone_config"]["patch_size"]) ** 2
    assert host.spec.num_params == sum(p.numel() for p in model.parameters())
    _assert_close(_compare(model, host, batch=2))


@pytest.mark.slow
def test_medium_size_equals_transformers(tmp_path):
    model, host = _load(tiny.MEDIUM, tmp_path, std=0.03)
    assert host.spec.tap.tokens == 1296 and host.spec.tap.dim == 384
    _assert_close(_compare(model, host, batch=1))
    inputs = {
        "pixel_values": tiny.pixels(host.image_size, 1, seed=1),
        "sizes": np.asarray([[480, 640]], np.int32),
    }
    resumed, direct = host.resume(host.tap(inputs)), host.forward(inputs)
    for field, got, want in zip(direct._fields, resumed, direct, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=field)


def test_medium_has_the_published_tensors_and_parameters():
    """Counted on the official checkpoint: 509 tensors, 33,687,458 parameters."""
    model = rf_detr.parse({"model_type": "rf_detr", **tiny.MEDIUM})
    shapes = abstract_params(rf_detr.RfDetr, model, "float32")
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 33_687_458
    rules = converters.load.FAMILIES["rf_detr"](model).rules
    leaves = converters.load.flatten(shapes)
    keys = {p.key for path, rule in rules.items() for p in rule.pieces(leaves[path].shape)}
    assert len(keys) == 509


@pytest.mark.parametrize("side", [32, 96])
def test_positions_of_other_sizes_are_interpolated(pair, side):
    model, host = pair
    values = tiny.pixels(side, 2)
    outputs = jax.jit(host.train_outputs, static_argnames="groups")(
        host.params, {"pixel_values": values}, groups=1
    )
    want = tiny.run(model, values)
    assert error(outputs["logits"], want["layer_logits"]) < END
    assert error(outputs["boxes"], want["layer_boxes"]) < END
    assert error(outputs["enc_boxes"], want["enc_boxes"]) < END


def test_training_outputs_and_gradients_of_all_groups(tmp_path):
    """A random linear functional of all outputs; gradients of every parameter."""
    config = {**tiny.TINY, "dropout": 0.0}
    model, host = _load(config, tmp_path / "weights")
    values = tiny.pixels(64, 2)
    model.train()
    output = model(tiny.nchw(values))
    logits, boxes = model.predict_class_and_boxes(
        output.intermediate_hidden_states, output.intermediate_reference_points
    )
    want = {
        "logits": logits,
        "boxes": boxes,
        "enc_logits": output.enc_outputs_class,
        "enc_boxes": output.enc_outputs_coord_logits,
    }
    got = jax.jit(host.train_outputs)(host.params, {"pixel_values": values})
    assert got["logits"].shape == (2, 2, 18, 5)  # layers, images, groups * queries, classes
    for key, value in want.items():
        assert error(got[key], value.detach().numpy()) < END, key
    # Inference's group comes first.
    alone = jax.jit(host.train_outputs, static_argnames="groups")(
        host.params, {"pixel_values": values}, groups=1
    )
    for key in ("logits", "enc_boxes"):
        assert error(alone[key], np.asarray(got[key])[..., :6, :]) < END

    rng = np.random.default_rng(2)
    weights = {key: rng.normal(size=v.shape).astype(np.float32) for key, v in want.items()}
    sum((torch.from_numpy(weights[key]) * value).sum() for key, value in want.items()).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.zeros(()) if parameter.grad is None else parameter.grad)
    # The gradients go through the loader like weights, and come out in our layout.
    theirs = converters.load_host("rf_detr", tiny.save(model, tmp_path / "gradients")).params

    def functional(params):
        found = host.train_outputs(params, {"pixel_values": values})
        return sum(jnp.vdot(weights[key], value) for key, value in found.items())

    ours = jax.jit(jax.grad(functional))(host.params)
    flat = zip(
        jax.tree_util.tree_leaves_with_path(dict(ours)), jax.tree.leaves(theirs), strict=True
    )
    wrong = {
        jax.tree_util.keystr(path): error(leaf, np.asarray(want))
        for (path, leaf), want in flat
        if not error(leaf, np.asarray(want)) < END
    }
    assert not wrong, wrong


@pytest.mark.parametrize("name", ["tiny", "odd"])
def test_what_we_save_loads_in_transformers(name, tmp_path):
    reference, host = _load(CONFIGS[name], tmp_path / "source")
    converters.save_host(host, tmp_path / "back")
    model, info = RfDetrForObjectDetection.from_pretrained(
        tmp_path / "back", output_loading_info=True
    )
    found = {k: v for k, v in info.items() if v}
    assert not found, found
    back = model.state_dict()
    for key, tensor in reference.state_dict().items():
        assert torch.equal(back[key], tensor), key
