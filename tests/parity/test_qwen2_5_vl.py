"""Qwen2.5-VL against transformers, through the real loader: tower, logits, greedy tokens."""

from __future__ import annotations

import copy
import json

import jax
import numpy as np
import pytest

pytest.importorskip("torch")
import torch
import transformers
from support import vision_language as tiny
from support.references import BLOCK, END, error
from transformers.vision_utils import get_vision_window_index

import converters
from trace_jax import hosts
from trace_jax.errors import FaultsError, UserError
from trace_jax.hosts import qwen2_5_vl
from trace_jax.hosts.base import abstract_params
from trace_jax.hosts.qwen2_5_vl import window_order

# Images of a call as (width, height); sides are rounded to whole blocks of 28 pixels, and a window
# of the tiny models is 2 x 2 of them, so that most borders cut windows.
SIZES = {
    "whole windows": [(112, 112)],
    "odd": [(150, 61)],
    "one block": [(28, 28)],
    "three": [(56, 84), (33, 200), (140, 70)],
    "four": [(140, 140), (28, 160), (90, 31), (57, 55)],
}
PROMPTS = {
    "one": ([(84, 140)], [5], [1]),
    "four unequal": ([(100, 61), (64, 64), (33, 200), (130, 70)], [5, 17, 2, 9], [1, 1, 1, 1]),
    "three in a prompt": ([(64, 64), (33, 200), (130, 70), (70, 70)], [4, 9], [3, 1]),
}
EDGES = [(1, 1), (1000, 20), (20, 1000), (336, 337), (4000, 3000)]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(0, id="seed 0"),
        pytest.param(1, id="seed 1", marks=pytest.mark.slow),
    ],
)
def pair(tmp_path_factory, request):
    model = tiny.build("qwen2_5_vl", seed=request.param)
    folder = tiny.save(model, tmp_path_factory.mktemp("qwen2_5_vl"))
    host = converters.load_host("qwen2_5_vl", folder)
    small = {"shortest_edge": 28 * 28, "longest_edge": 140 * 140}
    host.preprocessor = copy.copy(host.preprocessor)
    host.preprocessor.constants = {**host.preprocessor.constants, "size": small}
    return model, host


def _inputs(host, sizes):
    return host.preprocess([tiny.picture(w, h, seed) for seed, (w, h) in enumerate(sizes)])


def _generate(model, given, prompt_length, **settings):
    with torch.inference_mode():
        return model.generate(
            **given, do_sample=False, max_new_tokens=32, pad_token_id=0, eos_token_id=None,
            **settings,
        )[:, prompt_length:].tolist()  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_tower(pair, sizes):
    model, host = pair
    inputs = _inputs(host, sizes)
    pixels, grid = tiny.packed(inputs)
    with torch.inference_mode():
        want = model.model.get_image_features(pixels, grid)
        states = model.model.visual(pixels, grid_thw=grid, output_hidden_states=True).hidden_states
    features = host.tap(inputs)
    counts = np.prod(np.asarray(features.carry["grid"]), axis=-1)
    np.testing.assert_array_equal(counts, host.token_counts(features.carry["grid"]))
    assert len(counts) == len(sizes)
    for image, reference in enumerate(want.pooler_output):
        assert error(features.tokens[image, : counts[image]], reference.numpy()) < END
    assert (features.mask is None) == (len(set(counts.tolist())) == 1)
    if features.mask is not None:
        np.testing.assert_array_equal(np.asarray(features.mask).sum(-1), counts)
    # The reference's states stand window by window, in units of four patches.
    back = np.argsort(get_vision_window_index(grid, 2, 56, 14)[0].numpy())
    blocks = jax.jit(host.apply_blocks)(host.params, inputs)
    offsets = np.cumsum([0, *(counts * 4)])
    assert len(blocks) == len(states) - 1 == 4
    for number, state in enumerate(states[1:]):
        ordered = state.numpy().reshape(len(back), 4, -1)[back].reshape(state.shape)
        for image in range(len(counts)):
            reference = ordered[offsets[image] : offsets[image + 1]]
            assert error(blocks[number, image, : counts[image] * 4], reference) < BLOCK, number


