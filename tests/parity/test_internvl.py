"""InternVL against transformers, through the real loader: tiles, tower, logits, greedy tokens."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

pytest.importorskip("torch")
import torch
import transformers
from PIL import Image
from support import vision_language as tiny
from support.references import BLOCK, END, error

import converters
from trace_jax import hosts
from trace_jax.errors import FaultsError, UserError
from trace_jax.hosts import internvl
from trace_jax.hosts.base import abstract_params
from trace_jax.hosts.internvl_images import DEFAULTS, TiledImages

# Images of a call as (width, height); tiles of the tiny models are 84 x 84.
SIZES = {
    "one tile": [(84, 84)],
    "odd": [(301, 97)],
    "three": [(60, 61), (33, 200), (140, 100)],
    "four": [(200, 90), (84, 170), (90, 31), (57, 55)],
}
PROMPTS = {
    "one": ([(84, 140)], [5], [1]),
    "four unequal": ([(100, 61), (64, 64), (33, 200), (130, 70)], [5, 17, 2, 9], [1, 1, 1, 1]),
    "three in a prompt": ([(64, 64), (33, 90), (130, 70), (70, 70)], [4, 9], [3, 1]),
}
EDGES = [(1, 1), (1000, 20), (20, 1000), (336, 337), (4000, 3000)]
TEXT = {
    "qwen3": {},
    "qwen2": {"text_config": {**tiny.INTERNVL["text_config"], "model_type": "qwen2"}},
}
TEXT["qwen2"]["text_config"] |= {"hidden_size": 64}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("qwen3", 0), id="qwen3 0"),
        pytest.param(("qwen2", 1), id="qwen2 1", marks=pytest.mark.slow),
    ],
)
def family(tmp_path_factory, request):
    """A reference, and where it is saved."""
    kind, seed = request.param
    model = tiny.build("internvl", TEXT[kind], seed=seed)
    return model, tiny.save(model, tmp_path_factory.mktemp("internvl"))


@pytest.fixture(scope="module", params=internvl.InternVL.taps)
def pair(family, request):
    model, folder = family
    return model, converters.load_host("internvl", folder, tap=request.param)


def _inputs(host, sizes):
    return host.preprocess([tiny.picture(w, h, seed) for seed, (w, h) in enumerate(sizes)])


def _packed(inputs):
    """Tiles of all images one after the other, as the reference takes them."""
    rows = [p[:n] for p, n in zip(inputs["pixel_values"], inputs["tiles"], strict=True)]
    return torch.from_numpy(np.ascontiguousarray(np.concatenate(rows).transpose(0, 3, 1, 2)))


def _generate(model, given, length):
    with torch.inference_mode():
        return model.generate(
            **given, do_sample=False, max_new_tokens=32, pad_token_id=0, eos_token_id=None
        )[:, length:].tolist()


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_tower_and_taps(pair, sizes):
    model, host = pair
    inputs = _inputs(host, sizes)
    with torch.inference_mode():
        want = model.model.get_image_features(_packed(inputs))
        states = model.model.vision_tower(_packed(inputs), output_hidden_states=True).hidden_states
    before = host.spec.tap.name == "pre_projector"
    whole = (want.last_hidden_state[:, 1:] if before else want.pooler_output).numpy()
    each = whole.shape[1]
    assert each == (36 if before else 9)
    features = host.tap(inputs)
    tiles = inputs["tiles"].tolist()
    first = 0
    for image, count in enumerate(tiles):
        got = features.tokens[image, : count * each]
        reference = whole[first : first + count].reshape(-1, whole.shape[-1])
        assert error(got, reference) < END
        first += count
    assert (features.mask is None) == (len(set(tiles)) == 1)
    if features.mask is not None:
        np.testing.assert_array_equal(np.asarray(features.mask).sum(-1), np.multiply(tiles, each))
    np.testing.assert_array_equal(
        host.token_counts(np.asarray(features.carry["grid"])), np.multiply(tiles, 9)
    )
    most = max(tiles)
    kept = [i * most + t for i, count in enumerate(tiles) for t in range(count)]
    blocks = np.asarray(jax.jit(host.apply_blocks)(host.params, inputs))
    assert len(blocks) == len(states) - 1 == 3
    for number, state in enumerate(states[1:]):
        assert error(blocks[number][kept], state.numpy()) < BLOCK, number


@pytest.mark.parametrize(("sizes", "lengths", "images"), PROMPTS.values(), ids=PROMPTS)
def test_logits_and_greedy_tokens(pair, sizes, lengths, images):
    model, host = pair
    inputs = _inputs(host, sizes)
    prompts = tiny.ids_with_images(lengths, images)
    features = host.tap(inputs)
    text = host.arrange(features, prompts, images)
    given = tiny.reference_text(text)
    with torch.inference_mode():
        want = model(**given, pixel_values=_packed(inputs))
        vision = model.model.get_image_features(_packed(inputs))
        edited = model(**given, mm_encoder_outputs={"image": vision})
    got = host.resume(features, prompts, images=images).logits
    assert error(got, want.logits[:, -1].numpy()) < END
    assert error(got, edited.logits[:, -1].numpy()) < END
    answers = host.generate(features, prompts, images=images, max_new_tokens=32, return_tokens=True)
    given["pixel_values"] = _packed(inputs)
    assert answers == _generate(model, given, text["ids"].shape[1])
    # The law of the seam, exactly.
    whole = host.forward(inputs, prompts, images=images).logits
    np.testing.assert_array_equal(np.asarray(got), np.asarray(whole))


def test_edited_tokens_act_as_in_the_reference(family):
    model, folder = family
    host = converters.load_host("internvl", folder)
    inputs = _inputs(host, [(84, 140)])
    prompts = tiny.ids_with_images([6], [1])
    features = host.tap(inputs)
    change = np.random.default_rng(7).normal(size=features.tokens.shape).astype(np.float32)
    given = tiny.reference_text(host.arrange(features, prompts))
    with torch.inference_mode():
        vision = model.model.get_image_features(_packed(inputs))
        plain = model(**given, mm_encoder_outputs={"image": vision}).logits[:, -1].numpy()
        tiles = torch.from_numpy(change[0]).reshape(vision.pooler_output.shape)
        vision.pooler_output = vision.pooler_output + tiles
        want = model(**given, mm_encoder_outputs={"image": vision}).logits[:, -1].numpy()
    got = host.resume(features.replace(tokens=features.tokens + change), prompts).logits
    assert error(got, want) < END
    assert error(got, plain) > 0.01


@pytest.mark.parametrize("size", EDGES, ids=lambda size: "x".join(map(str, size)))
def test_placeholders_are_as_many_as_the_towers_tokens(size, tmp_path):
    host = converters.load_host("internvl", tiny.save(tiny.build("internvl"), tmp_path))
    inputs = host.preprocess([tiny.picture(*size)])
    features = jax.eval_shape(host.apply_tap, host.params, inputs)
    count = features.tokens.shape[1]
    grid = np.array([[inputs["tiles"][0], 9]])
    assert host.token_counts(grid).tolist() == [count]
    text = host.arrange(features.replace(carry={"grid": grid}), [[1, tiny.IMAGE, 2]])
    assert (text["ids"] == tiny.IMAGE).sum() == (text["slots"] >= 0).sum() == count
    reference = transformers.GotOcr2ImageProcessorPil(
        size={"height": 84, "width": 84}, crop_to_patches=True
    )
    assert 9 * reference.get_number_of_image_patches(size[1], size[0]) == count
    # And one tile, the paper's way.
    one = host.at_size(84)
    assert one.spec.tap.tokens == 9
    assert one.preprocess([tiny.picture(*size)])["tiles"].tolist() == [1]


def _smooth(width: int, height: int) -> Image.Image:
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    waves = [np.sin(5 * x + 2 * y), np.cos(3 * y - 4 * x), np.sin(6 * x * y + 1)]
    return Image.fromarray((127 + 100 * np.stack(waves, -1)).astype(np.uint8))


# Grid of tiles (across, down) that an image of a size is stretched to, 448 a tile.
GRIDS = {
    (448, 448): (1, 1),
    (640, 480): (4, 3),
    (500, 375): (4, 3),
    (640, 427): (3, 2),
    (896, 896): (2, 2),
    (1024, 1024): (3, 3),
    (100, 1300): (1, 12),
}


@pytest.mark.parametrize(("size", "grid"), GRIDS.items(), ids=str)
def test_tiles_follow_the_written_formula(size, grid):
    """Stretched with Pillow's bicubic filter, cut row by row, the thumbnail last."""
    image, (across, down) = _smooth(*size), grid
    inputs = TiledImages(None, image_size=448)([image])
    wide = image.resize((448 * across, 448 * down), Image.Resampling.BICUBIC)
    want = [
        wide.crop((448 * c, 448 * r, 448 * c + 448, 448 * r + 448))
        for r in range(down)
        for c in range(across)
    ]
    if len(want) > 1:
        want.append(image.resize((448, 448), Image.Resampling.BICUBIC))
    assert inputs["tiles"].tolist() == [len(want)]
    mean, std = (np.array(DEFAULTS[k]) for k in ("image_mean", "image_std"))
    pixels = (np.stack([np.asarray(tile) for tile in want]) / 255 - mean) / std
    np.testing.assert_allclose(inputs["pixel_values"][0], pixels, atol=1e-5)


