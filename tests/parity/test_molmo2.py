"""Molmo2 against transformers, through the real loader: crops, tower, taps, logits, tokens."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from PIL import Image
from safetensors.numpy import load_file, save_file
from support import molmo2 as tiny
from support.references import BLOCK, END, error
from support.vision_language import picture
from transformers import Molmo2Processor

import converters
from converters import audit
from converters.leaves import flatten
from converters.molmo2 import family
from converters.rules import plan
from trace_jax.errors import FaultsError
from trace_jax.hosts import decoding, molmo2
from trace_jax.hosts.base import abstract_params
from trace_jax.hosts.decoding import GreedySettings
from trace_jax.hosts.molmo2_images import Molmo2Images, bilinear
from trace_jax.nn.blocks import collect_blocks

# Sizes of pictures, and of prompts the lengths and how many pictures each has.
CALLS = {
    "one": ([(70, 70)], [5], [1]),
    "odd": ([(100, 61)], [3], [1]),
    "four unequal": ([(100, 61), (70, 70), (29, 140), (90, 43)], [5, 17, 2, 9], [1, 1, 1, 1]),
    "three in a prompt": ([(70, 70), (33, 200), (90, 43), (71, 71)], [4, 9], [3, 1]),
}
# config.json of allenai/Molmo2-4B.
PUBLISHED = {
    "adapter_config": {
        "attention_dropout": 0.0, "attn_implementation": "sdpa", "float32_attention": True,
        "head_dim": 72, "hidden_act": "silu", "hidden_size": 1152, "image_feature_dropout": 0.0,
        "initializer_range": 0.02, "intermediate_size": 9728, "model_type": "molmo2",
        "num_attention_heads": 16, "num_key_value_heads": 16, "pooling_attention_mask": True,
        "residual_dropout": 0.0, "text_hidden_size": 2560, "vit_layers": [-3, -9],
    },
    "architectures": ["Molmo2ForConditionalGeneration"],
    "auto_map": {"AutoConfig": "configuration_molmo2.Molmo2Config"},
    "dtype": "float32",
    "frame_end_token_id": 151944,
    "frame_start_token_id": 151943,
    "image_col_id": 151939,
    "image_end_token_id": 151937,
    "image_high_res_id": 151938,
    "image_low_res_id": 151942,
    "image_patch_id": 151938,
    "image_start_token_id": 151936,
    "initializer_range": 0.02,
    "low_res_image_start_token_id": 151940,
    "model_type": "molmo2",
    "text_config": {
        "additional_vocab_size": 128, "attention_dropout": 0.0, "attn_implementation": "sdpa",
        "embedding_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560,
        "initializer_range": 0.02, "intermediate_size": 9728, "layer_norm_eps": 1e-06,
        "max_position_embeddings": 36864, "model_type": "molmo2_text", "norm_after": False,
        "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
        "qk_norm_type": "qwen3", "qkv_bias": False, "residual_dropout": 0.0, "rope_scaling": None,
        "rope_scaling_layers": None, "rope_theta": 5000000.0, "use_cache": True,
        "use_qk_norm": True, "vocab_size": 151936,
    },
    "tie_word_embeddings": False,
    "transformers_version": "4.57.1",
    "use_cache": True,
    "use_frame_special_tokens": False,
    "vit_config": {
        "attention_dropout": 0.0, "attn_implementation": "sdpa", "float32_attention": True,
        "head_dim": 72, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1152,
        "image_default_input_size": [378, 378], "image_num_pos": 729, "image_patch_size": 14,
        "initializer_range": 0.02, "intermediate_size": 4304, "layer_norm_eps": 1e-06,
        "model_type": "molmo2", "num_attention_heads": 16, "num_hidden_layers": 27,
        "num_key_value_heads": 16, "residual_dropout": 0.0,
    },
}  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(0, id="seed 0"),
        pytest.param(1, id="seed 1", marks=pytest.mark.slow),
    ],
)
def pair(request, tmp_path_factory):
    model = tiny.build(request.param)
    folder = tiny.save(model, tmp_path_factory.mktemp("molmo2"))
    return model, converters.load_host("molmo2", folder), folder


def _pictures(sizes):
    return [picture(w, h, seed) for seed, (w, h) in enumerate(sizes)]


# ---- pixels


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((1, 1), (70, 70)),
        ((37, 300), (378, 344)),
        ((200, 377), (444, 210)),
        ((448, 448), (644, 644)),
    ],
)
def test_bilinear_is_torchs_without_antialiasing(old, new):
    image = np.asarray(picture(old[1], old[0]))
    whole = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float()
    want = torch.nn.functional.interpolate(whole, size=new, mode="bilinear", align_corners=False)
    want = want[0].permute(1, 2, 0).numpy()
    got = bilinear(image, *new)
    # A CPU without fused multiply-adds may differ in the last bit of 255, never more.
    np.testing.assert_allclose(got, want, rtol=0, atol=4e-5)
    assert got.dtype == np.float32


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        (None, [(448, 448), (378, 378), (1, 1), (336, 337)]),
        (None, [(1000, 20), (20, 1000), (900, 700)]),
        (tiny.PROCESSOR, [(100, 61), (70, 70), (33, 200), (28, 90), (500, 300)]),
        ({**tiny.PROCESSOR, "pooling_size": [3, 2], "overlap_margins": [0, 2]}, [(100, 161)]),
    ],
    ids=["published", "published, narrow and large", "tiny", "other pooling and margins"],
)
def test_crops_and_pooling_equal_the_reference(settings, sizes):
    images = _pictures(sizes)
    crop = (settings or {"size": {"height": 378}})["size"]["height"]
    inputs = Molmo2Images(settings, crop=crop, patch=14)(images)
    want, got = tiny.reference_processor(settings)(images), tiny.packed(inputs)
    assert tiny.crop_counts(inputs) == want["image_num_crops"].tolist()
    np.testing.assert_array_equal(got["image_grids"], want["image_grids"])
    np.testing.assert_array_equal(got["image_token_pooling"], want["image_token_pooling"])
    # Where rounding to bytes falls the other way, a pixel is one level (2 / 255) off.
    difference = np.abs(got["pixel_values"].numpy() - want["pixel_values"].numpy())
    assert (difference > 1e-6).mean() < 1e-5 and difference.max() < 0.0079


@pytest.mark.parametrize(
    ("size", "grid", "crops"),
    [
        ((1, 1), (14, 14, 14, 14), 2),
        ((1000, 20), (14, 14, 14, 14), 2),
        ((20, 1000), (14, 14, 14, 14), 2),
        ((336, 337), (14, 14, 14, 14), 2),
        ((378, 378), (14, 14, 14, 14), 2),
        ((448, 448), (14, 14, 23, 23), 5),
        ((4000, 3000), (14, 14, 23, 33), 7),
    ],
)
def test_placeholders_are_as_many_as_the_towers_tokens(pair, size, grid, crops):
    _, tiny_host, _ = pair
    images = Molmo2Images(None, crop=378, patch=14)
    assert images.grid(size[1], size[0]) == grid
    inputs = images([Image.new("RGB", size, (90, 20, 200))])
    assert tuple(inputs["grid"][0]) == grid
    assert inputs["crops"].shape == (1, crops, 729, 588)
    count = int(tiny_host.token_counts(inputs["grid"])[0])
    assert inputs["pooling"].shape == (1, count, 4)
    assert (inputs["pooling"] >= 0).any(axis=-1).all()
    words = tiny_host.image_words(inputs["grid"][0])
    assert int((words == tiny.PATCH).sum()) == count
    if size == (448, 448):
        assert count == 725 and len(words) == 752


def test_the_image_words_equal_the_references_processor(pair):
    """The processor's own method, on a tokenizer that maps its words to our ids."""
    _, host, _ = pair
    ids = {
        "<im_start>": tiny.START, "<im_end>": tiny.STOP, "<im_patch>": tiny.PATCH,
        "<im_col>": tiny.COLUMN, "<low_res_im_start>": tiny.LOW_START,
    }  # fmt: skip
    settings = SimpleNamespace(
        image_use_col_tokens=True, use_single_crop_col_tokens=False,
        use_single_crop_start_token=True,
    )  # fmt: skip
    for grid in ([3, 3, 3, 4], [2, 3, 9, 1]):
        words = Molmo2Processor.replace_image_token(settings, {"image_grids": [grid]}, 0)
        want = [ids[f"<{word}>"] for word in words[1:-1].split("><")]
        assert host.image_words(np.asarray(grid)).tolist() == want


