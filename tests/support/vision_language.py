"""Tiny vision-language models of the reference classes, and the folders they save."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import (
    InternVLConfig,
    InternVLForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

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
# Widths and vocabulary of Qwen3-VL-4B, two layers each side.
QWEN3_TRUE_WIDTH = {
    "vision_config": {
        **QWEN3["vision_config"],
        "depth": 2, "hidden_size": 1024, "num_heads": 16, "intermediate_size": 4096,
        "out_hidden_size": 2560, "num_position_embeddings": 2304, "deepstack_visual_indexes": [0],
    },
    "text_config": {
        **QWEN3["text_config"],
        "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728,
        "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_parameters": {
            "rope_theta": 5e6, "rope_type": "default", "mrope_section": [24, 20, 20],
            "mrope_interleaved": True,
        },
    },
}  # fmt: skip
QWEN2_5 = {
    "image_token_id": IMAGE,
    "video_token_id": 91,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
    "tie_word_embeddings": True,
    "vision_config": {
        "depth": 4,
        "hidden_size": 32,
        "num_heads": 4,
        "intermediate_size": 48,
        "out_hidden_size": 64,
        "patch_size": 14,
        "window_size": 56,
        "fullatt_block_indexes": [1, 3],
    },
    "text_config": {
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_parameters": {
            "rope_theta": 1e6,
            "rope_type": "default",
            "mrope_section": [2, 3, 3],
        },
    },
}
INTERNVL = {
    "image_token_id": IMAGE,
    "tie_word_embeddings": False,
    "image_seq_length": 9,
    "vision_config": {
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "attention_bias": True,
        "intermediate_size": 64,
        "image_size": [84, 84],
        "patch_size": [14, 14],
    },
    "text_config": {
        "model_type": "qwen3",
        "vocab_size": 100,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
    },
}
CLASSES = {
    "internvl": (InternVLConfig, InternVLForConditionalGeneration, INTERNVL),
    "qwen2_5_vl": (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, QWEN2_5),
    "qwen3_vl": (Qwen3VLConfig, Qwen3VLForConditionalGeneration, QWEN3),
}


def build(name: str, changes: dict | None = None, *, seed: int = 0, std: float = 0.2):
    """A reference with eager attention; norm weights around 1, all else around 0."""
    config_class, model_class, config = CLASSES[name]
    model = model_class(config_class(**{**config, **(changes or {})}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            norm = "norm" in key or "ln_q" in key
            centre = 1.0 if norm and key.endswith("weight") else 0.0
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


def packed(inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Patches of all images one row after the other, and their grids, as a Qwen reference takes
    them.
    """
    counts = np.prod(inputs["grid"], axis=-1)
    rows = np.concatenate([p[:n] for p, n in zip(inputs["patches"], counts, strict=True)])
    grid = np.concatenate([np.ones((len(counts), 1), int), inputs["grid"]], axis=1)
    return torch.from_numpy(rows), torch.from_numpy(grid.astype(np.int64))


def reference_text(text, grid: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """What `host.arrange` gave as a reference takes it; with grids, for a Qwen reference."""
    ids = torch.from_numpy(text["ids"]).long()
    given = {"input_ids": ids, "attention_mask": torch.from_numpy(text["real"]).long()}
    if grid is None:
        return given
    return {**given, "mm_token_type_ids": (ids == IMAGE).int(), "image_grid_thw": grid}