@pytest.mark.parametrize(("sizes", "lengths", "images"), PROMPTS.values(), ids=PROMPTS)
def test_logits_positions_and_greedy_tokens(pair, sizes, lengths, images):
    model, host = pair
    inputs = _inputs(host, sizes)
    pixels, grid = tiny.packed(inputs)
    prompts = tiny.ids_with_images(lengths, images)
    features = host.tap(inputs)
    text = host.arrange(features, prompts, images)
    given = tiny.reference_text(text, grid)
    positions, delta = model.model.get_rope_index(
        given["input_ids"], given["mm_token_type_ids"], image_grid_thw=grid,
        attention_mask=given["attention_mask"],
    )  # fmt: skip
    real = text["real"]
    np.testing.assert_array_equal(text["positions"][:, real], positions.numpy()[:, real])
    np.testing.assert_array_equal(text["next_position"], real.sum(-1) + delta.numpy().reshape(-1))
    with torch.inference_mode():
        want = model(**given, pixel_values=pixels)
        vision = model.model.get_image_features(pixels, grid)
        edited = model(**given, mm_encoder_outputs={"image": vision})
    got = host.resume(features, prompts, images=images).logits
    assert error(got, want.logits[:, -1].numpy()) < END
    assert error(got, edited.logits[:, -1].numpy()) < END
    answers = host.generate(features, prompts, images=images, max_new_tokens=32, return_tokens=True)
    length = text["ids"].shape[1]
    assert answers == _generate(model, {**given, "pixel_values": pixels}, length)
    # The law of the seam, exactly.
    whole = host.forward(inputs, prompts, images=images).logits
    np.testing.assert_array_equal(np.asarray(got), np.asarray(whole))


def test_edited_tokens_act_as_in_the_reference(pair):
    model, host = pair
    inputs = _inputs(host, [(84, 140)])
    pixels, grid = tiny.packed(inputs)
    prompts = tiny.ids_with_images([6], [1])
    features = host.tap(inputs)
    change = np.random.default_rng(7).normal(size=features.tokens.shape).astype(np.float32)
    given = tiny.reference_text(host.arrange(features, prompts), grid)
    with torch.inference_mode():
        vision = model.model.get_image_features(pixels, grid)
        plain = model(**given, mm_encoder_outputs={"image": vision}).logits[:, -1].numpy()
        vision.pooler_output = (vision.pooler_output[0] + torch.from_numpy(change[0]),)
        want = model(**given, mm_encoder_outputs={"image": vision}).logits[:, -1].numpy()
    got = host.resume(features.replace(tokens=features.tokens + change), prompts).logits
    assert error(got, want) < END
    assert error(got, plain) > 0.01


def test_repetition_penalty_is_an_option(tmp_path):
    """transformers applies the checkpoint's penalty to greedy decoding; the paper's is plain."""
    model = tiny.build("qwen2_5_vl", seed=2)
    tiny.save(model, tmp_path)
    settings = json.loads((tmp_path / "generation_config.json").read_text())
    settings["repetition_penalty"] = 1.3
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    host = converters.load_host("qwen2_5_vl", tmp_path)
    inputs = _inputs(host, [(84, 56), (56, 84)])
    pixels, grid = tiny.packed(inputs)
    prompts = tiny.ids_with_images([7, 3], [1, 1])
    features = host.tap(inputs)
    text = host.arrange(features, prompts)
    given = {**tiny.reference_text(text, grid), "pixel_values": pixels}
    length = text["ids"].shape[1]
    plain = host.generate(features, prompts, return_tokens=True)
    own = host.generate(features, prompts, return_tokens=True, repetition_penalty=None)
    assert plain == _generate(model, given, length, repetition_penalty=1.0)
    assert own == _generate(model, given, length, repetition_penalty=1.3)
    assert own != plain
    model.generation_config = transformers.GenerationConfig.from_pretrained(tmp_path)
    assert own == _generate(model, given, length)


@pytest.mark.parametrize("size", EDGES, ids=lambda size: "x".join(map(str, size)))
def test_placeholders_are_as_many_as_the_towers_tokens(size, tmp_path):
    host = converters.load_host("qwen2_5_vl", tiny.save(tiny.build("qwen2_5_vl"), tmp_path))
    inputs = host.preprocess([tiny.picture(*size)])
    features = jax.eval_shape(host.apply_tap, host.params, inputs)
    count = features.tokens.shape[1]
    grid = inputs["grid"] // 2
    assert host.token_counts(grid).tolist() == [count] == [inputs["back"].shape[1]]
    text = host.arrange(features.replace(carry={"grid": grid}), [[1, tiny.IMAGE, 2]])
    assert (text["ids"] == tiny.IMAGE).sum() == (text["slots"] >= 0).sum() == count
    reference = transformers.Qwen2VLImageProcessorPil(size=host.preprocessor.constants["size"])
    assert reference.get_number_of_image_patches(size[1], size[0]) == 4 * count
    with pytest.raises(UserError, match="200"):
        host.preprocess([tiny.picture(1, 201)])


