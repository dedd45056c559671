"""LLaVA-OneVision-1.5 out of transformers' parts: MLCDVisionModel, a merger, Qwen3ForCausalLM.

transformers has no class for the model. MLCD's tower is the same as Rice's for one image whose
patches lie in raster order; its own post-norm is not used.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import MLCDVisionConfig, MLCDVisionModel, Qwen3Config, Qwen3ForCausalLM

IMAGE, PATCH, MERGE = 90, 14, 2
VISION = {
    "depth": 3, "embed_dim": 32, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4,
    "text_hidden_size": 32, "layer_norm_eps": 1e-5, "hidden_act": "gelu", "in_channels": 3,
    "patch_size": PATCH, "spatial_merge_size": MERGE, "temporal_patch_size": 1,
}  # fmt: skip
TEXT = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rope_theta": 5e6,
    "rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False, "use_cache": True,
    "use_sliding_window": False, "sliding_window": None, "max_window_layers": 3,
    "max_position_embeddings": 512, "image_token_id": None, "video_token_id": None,
    "model_type": "LLaVAOneVision1_5_text",
}  # fmt: skip
CONFIG = {
    "model_type": "llavaonevision1_5",
    "architectures": ["LLaVAOneVision1_5_ForConditionalGeneration"],
    "image_token_id": IMAGE,
    "video_token_id": 91,
    "vision_start_token_id": 92,
    "vision_end_token_id": 93,
    "vocab_size": 100,
    "tie_word_embeddings": False,
    "vision_config": VISION,
    "text_config": TEXT,
}
BLOCK_NAMES = {
    "layer_norm1": "norm1", "layer_norm2": "norm2", "self_attn.out_proj": "attn.proj",
    "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2",
}  # fmt: skip


class Reference(nn.Module):
    """Random weights; norm weights around 1, all else around 0."""

    def __init__(self, seed: int, std: float = 0.2) -> None:
        super().__init__()
        width = VISION["embed_dim"]
        tower = MLCDVisionConfig(
            hidden_size=width, intermediate_size=VISION["intermediate_size"],
            num_hidden_layers=VISION["depth"], num_attention_heads=VISION["num_heads"],
            image_size=56, patch_size=PATCH, hidden_act="gelu", layer_norm_eps=1e-5,
        )  # fmt: skip
        self.tower = MLCDVisionModel(tower)
        wide = width * MERGE**2
        self.ln_q = nn.LayerNorm(width, eps=1e-5)
        self.mlp = nn.Sequential(nn.Linear(wide, wide), nn.GELU(), nn.Linear(wide, 32))
        sizes = {k: v for k, v in TEXT.items() if k not in ("model_type", "rope_theta")}
        rope = {"rope_theta": TEXT["rope_theta"], "rope_type": "default"}
        self.text = Qwen3ForCausalLM(
            Qwen3Config(**sizes, rope_parameters=rope, tie_word_embeddings=False)
        )
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for key, parameter in self.named_parameters():
                norm = ("norm" in key or "layrnorm" in key or "ln_q" in key) and "weight" in key
                parameter.normal_(1.0 if norm else 0.0, std, generator=generator)
        self.tower.set_attn_implementation("eager")
        self.text.set_attn_implementation("eager")
        self.eval()

    def vision(self, patches: np.ndarray, grid: np.ndarray) -> tuple[list, torch.Tensor]:
        """One image's block outputs (class token in front) and tokens after the merger, both in
        merge-block order. `patches` [P, 588] are in that order too, `grid` counts them.
        """
        down, across = (int(n) // MERGE for n in grid)
        shape = (down, across, MERGE, MERGE)
        whole = torch.from_numpy(patches).reshape(*shape, 3, PATCH, PATCH)
        whole = whole.permute(4, 0, 2, 5, 1, 3, 6)
        whole = whole.reshape(1, 3, down * MERGE * PATCH, across * MERGE * PATCH)
        raster = torch.arange(patches.shape[0]).reshape(down, MERGE, across, MERGE)
        order = torch.cat([torch.zeros(1).long(), 1 + raster.permute(0, 2, 1, 3).reshape(-1)])
        states = self.tower(whole, output_hidden_states=True).hidden_states
        blocks = [state[0, order] for state in states]
        grouped = self.ln_q(blocks[-1][1:]).reshape(down * across, -1)
        return blocks, self.mlp(grouped)

    def embedded(self, ids: torch.Tensor, images: list[torch.Tensor]) -> torch.Tensor:
        """Token embeddings, the images' tokens in place of the placeholders."""
        x = self.text.get_input_embeddings()(ids)
        x[ids == IMAGE] = torch.cat(images)
        return x

    def save(self, to: Path, changes: dict | None = None, *, nested: bool = False) -> Path:
        """Writes what lmms-lab publishes; `nested`: names of the module tree instead."""
        source = dict(self.tower.named_parameters())
        visual = {
            "patch_embed.proj.weight": source["embeddings.patch_embedding.weight"],
            "class_embedding": source["embeddings.class_embedding"],
            "class_pos_emb": source["class_pos_emb"],
            "merger.ln_q.weight": self.ln_q.weight,
            "merger.ln_q.bias": self.ln_q.bias,
        }
        for kind in ("weight", "bias"):
            visual[f"pre_layernorm.{kind}"] = source[f"pre_layrnorm.{kind}"]
            for number, layer in (("0", self.mlp[0]), ("2", self.mlp[2])):
                visual[f"merger.mlp.{number}.{kind}"] = getattr(layer, kind)
            for n in range(VISION["depth"]):
                old, new = f"encoder.layers.{n}", f"blocks.{n}"
                for theirs, hub in BLOCK_NAMES.items():
                    visual[f"{new}.{hub}.{kind}"] = source[f"{old}.{theirs}.{kind}"]
                parts = [source[f"{old}.self_attn.{p}_proj.{kind}"] for p in "qkv"]
                visual[f"{new}.attn.qkv.{kind}"] = torch.cat(parts)
        tensors = {("model.visual." if nested else "visual.") + k: v for k, v in visual.items()}
        for key, value in self.text.named_parameters():
            place = "model.language_model." if nested else "model."
            tensors[key.replace("model.", place, 1)] = value
        to.mkdir(parents=True, exist_ok=True)
        tensors = {key: value.detach().clone() for key, value in tensors.items()}
        save_file(tensors, to / "model.safetensors")
        (to / "config.json").write_text(json.dumps({**CONFIG, **(changes or {})}))
        return to