def test_tiles_are_torchs_antialiased_bicubic_within_rounding():
    """The reference's other backend resizes so; Pillow rounds to whole levels after each axis."""
    image = _smooth(1024, 700)
    inputs = TiledImages(None, image_size=448)([image])
    assert inputs["tiles"].tolist() == [7]
    source = torch.from_numpy(np.asarray(image).transpose(2, 0, 1).astype(np.float32))[None]
    wide = torch.nn.functional.interpolate(
        source, (896, 1344), mode="bicubic", antialias=True, align_corners=False
    )[0].numpy()
    mean, std = (np.array(DEFAULTS[k], np.float32) for k in ("image_mean", "image_std"))
    levels = (inputs["pixel_values"][0] * std + mean) * 255
    for number in range(6):
        row, column = divmod(number, 3)
        tile = wide[:, 448 * row : 448 * row + 448, 448 * column : 448 * column + 448]
        assert np.abs(levels[number] - tile.transpose(1, 2, 0)).max() < 1.5, number


@pytest.mark.parametrize("size", EDGES[:4], ids=lambda size: "x".join(map(str, size)))
def test_one_tile_is_max_patches_1(size, tmp_path):
    image = tiny.picture(*size)
    fixed = TiledImages(None, image_size=84).fixed(84)([image])
    single = TiledImages({"max_patches": 1}, image_size=84)([image])
    for inputs in (fixed, single):
        assert inputs["tiles"].tolist() == [1] and "real" not in inputs
    np.testing.assert_array_equal(fixed["pixel_values"], single["pixel_values"])
    # What we write, transformers reads back to the same tiles.
    ours = TiledImages(None, image_size=84)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(ours.hub_config))
    theirs = transformers.GotOcr2ImageProcessorPil.from_pretrained(tmp_path)([image])
    got = ours([image])["pixel_values"][0]
    np.testing.assert_array_equal(got.transpose(0, 3, 1, 2), np.stack(theirs["pixel_values"]))
    assert TiledImages(ours.hub_config, image_size=84).constants == ours.constants


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"size": {"height": 384, "width": 384}}, "the weights take"),
        ({"do_resize": False}, "do_resize is off"),
        ({"do_center_crop": True}, "do_center_crop is True"),
        ({"max_patches": 0}, "span no range"),
        ({"do_sharpen": True}, "does not know"),
    ],
)
def test_image_settings_that_do_not_fit_are_refused(config, match):
    with pytest.raises(FaultsError, match=match):
        TiledImages(config, image_size=448)


