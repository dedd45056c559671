"""Pretrains the nano host `clip_nano` from scratch on procedural renders."""

from __future__ import annotations

from ml_collections import ConfigDict

from configs.nano import host_common


def get_config() -> ConfigDict:
    """CLIP architecture: width 192, 6 blocks, class token and 36 patches of 16 px."""
    config = host_common.base("clip_nano")
    config.host.config = ConfigDict(
        {
            "model_type": "clip",
            "architectures": ["CLIPModel"],
            "projection_dim": 128,
            "logit_scale_init_value": 2.6592,
            "text_config": {
                "model_type": "clip_text_model",
                "hidden_size": 128,
                "intermediate_size": 512,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "max_position_embeddings": 24,
                "hidden_act": "quick_gelu",
                "layer_norm_eps": 1e-5,
                "projection_dim": 128,
            },
            "vision_config": {
                "model_type": "clip_vision_model",
                "hidden_size": 192,
                "intermediate_size": 768,
                "num_hidden_layers": 6,
                "num_attention_heads": 3,
                "image_size": 96,
                "patch_size": 16,
                "num_channels": 3,
                "hidden_act": "quick_gelu",
                "layer_norm_eps": 1e-5,
                "projection_dim": 128,
            },
        }
    )
    config.loss.text = "softmax"
    config.optim.warmup_steps = 100
    config.loop.steps = 1100
    return config
