"""Tiny vision-language models of the reference classes, and the folders they save."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

IMAGE, START, END = 90, 92, 93
QWEN3 = {
    "image_token_id": IMAGE,
    "video_token_id": 91,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
    "tie_word_embeddings": True,
    "vision_config": {
        "depth": 4,
        "hidden_size": 32,
        "num_heads": 4,
        "intermediate_size": 64,
        "out_hidden_size": 32,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 1, 2],
        "patch_size": 16,
    },
    "text_config": {
        "vocab_size": 100,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_parameters": {
            "rope_theta": 5e6,
            "rope_type": "default",
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
    },
}
CLASSES = {"qwen3_vl": (Qwen3VLConfig, Qwen3VLForConditionalGeneration, QWEN3)}


def build(name: str, changes: dict | None = None, *, seed: int = 0, std: float = 0.2):
    """A reference with eager attention; norm weights around 1, all else around 0."""
    config_class, model_class, config = CLASSES[name]
    model = model_class(config_class(**{**config, **(changes or {})}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            centre = 1.0 if "norm" in key and key.endswith("weight") else 0.0
            parameter.normal_(centre, std, generator=generator)
    model.set_attn_implementation("eager")
    return model.eval()


def save(model, to: Path) -> Path:
    model.save_pretrained(to)
    return to


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


def ids_with_images(lengths: list[int], images: list[int], seed: int = 0) -> list[list[int]]:
    """Random prompts; image k of a prompt stands as one placeholder between START and END."""
    rng = np.random.default_rng(seed)
    rows = []
    for length, count in zip(lengths, images, strict=True):
        row = rng.integers(1, 90, 3).tolist()
        for _ in range(count):
            row += [START, IMAGE, END, *rng.integers(1, 90, 2).tolist()]
        rows.append(row + rng.integers(1, 90, length).tolist())
    return rows
