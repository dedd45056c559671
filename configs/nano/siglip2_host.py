"""Pretrains the nano host `siglip2_nano` from scratch on procedural renders."""

from __future__ import annotations

from ml_collections import ConfigDict

from configs.nano import host_common


def get_config() -> ConfigDict:
    """SigLIP architecture: width 192, 6 blocks, 36 tokens of 16 px."""
    config = host_common.base("siglip2_nano")
    config.host.config = ConfigDict(
        {
            "model_type": "siglip",
            "architectures": ["SiglipModel"],
            "text_config": {
                "model_type": "siglip_text_model",
                "hidden_size": 128,
                "intermediate_size": 512,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "max_position_embeddings": 24,
                "hidden_act": "gelu_pytorch_tanh",
                "layer_norm_eps": 1e-6,
                "projection_size": 192,
            },
            "vision_config": {
                "model_type": "siglip_vision_model",
                "hidden_size": 192,
                "intermediate_size": 768,
                "num_hidden_layers": 6,
                "num_attention_heads": 3,
                "image_size": 96,
                "patch_size": 16,
                "num_channels": 3,
                "hidden_act": "gelu_pytorch_tanh",
                "layer_norm_eps": 1e-6,
            },
        }
    )
    config.loss.text = "sigmoid"
    config.loop.steps = 1800
    return config
