"""CLIP and SigLIP2 against transformers, through the real loader, block by block and whole."""

from __future__ import annotations

import jax
import numpy as np
import pytest

pytest.importorskip("torch")
from support import encoders, references

import converters

HIDDEN = dict(hidden_size=48, intermediate_size=80, num_attention_heads=6)
ODD = {
    # Towers of different widths, exact gelu, a 3x3 grid, other epsilons, legacy end of text.
    "clip": {
        "projection_dim": 24,
        "vision_config": {**HIDDEN, "num_hidden_layers": 4, "image_size": 24, "patch_size": 8},
        "text_config": {
            **encoders.CONFIGS["clip"]["text_config"],
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-3,
            "eos_token_id": 2,
        },
    },
    "siglip2": {
        "vision_config": {**HIDDEN, "num_hidden_layers": 4, "image_size": 24, "patch_size": 8},
        "text_config": {
            **encoders.CONFIGS["siglip2"]["text_config"],
            "projection_size": 48,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-3,
        },
    },
}
FULL = {
    "clip": {
        "projection_dim": 768,
        "vision_config": {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "patch_size": 14,
        },
        "text_config": {
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_attention_heads": 12,
            "eos_token_id": 2,
        },
    },
    "siglip2": {"vision_config": {}, "text_config": {"vocab_size": 256000}},
}


def _texts(host, count: int) -> np.ndarray:
    """Random ids whose end-of-text (99, or the largest id) lies at a different place each."""
    model = host.model
    rng = np.random.default_rng(1)
    ids = rng.integers(3, min(99, model.vocabulary - 1), (count, model.context)).astype(np.int32)
    end = getattr(model, "end_of_text", None)
    last = model.vocabulary - 1 if end is None else end
    for row, at in enumerate(rng.integers(3, model.context, count)):
        ids[row, at:] = last  # CLIP pads with the end token
    return ids


def _compare(name: str, config: dict, std: float, folder, batch: int, texts: int) -> dict:
    reference = references.build(name, config, std)
    host = converters.load_host(name, references.save(reference, folder))
    inputs = encoders.pixels(host, batch)
    ids = {"input_ids": _texts(host, texts)}
    want = references.run(reference, inputs["pixel_values"], ids["input_ids"])
    del reference
    blocks = jax.jit(host.apply_blocks)
    features = host.tap(inputs)
    output = host.resume(features)
    caption = jax.jit(host.apply_text)(host.params, ids)
    last = want.pop("last_hidden_state")
    if name == "clip":
        carried = np.concatenate([features.carry[:, None], features.tokens], axis=1)
        patches = last[:, 1:]
    else:
        carried, patches = features.tokens, last
    return {
        "vision_blocks": references.error(blocks(host.params, inputs), want["vision_blocks"]),
        "text_blocks": references.error(blocks(host.params, ids), want["text_blocks"]),
        "last_hidden_state": references.error(carried, last),
        "pooled": references.error(output.pooled, patches.mean(axis=1)),
        "image_embedding": references.error(output.embedding, want["image_embedding"]),
        "text_embedding": references.error(caption, want["text_embedding"]),
        "logits": references.error(host.logits(output.embedding, caption), want["logits"]),
    }


def _assert_close(errors: dict[str, float]) -> None:
    print({key: f"{value:.1e}" for key, value in errors.items()})
    wrong = {
        key: value
        for key, value in errors.items()
        if not value <= (references.BLOCK if "blocks" in key else references.END)
    }
    assert not wrong, wrong


@pytest.mark.parametrize("name", encoders.NAMES)
def test_tiny_models_equal_transformers(name, tmp_path):
    _assert_close(_compare(name, ODD[name], 0.2, tmp_path, batch=3, texts=5))


@pytest.mark.slow
@pytest.mark.parametrize("name", encoders.NAMES)
def test_full_size_models_equal_transformers(name, tmp_path):
    _assert_close(_compare(name, FULL[name], 0.02, tmp_path, batch=2, texts=2))


@pytest.mark.parametrize("name", encoders.NAMES)
def test_what_we_save_loads_in_transformers(name, tmp_path):
    host = encoders.folder(name, tmp_path)
    _, model_class = references.CLASSES[name]
    model, info = model_class.from_pretrained(tmp_path, output_loading_info=True)
    found = {k: v for k, v in info.items() if v}
    assert not found, found
    model.set_attn_implementation("eager")
    inputs, ids = encoders.pixels(host, 2), _texts(host, 3)
    want = references.run(model.eval(), inputs["pixel_values"], ids)
    output = host.forward(inputs)
    assert references.error(output.embedding, want["image_embedding"]) <= references.END
    caption = jax.jit(host.apply_text)(host.params, {"input_ids": ids})
    assert references.error(caption, want["text_embedding"]) <= references.END


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", encoders.NAMES)
def test_round_trip_is_bit_equal(name, dtype, tmp_path):
    import torch
    from safetensors.torch import load_file

    reference = references.build(name, encoders.CONFIGS[name], 0.2).to(getattr(torch, dtype))
    source = references.save(reference, tmp_path / "source")
    host = converters.load_host(name, source, dtype=dtype)
    written = converters.save_host(host, tmp_path / "back")
    assert written == host.spec.weights_hash
    before, after = (load_file(f / "model.safetensors") for f in (source, tmp_path / "back"))
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert after[key].dtype == tensor.dtype, key
        assert torch.equal(
            after[key].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)
        )


def test_clip_reads_old_configs_as_transformers_does(tmp_path):
    """`text_config_dict`, completed by the class's defaults, replaces `text_config`."""
    import json

    from transformers import CLIPConfig

    from trace_jax.hosts import clip

    old = {
        "model_type": "clip",
        "projection_dim": 768,
        "text_config": {"hidden_size": 512, "eos_token_id": 2, "num_attention_heads": 2},
        "text_config_dict": {"hidden_size": 768, "num_attention_heads": 12},
        "vision_config": {"hidden_size": 1024, "num_attention_heads": 16, "patch_size": 14},
        "vision_config_dict": None,
    }
    (tmp_path / "config.json").write_text(json.dumps(old))
    theirs, ours = CLIPConfig.from_pretrained(tmp_path), clip.parse(old)
    assert ours.text.width == theirs.text_config.hidden_size == 768
    assert ours.text.heads == theirs.text_config.num_attention_heads
    assert ours.end_of_text == theirs.text_config.eos_token_id
    assert ours.vision.width == theirs.vision_config.hidden_size
    assert ours.patch_size == theirs.vision_config.patch_size
    assert ours.vision.hidden == theirs.vision_config.intermediate_size
