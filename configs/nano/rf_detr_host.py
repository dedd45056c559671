"""Pretrains the nano detector `rf_detr_nano` from scratch on procedural scenes.

    bin/generate --config=configs/nano/scenes_data.py --subset=pretrain    # 4,000 scenes, once
    bin/generate --config=configs/nano/scenes_data.py                      # its val scenes
    bin/train --config=configs/nano/rf_detr_host.py
    bin/convert --host=rf_detr_nano --weights=runs/train/rf_detr_nano_host/host \\
        --dtype=bfloat16 --to=trace_jax/assets/rf_detr_nano

The detector has seen no fire: only pristine scenes are trained on and validated on. It is RF-DETR
in small: windowed backbone with four stages, projector, two-stage selection, deformable decoder,
groups of queries, the same losses. Other than the fine-tuning recipe, a run from scratch trains
all layers at one rate, warmed up and falling.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import rfdetr_finetune


def get_config() -> ConfigDict:
    """Width 192, 8 blocks, 256 tokens of 12 px, 40 queries in 5 groups."""
    config = rfdetr_finetune.get_config()
    config.name, config.epochs = "rf_detr_nano_host", 0
    config.host = ConfigDict(
        {
            "name": "rf_detr_nano",
            "weights": "",
            "compute": "float32",
            "config": {
                "model_type": "rf_detr",
                "architectures": ["RfDetrForObjectDetection"],
                "backbone_config": {
                    "model_type": "rf_detr_dinov2",
                    "hidden_size": 192,
                    "num_hidden_layers": 8,
                    "num_attention_heads": 3,
                    "mlp_ratio": 4,
                    "hidden_act": "gelu",
                    "layer_norm_eps": 1e-6,
                    "image_size": 192,
                    "patch_size": 12,
                    "num_windows": 2,
                    "use_mask_token": False,
                    "out_features": ["stage2", "stage4", "stage6", "stage8"],
                },
                "d_model": 128,
                "hidden_expansion": 0.5,
                "c2f_num_blocks": 3,
                "activation_function": "silu",
                "layer_norm_eps": 1e-6,
                "decoder_layers": 3,
                "decoder_self_attention_heads": 4,
                "decoder_cross_attention_heads": 8,
                "decoder_n_points": 2,
                "decoder_ffn_dim": 512,
                "decoder_activation_function": "relu",
                "num_queries": 40,
                "group_detr": 5,
                "num_labels": 91,
            },
        }
    )
    config.data.folder = "runs/data/nano_scenes_pretrain"
    config.data.val = "runs/data/nano_scenes"
    config.data.severities = ("pristine",)
    config.data.val_batch, config.data.workers = 20, 2
    config.views.update(short=(160, 192, 224), crop_least=128, crop_most=192, side=192)
    config.views.sides = (168, 192, 216)
    config.rates.update(encoder=5e-4, base=5e-4, component=1.0, layer=1.0)
    config.optim.update(lr=5e-4, warmup_steps=200, schedule="cosine")
    config.ema.decay = 0.995
    config.loop.update(steps=4000, eval_every=500, save_every=250)
    return config
