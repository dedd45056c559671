"""The PyTorch models that our hosts must equal, with every parameter drawn anew."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from transformers import CLIPConfig, CLIPModel, SiglipConfig, SiglipModel

CLASSES = {"clip": (CLIPConfig, CLIPModel), "siglip2": (SiglipConfig, SiglipModel)}
MEASURED: list[tuple[str, float]] = []
BLOCK, END = 1e-5, 1e-4  # times max(1, largest absolute reference value)


def build(name: str, config: dict, std: float, seed: int = 0) -> torch.nn.Module:
    """A reference with eager attention; LayerNorm weights around 1, all else around 0."""
    config_class, model_class = CLASSES[name]
    model = model_class(config_class(**{k: v for k, v in config.items() if k != "model_type"}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            norm = "norm" in key and key.endswith("weight")  # pre_layrnorm too
            parameter.normal_(1.0 if norm else 0.0, std, generator=generator)
    model.set_attn_implementation("eager")
    return model.eval()


def run(model: torch.nn.Module, pixels: np.ndarray, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Everything parity compares. `pixels` NHWC."""
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
    texts = torch.from_numpy(ids.astype(np.int64))
    with torch.inference_mode():
        vision = model.vision_model(images, output_hidden_states=True)
        text = model.text_model(texts, output_hidden_states=True)
        both = model(input_ids=texts, pixel_values=images)
        image = model.get_image_features(images).pooler_output
        caption = model.get_text_features(texts).pooler_output
    blocks = {
        "vision_blocks": torch.stack(vision.hidden_states[1:]),
        "text_blocks": torch.stack(text.hidden_states[1:]),
    }
    ends = {
        "last_hidden_state": vision.last_hidden_state,
        "image_embedding": image,
        "text_embedding": caption,
        "logits": both.logits_per_image,
    }
    return {key: value.numpy() for key, value in {**blocks, **ends}.items()}


def error(got: object, reference: np.ndarray) -> float:
    """max|got - reference| / max(1, max|reference|); kept for `bin/test --parity`."""
    got = np.asarray(got)
    assert got.shape == reference.shape, (got.shape, reference.shape)
    value = float(np.abs(got - reference).max() / max(1.0, np.abs(reference).max()))
    MEASURED.append((os.environ.get("PYTEST_CURRENT_TEST", ""), value))
    return value


def save(model: torch.nn.Module, to: Path) -> Path:
    model.save_pretrained(to)
    return to