# ---- the model


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_tower_and_taps(pair, call):
    model, host, folder = pair
    before = converters.load_host("molmo2", folder, tap="pre_projector")
    inputs = host.preprocess(_pictures(call[0]))
    given = tiny.packed(inputs)
    pooled = []
    hook = model.model.multi_modal_projector.image_projector.register_forward_hook(
        lambda module, inputs, output: pooled.append(inputs[0])
    )
    with torch.inference_mode():
        want = model.model.get_image_features(**given)
        states = model.model.vision_tower(given["pixel_values"], output_hidden_states=True)
    hook.remove()
    tower = host._merge(host.params).vision
    crops = given["pixel_values"].numpy()
    blocks = jax.jit(lambda x: collect_blocks(tower.blocks, tower.embed(x)))(crops)
    assert len(blocks) == len(states.hidden_states) - 1 == 4
    for number, state in enumerate(states.hidden_states[1:]):
        assert error(blocks[number], state.numpy()) < BLOCK, number
    features, narrow = host.tap(inputs), before.tap(inputs)
    counts = host.token_counts(inputs["grid"]).tolist()
    parts = torch.split(pooled[0], counts)
    for image, reference in enumerate(want.pooler_output):
        assert error(features.tokens[image, : counts[image]], reference.numpy()) < END
        assert error(narrow.tokens[image, : counts[image]], parts[image].numpy()) < END
        if features.mask is not None:
            assert int(features.mask[image].sum()) == counts[image]
    assert (features.mask is None) == (len(set(counts)) == 1)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_logits_and_greedy_tokens(pair, call):
    model, host, folder = pair
    sizes, lengths, images = call
    inputs = host.preprocess(_pictures(sizes))
    features = host.tap(inputs)
    prompts = tiny.prompts_of(lengths, images)
    text = host.arrange(features, prompts, images)
    given, pixels = tiny.reference_text(text), tiny.packed(inputs)
    with torch.inference_mode():
        want = model(**given, **pixels).logits[:, -1].numpy()
        causal = {k: v for k, v in given.items() if k != "mm_token_type_ids"}
        other = model(**causal, **pixels).logits[:, -1].numpy()
        answers = model.generate(
            **given, **pixels, do_sample=False, max_new_tokens=32, pad_token_id=0,
            eos_token_id=None,
        )[:, text["ids"].shape[1] :]  # fmt: skip
        # What a recoverer does, on the reference's side: features changed, then put back.
        vision = model.model.get_image_features(**pixels)
        vision.pooler_output = tuple(1.5 * part + 0.1 for part in vision.pooler_output)
        edited = model(**given, mm_encoder_outputs={"image": vision}).logits[:, -1].numpy()
    got = host.resume(features, prompts, images=images).logits
    assert error(got, want) < END
    assert error(got, other) > 1e-3  # image tokens see each other
    changed = features.replace(tokens=1.5 * features.tokens + 0.1)
    assert error(host.resume(changed, prompts, images=images).logits, edited) < END
    said = host.generate(features, prompts, images=images, max_new_tokens=32, return_tokens=True)
    assert said == answers.tolist()
    # The law of the seam, exactly, at both taps.
    before = converters.load_host("molmo2", folder, tap="pre_projector")
    for bound in (host, before):
        whole = bound.forward(inputs, prompts, images=images).logits
        resumed = bound.resume(bound.tap(inputs), prompts, images=images).logits
        np.testing.assert_array_equal(np.asarray(whole), np.asarray(resumed))
        assert error(whole, want) < END


