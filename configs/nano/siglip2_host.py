"""Pretrains the nano host `siglip2_nano` from scratch on procedural renders.

    bin/generate --config=configs/nano/pretrain_data.py        # the pictures, once
    bin/train --config=configs/nano/siglip2_host.py
    bin/convert --host=siglip2_nano --weights=runs/train/siglip2_nano_host/host \\
        --dtype=bfloat16 --to=trace_jax/assets/siglip2_nano

Cost: 1,500 steps of 128 pictures, 27 minutes on 2 cores (0.94 steps/s, 120 pictures/s), 3 GB of
memory; a killed run goes on with the same command. Expect at the end, as the run prints: of 300
instances never trained on, 91% found from a second view and 22% named by `encode_text` among 189
types (chance 0.5%); of the validation identities of nano_trace, 90 / 86 / 70 / 42 / 20% found at
L0 / L1 / L2 / L3 / L4 among 189.

No burnt object is shown to the host. The random views lay dark blotches, holes and warps on the
renders, which resemble soot: they stand for the dirt and wear a web-scale host has met.
"""

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
    config.loop.steps = 1500
    return config