def test_windows_are_the_references():
    rng = np.random.default_rng(0)
    grids = rng.integers(1, 12, (40, 2))
    for side, window in ((1, 28), (2, 56), (4, 112), (5, 140)):
        ours = window_order(grids, side)
        for index, (down, across) in enumerate(grids.tolist()):
            grid = torch.tensor([[1, 2 * down, 2 * across]])
            want, bounds = get_vision_window_index(grid, 2, window, 14)
            row = ours["order"][index]
            np.testing.assert_array_equal(row[row >= 0], want.numpy())
            sizes = (row.reshape(-1, side**2) >= 0).sum(-1)
            np.testing.assert_array_equal(sizes[sizes > 0] * 4, np.diff(bounds.numpy()))
            back = ours["back"][index, : down * across]
            np.testing.assert_array_equal(row[back], np.arange(down * across))
    assert "filled" not in window_order(np.array([[16, 16]]), 4)


# Qwen/Qwen2.5-VL-3B-Instruct's config.json: the decoder's settings stand at the top.
PUBLISHED = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "vision_token_id": 151654,
    "image_token_id": 151655,
    "video_token_id": 151656,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 128000,
    "max_window_layers": 70,
    "model_type": "qwen2_5_vl",
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.41.2",
    "use_cache": True,
    "use_sliding_window": False,
    "vision_config": {
        "depth": 32,
        "hidden_act": "silu",
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "in_chans": 3,
        "out_hidden_size": 2048,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "tokens_per_second": 2,
        "temporal_patch_size": 2,
    },
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vocab_size": 151936,
}


def test_the_published_sizes():
    model = qwen2_5_vl.parse(PUBLISHED)
    # What transformers reads of it, written anew with a text section, means the same.
    read = transformers.Qwen2_5_VLConfig(**PUBLISHED)
    assert qwen2_5_vl.parse(json.loads(read.to_json_string(use_diff=False))) == model
    family = converters.load.FAMILIES["qwen2_5_vl"](model)
    _, faults = converters.audit.check(PUBLISHED, family.sections)
    assert not faults
    params = abstract_params(hosts.lookup("qwen2_5_vl").family, model, "bfloat16")
    # As many as transformers' model has.
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 3_754_622_976
    host = hosts.bind(
        "qwen2_5_vl", PUBLISHED, params, hosts.UNHASHED, preprocessor=None, tokenizer=None
    ).at_size(448)  # fmt: skip
    assert host.spec.tap.tokens == 256 and host.spec.tap.dim == 2048
    inputs = host.preprocess([tiny.picture(60, 40), tiny.picture(448, 448)])
    assert inputs["order"].shape == (2, 256) and "filled" not in inputs and "real" not in inputs


@pytest.mark.parametrize(
    ("section", "change", "match"),
    [
        ("vision_config", {"window_size": 20}, "holds no merge block"),
        ("vision_config", {"fullatt_block_indexes": [4]}, "below depth"),
        ("vision_config", {"out_hidden_size": 32}, "out_hidden_size"),
        ("text_config", {"head_dim": 8}, "head_dim|mrope_section"),
    ],
)
def test_settings_that_fit_no_model_are_refused(section, change, match):
    config = {"model_type": "qwen2_5_vl", **copy.deepcopy(tiny.QWEN2_5)}
    qwen2_5_vl.parse(config)
    config[section] |= change
    with pytest.raises(FaultsError, match=match):
        qwen2_5_vl.parse(config)


def test_what_we_save_transformers_loads(pair, tmp_path):
    model, host = pair
    converters.save_host(host, tmp_path)
    again, report = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report.values())
    for name, parameter in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], parameter), name
    assert converters.load_host("qwen2_5_vl", tmp_path).spec.weights_hash == host.spec.weights_hash


def test_newer_names_are_the_same_weights(pair, tmp_path):
    from safetensors.numpy import load_file, save_file

    _, host = pair
    converters.save_host(host, tmp_path)
    path = tmp_path / "model.safetensors"
    renamed = {
        f"model.{k}" if k.startswith("visual.") else k.replace("model.", "model.language_model."): v
        for k, v in load_file(path).items()
    }
    save_file(renamed, path)
    again = converters.load_host("qwen2_5_vl", tmp_path)
    for a, b in zip(jax.tree.leaves(host.params), jax.tree.leaves(again.params), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