def test_pictures_of_one_size_give_as_many_tokens(pair):
    _, host, _ = pair
    fixed = host.at_size(120)
    inputs = fixed.preprocess(_pictures([(100, 61), (29, 140)]))
    features = fixed.tap(inputs)
    assert features.mask is None and fixed.spec.tap.tokens == features.tokens.shape[1]
    assert fixed.token_counts(inputs["grid"]).tolist() == [fixed.spec.tap.tokens] * 2
    assert fixed.spec.preprocessing["image_size"] == 120


def test_prompts_without_images_are_plainly_causal(pair):
    model, host, _ = pair
    prompts = tiny.prompts_of([6, 11], [0, 0])
    text = host.arrange(None, prompts)
    with torch.inference_mode():
        given = tiny.reference_text(text)
        want = model(**given).logits[:, -1].numpy()
    assert error(host.resume(None, prompts).logits, want) < END


def test_the_first_token_of_a_prompt_does_not_end_the_answer(pair, tmp_path):
    """A prompt begins with the id that ends answers; only what is said is searched for it."""
    model, host, folder = pair
    features = host.tap(host.preprocess(_pictures([(70, 70)])))
    prompts = tiny.prompts_of([5], [1])
    plain = host.generate(features, prompts, return_tokens=True)[0]
    stop = plain[-1]
    settings = json.loads((folder / "generation_config.json").read_text())
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({**settings, "bos_token_id": stop, "eos_token_id": stop}))
    ending = converters.load_host("molmo2", tmp_path)
    started = [[stop, *prompts[0]]]
    whole = host.generate(features, started, return_tokens=True)[0]
    said = ending.generate(features, started, return_tokens=True)[0]
    assert said == decoding.unpadded(np.asarray([whole]), GreedySettings(32, (stop,), 0))[0]
    assert len(said) >= 1 and stop not in said[:-1]


