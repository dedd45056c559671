"""LLaVA-OneVision-1.5 against vectors of lmms-lab's own code and against transformers' parts."""

from __future__ import annotations

import copy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from PIL import Image
from safetensors.numpy import load_file
from support import rice
from support.references import BLOCK, END, error
from support.vision_language import ids_with_images, picture

import converters
from converters.leaves import flatten
from converters.llava_onevision import family
from converters.rules import plan
from trace_jax.hosts import llava_onevision
from trace_jax.hosts.base import abstract_params

# Made by the published modeling_llavaonevision1_5.py; the README there names commit and tensors.
GOLDEN = Path(__file__).parents[1] / "goldens" / "llava_onevision_1_5"
SEEDS = (
    pytest.param(0, id="seed 0"),
    pytest.param(1, id="seed 1", marks=pytest.mark.slow),
)
# Sizes of pictures, and of prompts the lengths and how many pictures each has.
CALLS = {
    "one": ([(56, 56)], [5], [1]),
    "odd": ([(100, 61)], [3], [1]),
    "four unequal": ([(100, 61), (56, 56), (29, 140), (90, 43)], [5, 17, 2, 9], [1, 1, 1, 1]),
    "three in a prompt": ([(56, 56), (29, 140), (90, 43), (70, 71)], [4, 9], [3, 1]),
}


@pytest.fixture(scope="module", params=SEEDS)
def pair(request, tmp_path_factory):
    model = rice.Reference(request.param)
    folder = model.save(tmp_path_factory.mktemp("rice"))
    host = _small(converters.load_host("llava_onevision", folder))
    return model, host, folder


def _small(host):
    """The host, its pictures at most 140 x 140 pixels large: the tests stay quick."""
    images = copy.copy(host.preprocessor)
    areas = {"shortest_edge": 28 * 28, "longest_edge": 140 * 140}
    images.constants = {**images.constants, "size": areas}
    host.preprocessor = images
    return host


def _pictures(sizes):
    return [picture(w, h, seed) for seed, (w, h) in enumerate(sizes)]


