"""Qwen3-VL against transformers, through the real loader: tower, streams, logits, greedy tokens."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from support import vision_language as tiny
from support.references import BLOCK, END, error

import converters

TESTS = Path(__file__).resolve().parent.parent
# Images of a call as (width, height); odd sizes are rounded to whole blocks of 32 pixels.
SIZES = {
    "square": [(64, 64)],
    "odd": [(100, 61)],
    "three": [(64, 64), (33, 200), (130, 70)],
}
PREPROCESSOR = {"min_pixels": 32 * 32, "max_pixels": 160 * 160}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3_vl")
    model = tiny.build("qwen3_vl")
    host = converters.load_host("qwen3_vl", tiny.save(model, folder))
    return model, host


def _inputs(host, sizes):
    small = copy.copy(host.preprocessor)
    small.constants = {
        **small.constants,
        "size": {"shortest_edge": 32 * 32, "longest_edge": 160 * 160},
    }
    host.preprocessor = small
    return host.preprocess([tiny.picture(w, h, seed) for seed, (w, h) in enumerate(sizes)])


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_tower_and_streams(pair, sizes):
    model, host = pair
    inputs = _inputs(host, sizes)
    pixels, grid = tiny.packed(inputs)
    with torch.inference_mode():
        want = model.model.get_image_features(pixels, grid)
        states = model.model.visual(pixels, grid_thw=grid, output_hidden_states=True).hidden_states
    features = host.tap(inputs)
    counts = np.prod(np.asarray(features.carry["grid"]), axis=-1)
    for image, reference in enumerate(want.pooler_output):
        assert error(features.tokens[image, : counts[image]], reference.numpy()) < END
        for k, stream in enumerate(want.deepstack_features):
            got = features.carry[f"deepstack_{k}"][image, : counts[image]]
            assert error(got, stream[image].numpy()) < END
    assert (features.mask is None) == (len(set(counts.tolist())) == 1)
    blocks = jax.jit(host.apply_blocks)(host.params, inputs)
    offsets = np.cumsum([0, *(counts * 4)])
    for number, state in enumerate(states[1:]):
        for image in range(len(counts)):
            reference = state[offsets[image] : offsets[image + 1]].numpy()
            assert error(blocks[number, image, : counts[image] * 4], reference) < BLOCK, number


@pytest.mark.parametrize(
    ("sizes", "lengths", "images"),
    [
        ([(64, 64)], [5], [1]),
        ([(100, 61), (64, 64), (33, 200), (130, 70)], [5, 17, 2, 9], [1, 1, 1, 1]),
        ([(64, 64), (33, 200), (130, 70), (70, 70)], [4, 9], [3, 1]),
    ],
    ids=["one", "four unequal", "three in a prompt"],
)
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
        tokens = model.generate(
            **given, pixel_values=pixels, do_sample=False, max_new_tokens=32, pad_token_id=0,
            eos_token_id=None,
        )[:, text["ids"].shape[1] :]  # fmt: skip
    got = host.resume(features, prompts, images=images).logits
    assert error(got, want.logits[:, -1].numpy()) < END
    assert error(got, edited.logits[:, -1].numpy()) < END
    answers = host.generate(features, prompts, images=images, max_new_tokens=32, return_tokens=True)
    assert answers == tokens.tolist()
    # The law of the seam, exactly.
    whole = host.forward(inputs, prompts, images=images).logits
    np.testing.assert_array_equal(np.asarray(got), np.asarray(whole))


@pytest.mark.slow
def test_true_width(tmp_path):
    """Widths, heads and vocabulary of the 4B model, two layers each side, at 448 pixels."""
    model = tiny.build("qwen3_vl", tiny.QWEN3_TRUE_WIDTH, std=0.02)
    host = converters.load_host("qwen3_vl", tiny.save(model, tmp_path))
    inputs = host.preprocess([tiny.picture(448, 448)])
    pixels, grid = tiny.packed(inputs)
    features = host.tap(inputs)
    assert features.tokens.shape == (1, 196, 2560)
    prompts = tiny.ids_with_images([9], [1])
    given = tiny.reference_text(host.arrange(features, prompts, [1]), grid)
    with torch.inference_mode():
        vision = model.model.get_image_features(pixels, grid)
        want = model(**given, pixel_values=pixels)
        tokens = model.generate(
            **given, pixel_values=pixels, do_sample=False, max_new_tokens=8, pad_token_id=0,
            eos_token_id=None,
        )[:, given["input_ids"].shape[1] :]  # fmt: skip
    assert error(features.tokens[0], vision.pooler_output[0].numpy()) < END
    assert error(host.resume(features, prompts).logits, want.logits[:, -1].numpy()) < END
    answers = host.generate(features, prompts, max_new_tokens=8, return_tokens=True)
    assert answers == tokens.tolist()


@pytest.mark.slow
def test_weights_may_lie_on_a_mesh(tmp_path):
    """Sharded over the model axis of four devices, the host answers as on one."""
    folder = tiny.save(tiny.build("qwen3_vl"), tmp_path / "weights")
    script = (
        "import json, sys; sys.path.insert(0, sys.argv[2])\n"
        "import jax, numpy as np; from jax.sharding import AxisType\n"
        "import converters; from support import vision_language as tiny\n"
        "mesh = jax.make_mesh((1, 4), ('data', 'model'), axis_types=(AxisType.Auto,) * 2)\n"
        "prompts = tiny.ids_with_images([5, 9], [1, 1])\n"
        "found = []\n"
        "for given in (None, mesh):\n"
        "    host = converters.load_host('qwen3_vl', sys.argv[1], mesh=given)\n"
        "    features = host.tap(host.preprocess([tiny.picture(64, 64, k) for k in range(2)]))\n"
        "    found.append((np.asarray(host.resume(features, prompts).logits),\n"
        "        host.generate(features, prompts, max_new_tokens=8, return_tokens=True)))\n"
        "split = [a for a in jax.tree.leaves(host.params) if not a.is_fully_replicated]\n"
        "(a, s), (b, t) = found\n"
        "print(json.dumps([len(split), float(np.abs(a - b).max() / np.abs(a).max()), s == t]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder), str(TESTS)],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        },
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    split, difference, same = json.loads(done.stdout.splitlines()[-1])
    assert split > 0 and difference < END and same
