"""Tiny CLIP and SigLIP hosts, their folders, and a tokenizer small enough to write down."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np

import converters
from trace_jax import hosts
from trace_jax.hosts import base

NAMES = ("clip", "siglip2")
_TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
_VISION = {**_TOWER, "num_hidden_layers": 3, "image_size": 28, "patch_size": 14}
_TEXT = {**_TOWER, "num_hidden_layers": 2, "vocab_size": 100, "max_position_embeddings": 16}
CONFIGS = {
    "clip": {
        "model_type": "clip",
        "projection_dim": 16,
        "vision_config": _VISION,
        # 99 ends a text, as the largest id does in CLIP's own vocabulary.
        "text_config": {**_TEXT, "eos_token_id": 99},
    },
    "siglip2": {"model_type": "siglip", "vision_config": _VISION, "text_config": _TEXT},
}


def build(
    name: str, seed: int = 0, dtype: str = "float32", config: dict | None = None
) -> hosts.EncoderHost:
    """A random host, every parameter away from 0 and 1 so that none of them hides a fault."""
    config = CONFIGS[name] if config is None else config
    family = hosts.lookup(name).family
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        centre = 1.0 if path[-1].key == "scale" else 0.0
        values = rng.normal(centre, 0.2, leaf.shape).astype(np.float32)
        return jax.numpy.asarray(values.astype(leaf.dtype))

    shapes = base.abstract_params(family, family.parse(config), dtype)
    params = jax.tree_util.tree_map_with_path(draw, shapes)
    return hosts.bind(name, config, params, hosts.UNHASHED, preprocessor=None, tokenizer=None)


def folder(name: str, to: Path, dtype: str = "float32") -> hosts.EncoderHost:
    """Writes a random host to `to` and returns it."""
    host = build(name, dtype=dtype)
    converters.save_host(host, to)
    return host


def pixels(host: hosts.EncoderHost, batch: int, seed: int = 0) -> dict[str, np.ndarray]:
    side = host.image_size
    values = np.random.default_rng(seed).normal(size=(batch, side, side, 3))
    return {"pixel_values": values.astype(np.float32)}


def write_tokenizer(to: Path) -> None:
    """A word-level tokenizer in Hugging Face format: pad 0, end 99 appended, unknown 1."""
    words = {"<pad>": 0, "<unk>": 1, "a": 2, "photo": 3, "of": 4, "wood": 5, "steel": 6}
    end = {"id": 99, "content": "</s>", "special": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**end, **flags}],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [text, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [text, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [99], "tokens": ["</s>"]}},
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {**words, "</s>": 99}, "unk_token": "<unk>"},
    }  # fmt: skip
    to.mkdir(parents=True, exist_ok=True)
    (to / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    (to / "tokenizer_config.json").write_text(json.dumps(settings))
