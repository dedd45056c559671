"""Tiny RF-DETR models of transformers, every parameter drawn anew, and what parity compares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import RfDetrConfig, RfDetrForObjectDetection

BACKBONE = {
    "model_type": "rf_detr_dinov2",
    "hidden_size": 24,
    "image_size": 64,
    "num_hidden_layers": 12,
    "num_attention_heads": 2,
    "num_windows": 2,
    "out_features": ["stage3", "stage6", "stage9", "stage12"],
    "patch_size": 8,
}
TINY = {
    "backbone_config": BACKBONE,
    "d_model": 16,
    "num_queries": 6,
    "group_detr": 3,
    "decoder_self_attention_heads": 2,
    "decoder_cross_attention_heads": 4,
    "decoder_n_points": 2,
    "decoder_layers": 2,
    "decoder_ffn_dim": 32,
    "num_labels": 5,
}
MEDIUM = {
    "backbone_config": {
        **BACKBONE,
        "hidden_size": 384,
        "num_attention_heads": 6,
        "image_size": 576,
        "patch_size": 16,
    },
    "decoder_n_points": 2,
    "decoder_layers": 4,
    "num_labels": 91,
}


def build(config: dict, *, std: float = 0.2, seed: int = 0) -> RfDetrForObjectDetection:
    """A reference with eager attention. transformers starts many parameters at zero or one, which
    would hide faults and make every proposal a tie.
    """
    backbone = dict(config["backbone_config"])
    model = RfDetrForObjectDetection(RfDetrConfig(**{**config, "backbone_config": backbone}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            one = ("norm" in key and key.endswith("weight")) or key.endswith("lambda1")
            parameter.normal_(1.0 if one else 0.0, std, generator=generator)
    model.set_attn_implementation("eager")
    return model.eval()


def save(model: RfDetrForObjectDetection, to: Path) -> Path:
    model.save_pretrained(to)
    return to


def pixels(side: int, batch: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(batch, side, side, 3))
    return values.astype(np.float32)


def nchw(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values.transpose(0, 3, 1, 2)))


def run(
    model: RfDetrForObjectDetection, values: np.ndarray, select: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Everything parity compares, in our layouts.

    Args:
      model: in eval mode.
      values: images, NHWC.
      select: [B, Q], tokens that go on instead of those the reference selects, so that a tie that
        fell another way does not hide what comes after it.
    """
    images = nchw(values)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    backbone = model.model.backbone.backbone
    topk = torch.topk

    def spy(scores, *args, **kwargs):
        found = topk(scores, *args, **kwargs)
        seen.append((scores, found[1]))
        return found if select is None else (None, torch.from_numpy(select.astype(np.int64)))

    torch.topk = spy
    try:
        with torch.inference_mode():
            states = backbone.encoder(backbone.embeddings(images), output_hidden_states=True)
            maps = backbone(images).feature_maps
            output = model(images)
            layers = model.predict_class_and_boxes(
                output.intermediate_hidden_states, output.intermediate_reference_points
            )
    finally:
        torch.topk = topk
    assert len(seen) == 1
    found = {
        "blocks": torch.stack(states.hidden_states[1:]),
        "maps": torch.stack(maps, dim=1).flatten(3).transpose(2, 3),
        "memory": output.backbone_features.flatten(2).transpose(1, 2),
        "selection_scores": seen[0][0],
        "index": seen[0][1],
        "references": output.init_reference_points,
        "states": output.intermediate_hidden_states,
        "enc_logits": output.enc_outputs_class,
        "enc_boxes": output.enc_outputs_coord_logits,
        "logits": output.logits,
        "pred_boxes": output.pred_boxes,
        "layer_logits": layers[0],
        "layer_boxes": layers[1],
    }
    return {key: value.detach().numpy() for key, value in found.items()}