def _reference_images(model, inputs):
    counts = np.prod(inputs["grid"], axis=-1)
    return [
        model.vision(patches[:count], grid)
        for patches, count, grid in zip(inputs["patches"], counts, inputs["grid"], strict=True)
    ]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_tower_and_taps(pair, call):
    model, host, folder = pair
    before = _small(converters.load_host("llava_onevision", folder, tap="pre_merger"))
    inputs = host.preprocess(_pictures(call[0]))
    with torch.inference_mode():
        want = _reference_images(model, inputs)
    blocks = jax.jit(host.apply_blocks)(host.params, inputs)
    merged, patches = host.tap(inputs), before.tap(inputs)
    for image, (states, tokens) in enumerate(want):
        count = len(tokens)
        for number, state in enumerate(states[1:]):
            got = blocks[number, image, : 4 * count + 1]
            assert error(got, state.numpy()) < BLOCK, number
        assert error(patches.tokens[image, : 4 * count], states[-1][1:].numpy()) < END
        assert error(merged.tokens[image, :count], tokens.numpy()) < END
        assert tuple(merged.carry["grid"][image]) == tuple(inputs["grid"][image] // 2)
        if merged.mask is not None:
            assert int(merged.mask[image].sum()) == count
            assert int(patches.mask[image].sum()) == 4 * count
    assert (merged.mask is None) == (len({len(tokens) for _, tokens in want}) == 1)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_logits_and_greedy_tokens(pair, call):
    model, host, folder = pair
    sizes, lengths, images = call
    prompts = ids_with_images(lengths, images)
    inputs = host.preprocess(_pictures(sizes))
    features = host.tap(inputs)
    text = host.arrange(features, prompts, images)
    ids, real = (torch.from_numpy(text[key]).long() for key in ("ids", "real"))
    with torch.inference_mode():
        tokens = [tokens for _, tokens in _reference_images(model, inputs)]
        given = {"inputs_embeds": model.embedded(ids, tokens), "attention_mask": real}
        want = model.text(**given).logits[:, -1].numpy()
        answers = model.text.generate(
            **given, do_sample=False, max_new_tokens=32, pad_token_id=0, eos_token_id=None
        )
    got = host.resume(features, prompts, images=images).logits
    assert error(got, want) < END
    said = host.generate(features, prompts, images=images, max_new_tokens=32, return_tokens=True)
    assert said == answers.tolist()
    # The law of the seam, exactly, at both taps.
    before = _small(converters.load_host("llava_onevision", folder, tap="pre_merger"))
    for bound in (host, before):
        whole = bound.forward(inputs, prompts, images=images).logits
        resumed = bound.resume(bound.tap(inputs), prompts, images=images).logits
        np.testing.assert_array_equal(np.asarray(whole), np.asarray(resumed))
        assert error(whole, want) < END


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        ((1, 1), (2, 2)),
        ((1000, 20), (1, 36)),
        ((20, 1000), (36, 1)),
        ((336, 337), (12, 12)),
        ((448, 448), (16, 16)),
        ((4000, 3000), (49, 65)),
    ],
)
def test_placeholders_are_as_many_as_the_towers_tokens(pair, size, grid):
    model, _, folder = pair
    host = converters.load_host("llava_onevision", folder)
    inputs = host.preprocess([Image.new("RGB", size, (90, 20, 200))])
    shapes = jax.eval_shape(host.apply_tap, host.params, inputs)
    assert tuple(inputs["grid"][0] // 2) == grid
    features = shapes.replace(carry={"grid": inputs["grid"] // 2})
    text = host.arrange(features, [[1, rice.IMAGE, 2]])
    assert int((text["ids"] == rice.IMAGE).sum()) == shapes.tokens.shape[1] == grid[0] * grid[1]


def test_448_pixels_give_256_tokens(pair):
    _, _, folder = pair
    for tap, tokens in (("post_merger", 256), ("pre_merger", 1024)):
        host = converters.load_host("llava_onevision", folder, tap=tap)
        assert host.at_size(host.default_size).spec.tap.tokens == tokens


def test_names_of_the_module_tree_are_read_too(pair, tmp_path):
    model, host, folder = pair
    other = converters.load_host("llava_onevision", model.save(tmp_path, nested=True))
    for path, leaf in flatten(other.params).items():
        np.testing.assert_array_equal(leaf, flatten(host.params)[path], err_msg=path)


def test_saving_gives_the_published_layout_back(pair, tmp_path):
    _, host, folder = pair
    converters.save_host(host, tmp_path / "saved")
    got, want = (load_file(f / "model.safetensors") for f in (tmp_path / "saved", folder))
    assert set(got) == set(want)
    for key, value in want.items():
        np.testing.assert_array_equal(got[key], value, err_msg=key)


def test_published_names_and_shapes_of_the_4b_model_fill_every_leaf():
    config = {
        "model_type": "llavaonevision1_5",
        "vision_config": {},
        "text_config": {
            "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728,
            "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "rope_theta": 5e6,
        },
    }  # fmt: skip
    model = llava_onevision.parse(config)
    leaves = flatten(abstract_params(llava_onevision.LlavaOnevision, model, "bfloat16"))
    rows = [line.split("\t") for line in (GOLDEN / "official_keys_4b.tsv").read_text().splitlines()]
    sources = {key: tuple(int(n) for n in shape.split("x")) for key, shape in rows}
    shapes = {path: leaf.shape for path, leaf in leaves.items()}
    _, ignored, faults = plan(shapes, family(model).rules, sources, {})
    assert not faults and not ignored
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 4_741_610_528


# ---- vectors of the published code


@pytest.fixture(scope="module")
def golden():
    host = converters.load_host("llava_onevision", GOLDEN)
    vectors = load_file(GOLDEN / "io.safetensors")
    pictures = [Image.fromarray(vectors[f"image{k}.uint8"].astype(np.uint8)) for k in (0, 1)]
    return host, vectors, host.preprocess(pictures)


def _golden_prompts(vectors, name):
    rows = zip(vectors[f"{name}.input_ids"], vectors[f"{name}.attention_mask"], strict=True)
    return [ids[mask > 0].astype(int).tolist() for ids, mask in rows]


def test_golden_pixels_and_tower(golden):
    host, vectors, inputs = golden
    np.testing.assert_array_equal(inputs["patches"][0], vectors["image0.pixel_values"])
    tower = host._merge(host.params).vision
    first = tower.embed(jnp.asarray(inputs["patches"]))[0]
    assert error(first, vectors["image0.pre_layernorm"]) < BLOCK
    angles = tower.angles(inputs["rows"], inputs["columns"])[0]
    assert error(angles[1:], vectors["image0.rope_angles"]) < 1e-6
    blocks = host.apply_blocks(host.params, inputs)
    assert error(blocks[0, 0], vectors["image0.block0"]) < BLOCK
    tokens = host.tap(inputs).tokens
    for image in (0, 1):
        assert error(blocks[-1, image, 1:], vectors[f"image{image}.pre_merger"]) < END
        assert error(tokens[image], vectors[f"image{image}.post_merger"]) < END


def test_golden_logits_and_greedy_tokens(golden):
    host, vectors, inputs = golden
    features = host.tap(inputs)
    prompts = _golden_prompts(vectors, "two")
    got = host.resume(features, prompts).logits
    assert error(got, vectors["two.per_image.logits"][:, -1]) < END
    want = vectors["two.per_image.greedy"].astype(int).tolist()
    assert host.generate(features, prompts, max_new_tokens=8, return_tokens=True) == want
    first = host.tap({key: value[:1] for key, value in inputs.items()})
    got = host.resume(first, prompts[:1]).logits
    assert error(got, vectors["one.logits"][:, -1]) < END
    want = vectors["one.greedy"].astype(int).tolist()
    assert host.generate(first, prompts[:1], max_new_tokens=8, return_tokens=True) == want


def test_several_images_are_right_where_the_published_packed_call_is_not(golden):
    """The published tower, given both images at once, drops a patch of the second instead of its
    class token; every image after the first comes out shifted. Ours equals each image alone.
    """
    host, vectors, inputs = golden
    tokens = np.asarray(host.tap(inputs).tokens)
    packed = vectors["packed.post_merger"].reshape(tokens.shape)
    assert error(tokens[0], packed[0]) < END
    assert error(tokens[1], vectors["image1.post_merger"]) < END
    assert error(tokens[1], packed[1]) > 0.1
    # Their second image: the class token and all patches but the last, through our merger.
    states = host.apply_blocks(host.params, inputs)[-1]
    shifted = host._merge(host.params).vision.merger(states[1:, :-1])
    assert error(shifted[0], packed[1]) < END
    official = vectors["two.official.greedy"].astype(int).tolist()
    prompts = _golden_prompts(vectors, "two")
    assert (
        host.generate(host.tap(inputs), prompts, max_new_tokens=8, return_tokens=True) != official
    )