def test_image_markers_stand_around_the_placeholders(family):
    host = converters.load_host("internvl", family[1])
    word = {"convert_ids_to_tokens": lambda token: "<IMG_CONTEXT>"}
    template = "<|im_start|>user\n{}What?<|im_end|>\n<|im_start|>assistant\n"
    written = template.format("<IMG_CONTEXT>\n" * 2)
    for tokenizer in (
        SimpleNamespace(chat_template=None, **word),
        SimpleNamespace(
            chat_template="theirs", apply_chat_template=lambda *_, **__: written, **word
        ),
    ):
        host.tokenizer._tokenizer = tokenizer
        want = template.format("<img><IMG_CONTEXT></img>\n" * 2)
        assert host.tokenizer.text("What?", 2) == want


# The 4B model's sizes as its config.json has them in transformers' format.
PUBLISHED = {
    "model_type": "internvl",
    "image_token_id": 151671,
    "image_seq_length": 256,
    "downsample_ratio": 0.5,
    "projector_hidden_act": "gelu",
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "default",
    "vision_config": {
        "model_type": "internvl_vision",
        "attention_bias": True,
        "hidden_size": 1024,
        "image_size": [448, 448],
        "intermediate_size": 4096,
        "layer_scale_init_value": 0.1,
        "norm_type": "layer_norm",
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "patch_size": [14, 14],
        "use_qk_norm": False,
    },
    "text_config": {
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": 128,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "max_position_embeddings": 40960,
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "tie_word_embeddings": False,
        "vocab_size": 151936,
    },
}


