"""Pretrains the nano host `clip_nano` from scratch on procedural renders.

    bin/generate --config=configs/nano/pretrain_data.py        # the pictures, once
    bin/train --config=configs/nano/clip_host.py
    bin/convert --host=clip_nano --weights=runs/train/clip_nano_host/host \\
        --dtype=bfloat16 --to=trace_jax/assets/clip_nano

Cost: 1,100 steps of 128 pictures, 19 minutes on 2 cores (0.95 steps/s); a killed run goes on with
the same command. Expect at the end, as the run prints: of 300 instances never trained on, 94%
found from a second view and 27% named by `encode_text` among 77 types (chance 1.3%); of the
validation identities of nano_trace, 91 / 87 / 76 / 53 / 21% found at L0 / L1 / L2 / L3 / L4 among
150.

CLIP's own loss reaches the class token only. The pair loss on mean-pooled patch tokens is what
gives the last patch tokens, which are the tap, their meaning. As for `siglip2_nano`, the random
views resemble soot and no burnt object is shown.
"""

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