def test_words_around_a_question():
    one = molmo2.written_prompt("What is it?", 1)
    assert one == "<|image|><|im_start|>user\nWhat is it?<|im_end|>\n<|im_start|>assistant\n"
    two = molmo2.written_prompt("Which?", 2)
    assert two.startswith("Image 1<|image|>Image 2<|image|><|im_start|>user\nWhich?")
    chat = molmo2.Molmo2Chat(None, image_token=5, written=molmo2.written_prompt, vocabulary=9)
    chat._tokenizer = SimpleNamespace(
        chat_template=None, bos_token=None, eos_token="<|im_end|>", pad_token_id=0
    )
    assert chat.text("What is it?", 1) == "<|im_end|>" + one


# ---- weights


def test_the_published_config_and_its_parameters():
    model = molmo2.parse(PUBLISHED)
    assert model.adapter.layers == (24, 18) and model.vision.depth == 25
    assert model.image_token == 151941 and model.text.head_rows == 151936
    leaves = flatten(abstract_params(molmo2.Molmo2, model, "bfloat16"))
    # total_parameters of the published index.
    assert sum(int(np.prod(leaf.shape)) for leaf in leaves.values()) == 4_850_869_200
    described = family(model)
    assert not audit.check(PUBLISHED, described.sections)[1]
    # Blocks that config.json declares and nothing reads are left aside where a file has them.
    shapes = {path: leaf.shape for path, leaf in leaves.items()}
    pieces = {path: described.rules[path].pieces(shape) for path, shape in shapes.items()}
    sources = {
        piece.key: piece.source_shape(shapes[path]) for path, ps in pieces.items() for piece in ps
    }
    extra = "model.vision_backbone.image_vit.transformer.resblocks.26.ffn_norm.weight"
    _, skipped, faults = plan(
        shapes, described.rules, {**sources, extra: (1152,)}, described.ignored
    )
    assert not faults and list(skipped) == [extra]
    assert sources["model.transformer.blocks.0.self_attn.att_proj.weight"] == (6144, 2560)
    assert sources["model.transformer.wte.new_embedding"] == (128, 2560)


def test_saving_gives_the_published_layout_back(pair, tmp_path):
    _, host, folder = pair
    converters.save_host(host, tmp_path / "saved")
    got, want = (load_file(f / "model.safetensors") for f in (tmp_path / "saved", folder))
    assert set(got) == set(want)
    for key, value in want.items():
        np.testing.assert_array_equal(got[key], value, err_msg=key)
    again = converters.load_host("molmo2", tmp_path / "saved")
    for path, leaf in flatten(again.params).items():
        np.testing.assert_array_equal(leaf, flatten(host.params)[path], err_msg=path)


def test_layers_count_from_the_last_block_too(tmp_path):
    changes = {
        "adapter_config": {**tiny.CONFIG["adapter_config"], "vision_feature_layer": [-2, -4]}
    }
    model = tiny.build(3, changes)
    host = converters.load_host("molmo2", tiny.save(model, tmp_path))
    assert host.model.adapter.layers == (2, 0) and host.model.vision.depth == 3
    inputs = host.preprocess(_pictures([(100, 61)]))
    with torch.inference_mode():
        want = model.model.get_image_features(**tiny.packed(inputs)).pooler_output[0]
    assert error(host.tap(inputs).tokens[0], want.numpy()) < END


def test_the_table_cut_in_halves_is_the_same_table(pair, tmp_path):
    """transformers 5.24 writes two equal halves where the published files have head rows, extra."""
    _, host, folder = pair
    shutil.copytree(folder, tmp_path / "halves")
    tensors = load_file(tmp_path / "halves" / "model.safetensors")
    keys = [f"model.transformer.wte.{name}" for name in ("embedding", "new_embedding")]
    table = np.concatenate([tensors[key] for key in keys])
    half = len(table) // 2
    tensors |= {keys[0]: table[:half].copy(), keys[1]: table[half:].copy()}
    save_file(tensors, tmp_path / "halves" / "model.safetensors")
    again = converters.load_host("molmo2", tmp_path / "halves")
    np.testing.assert_array_equal(
        np.asarray(again.params["text"]["tokens"]["table"]),
        np.asarray(host.params["text"]["tokens"]["table"]),
    )
    tensors[keys[1]] = table[half + 1 :].copy()
    save_file(tensors, tmp_path / "halves" / "model.safetensors")
    with pytest.raises(FaultsError, match="new_embedding|wte.embedding"):
        converters.load_host("molmo2", tmp_path / "halves")