def test_the_published_sizes():
    model = internvl.parse(PUBLISHED)
    _, faults = converters.audit.check(
        PUBLISHED, converters.load.FAMILIES["internvl"](model).sections
    )
    assert not faults
    assert not model.text.tied and model.text.theta == 1e6 and model.text.query_key_norm
    params = abstract_params(hosts.lookup("internvl").family, model, "bfloat16")
    # As many as transformers' model has.
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 4_732_489_216
    for tap, shape in (("post_projector", (256, 2560)), ("pre_projector", (1024, 1024))):
        host = hosts.bind(
            "internvl", PUBLISHED, params, hosts.UNHASHED, preprocessor=None, tokenizer=None,
            tap=tap,
        ).at_size(448)  # fmt: skip
        assert (host.spec.tap.tokens, host.spec.tap.dim) == shape


@pytest.mark.parametrize(
    ("section", "change", "match"),
    [
        ("vision_config", {"attention_bias": False}, "attention_bias"),
        ("vision_config", {"image_size": [70, 70]}, "does not divide"),
        ("vision_config", {"image_size": 112}, "image_seq_length is 9, a tile has 16"),
        ("text_config", {"model_type": "gpt_oss"}, "decoders of qwen3, qwen2"),
    ],
)
def test_settings_that_fit_no_model_are_refused(section, change, match):
    config = {"model_type": "internvl", **copy.deepcopy(tiny.INTERNVL)}
    internvl.parse(config)
    config[section] |= change
    with pytest.raises(UserError, match=match):
        internvl.parse(config)


def test_what_we_save_transformers_loads(family, tmp_path):
    model, folder = family
    host = converters.load_host("internvl", folder)
    converters.save_host(host, tmp_path)
    again, report = transformers.InternVLForConditionalGeneration.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report.values())
    for name, parameter in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], parameter), name
    again = converters.load_host("internvl", tmp_path)
    for a, b in zip(jax.tree.leaves(host.params), jax.tree.leaves(again.params), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
