"""Tiny Molmo2 models of the reference class, and the reference's image processor without
torchvision.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import Molmo2Config, Molmo2ForConditionalGeneration

# Ids of an image's words as the published vocabulary orders them behind the head's 88 rows.
START, STOP, PATCH, COLUMN, LOW_START, IMAGE = 88, 89, 90, 91, 92, 93
CONFIG: dict[str, Any] = {
    "image_start_token_id": START,
    "image_end_token_id": STOP,
    "image_patch_id": PATCH,
    "low_res_image_start_token_id": LOW_START,
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "image_size": [70, 70],
        "patch_size": 14,
    },
    "adapter_config": {
        "vision_feature_layer": [3, 1],
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "intermediate_size": 48,
        "text_hidden_size": 32,
    },
    "text_config": {
        "hidden_size": 32,
        "vocab_size": 88,
        "additional_vocab_size": 12,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_hidden_layers": 3,
        "intermediate_size": 64,
        "rope_parameters": {"rope_theta": 5e6, "rope_type": "default"},
    },
}
# Crops of 5 x 5 patches that overlap by 2, at most 6 of them.
PROCESSOR = {
    "size": {"height": 70, "width": 70},
    "patch_size": 14,
    "overlap_margins": [1, 1],
    "max_crops": 6,
    "pooling_size": [2, 2],
}


def build(seed: int, changes: dict | None = None, std: float = 0.2):
    """A reference with eager attention; norm weights around 1, all else around 0."""
    model = Molmo2ForConditionalGeneration(Molmo2Config(**{**CONFIG, **(changes or {})}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            norm = "norm" in key and key.endswith("weight")
            parameter.normal_(1.0 if norm else 0.0, std, generator=generator)
    model.set_attn_implementation("eager")
    return model.eval()


def save(model, to: Path) -> Path:
    model.save_pretrained(to)
    # transformers 5.24 cuts the token table in two halves; the published files have the head's rows
    # in the one tensor and the additional ones in the other.
    tensors = load_file(to / "model.safetensors")
    parts = [f"model.transformer.wte.{name}" for name in ("embedding", "new_embedding")]
    table, rows = torch.cat([tensors[key] for key in parts]), model.config.text_config.vocab_size
    for key, part in zip(parts, (table[:rows], table[rows:]), strict=True):
        tensors[key] = part.clone()
    save_file(tensors, to / "model.safetensors")
    config = json.loads((to / "config.json").read_text())
    # The published files have it; transformers' class does not know it.
    (to / "config.json").write_text(json.dumps({**config, "image_col_id": COLUMN}))
    (to / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return to


def packed(inputs) -> dict[str, torch.Tensor]:
    """What the reference takes: all images' crops one after the other."""
    crops, places, before = [], [], 0
    counts = crop_counts(inputs)
    for index, count in enumerate(counts):
        own = inputs["pooling"][index]
        own = own[(own >= 0).any(axis=-1)]
        places.append(np.where(own >= 0, own + before, -1))
        crops.append(inputs["crops"][index, :count])
        before += count * inputs["crops"].shape[2]
    return {
        "pixel_values": torch.from_numpy(np.concatenate(crops)),
        "image_token_pooling": torch.from_numpy(np.concatenate(places)).long(),
        "image_grids": torch.from_numpy(inputs["grid"]).long(),
    }


def crop_counts(inputs) -> list[int]:
    per_crop = inputs["crops"].shape[2]
    return [int(own.max()) // per_crop + 1 for own in inputs["pooling"]]


def reference_text(text) -> dict[str, torch.Tensor]:
    ids = torch.from_numpy(text["ids"]).long()
    words = torch.tensor([START, STOP, PATCH, COLUMN, LOW_START])
    real = torch.from_numpy(text["real"])
    return {
        "input_ids": ids,
        "attention_mask": real.long(),
        "mm_token_type_ids": (torch.isin(ids, words) & real).int(),
    }


def prompts_of(lengths: list[int], images: list[int], seed: int = 0) -> list[list[int]]:
    """Random prompts; images come first, each one placeholder."""
    rng = np.random.default_rng(seed)
    return [
        [IMAGE] * count + rng.integers(1, 88, length).tolist()
        for length, count in zip(lengths, images, strict=True)
    ]


def reference_processor(settings: dict | None = None):
    """transformers' Molmo2ImageProcessor from its installed source, on a stand-in for the
    torchvision backend: bilinear resize and normalisation by torch itself.
    """
    source = Path(transformers.__file__).parent / "models/molmo2/image_processing_molmo2.py"
    tree = ast.parse(source.read_text())
    tree.body = [n for n in tree.body if not (isinstance(n, ast.ImportFrom) and n.level > 0)]

    class Backend:
        def resize(self, image, size, resample, antialias):
            assert not antialias and resample == 2
            return functional.interpolate(image, size=(size.height, size.width), mode="bilinear")

        def rescale_and_normalize(self, image, rescale, factor, normalise, mean, std):
            mean, std = (torch.tensor(v)[:, None, None] / factor for v in (mean, std))
            return (image.float() - mean) / std

        def __call__(self, images):
            values = {**vars(Backend), **{k: getattr(type(self), k) for k in dir(type(self))}}
            hidden = ("valid_kwargs", "model_input_names")
            values = {
                k: v
                for k, v in values.items()
                if not k.startswith("_") and not callable(v) and k not in hidden
            }
            values |= settings or {}
            values["size"] = SimpleNamespace(**values["size"])
            pictures = [torch.from_numpy(np.array(i)).permute(2, 0, 1) for i in images]
            return self._preprocess(
                pictures, rescale_factor=1 / 255, disable_grouping=None, return_tensors="pt",
                **values,
            )  # fmt: skip

    class Anything:
        def __class_getitem__(cls, item):
            return cls

    def group_images_by_shape(images, disable_grouping):
        shapes = [tuple(image.shape) for image in images]
        groups = {s: torch.stack([i for i in images if tuple(i.shape) == s]) for s in shapes}
        return groups, [(s, shapes[:n].count(s)) for n, s in enumerate(shapes)]

    names = {
        "TorchvisionBackend": Backend,
        "auto_docstring": lambda given: given,
        "ImagesKwargs": dict,
        "Unpack": Anything,
        "BatchFeature": lambda data, tensor_type: data,
        "group_images_by_shape": group_images_by_shape,
        "reorder_images": lambda groups, index: [groups[s][n] for s, n in index],
        "SizeDict": SimpleNamespace,
        "PILImageResampling": SimpleNamespace(BILINEAR=2),
        "IMAGENET_STANDARD_MEAN": [0.5, 0.5, 0.5],
        "IMAGENET_STANDARD_STD": [0.5, 0.5, 0.5],
        **dict.fromkeys(("ImageInput", "TensorType"), Anything),
    }
    # `class X(ImagesKwargs, total=False)` holds annotations only.
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            node.keywords = []
    exec(compile(tree, str(source), "exec"), names)  # noqa: S102
    return names["Molmo2ImageProcessor"]()
