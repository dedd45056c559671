"""The shipped nano hosts: small, bfloat16, and the same model in transformers as in ours."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
import transformers
from PIL import Image

import converters
from trace_jax import assets

NAMES = ("siglip2_nano", "clip_nano")
TEXTS = ["a photo of a mug.", "A Photo of a red fire extinguisher", "an unheard-of zyzzyva"]
CLASSES = {"siglip2_nano": transformers.SiglipModel, "clip_nano": transformers.CLIPModel}


def _pictures() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    pixels = np.full((3, 96, 96, 3), 255, np.uint8)
    pixels[:, 20:70, 30:60] = rng.integers(0, 256, (3, 50, 30, 3))
    pixels[1, 40:80, 10:50] = (200, 30, 40)
    return [Image.fromarray(p) for p in pixels]


def _close(ours: object, theirs: torch.Tensor) -> None:
    wanted = theirs.detach().numpy()
    error = np.abs(np.asarray(ours) - wanted).max()
    assert error <= 1e-4 * max(1.0, float(np.abs(wanted).max()))


@pytest.mark.parametrize("name", NAMES)
def test_transformers_agrees_on_pictures_and_texts(name: str) -> None:
    folder = assets.folder(name)
    model = (
        CLASSES[name]
        .from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        .eval()
    )
    host = converters.load_host(name)
    inputs = host.preprocess(_pictures())
    pixels = torch.tensor(np.asarray(inputs["pixel_values"])).permute(0, 3, 1, 2)
    features = host.tap(inputs)
    with torch.no_grad():
        hidden = model.vision_model(pixel_values=pixels).last_hidden_state
        embedding = model.get_image_features(pixel_values=pixels).pooler_output
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        tokens = tokenizer(
            [text.lower() for text in TEXTS],
            padding="max_length",
            truncation=True,
            max_length=model.config.text_config.max_position_embeddings,
            return_tensors="pt",
        )
        texts = model.get_text_features(**tokens).pooler_output
    _close(features.tokens, hidden[:, 1:] if name == "clip_nano" else hidden)
    _close(host.resume(features).embedding, embedding)
    _close(host.encode_text(TEXTS), texts)


@pytest.mark.parametrize("name", NAMES)
def test_the_files_are_small_and_in_bfloat16(name: str) -> None:
    folder = assets.folder(name)
    assert sum(p.stat().st_size for p in folder.iterdir()) < 9e6
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize("name", NAMES)
def test_texts_of_the_vocabulary_differ_and_unknown_words_agree(name: str) -> None:
    host = converters.load_host(name)
    known, other, odd, odder = np.asarray(
        host.encode_text(["a photo of a mug.", "a photo of a kettle.", "qwxz", "zxwq"])
    )
    assert np.abs(known - other).max() > 1e-3
    np.testing.assert_allclose(odd, odder, atol=1e-6)
