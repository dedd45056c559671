"""Fine-tunes RF-DETR-Medium on scenes, as the official code (1.4.1) trains by default.

    bin/train --config=configs/rfdetr_finetune.py --config.host.weights=WEIGHTS \\
        --config.data.folder=SCENES

WEIGHTS is the hub's folder, transformers' or Roboflow's `.pth`; SCENES a data folder of scenes (see
configs/trace_scenes.py). The best of parameters and moving average, by validation mAP, lies in
runs/train/rfdetr_finetune/host; evaluate it with `bin/eval --task=detection --finetuned=FOLDER`.

Labels are COCO's ids, as in the published weights, so no class starts anew. Batches of 16 are one
step here, normalised by all their objects; the official code adds up 4 parts of 4, each normalised
by its own. Needs a GPU: 13 groups of 300 queries, pictures of up to 736 px. Each of the 11 sides of
the multi-scale batches is compiled when it first comes up.
"""

from __future__ import annotations

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The page."""
    return ConfigDict(
        {
            "kind": "detector",
            "name": "rfdetr_finetune",
            "seed": 0,
            # Passes over the training scenes; 0 leaves the length to loop.steps.
            "epochs": 100,
            # Either weights to start from, or config: a config.json's contents, random weights.
            "host": {"name": "rf_detr", "weights": "", "config": {}, "compute": "bfloat16"},
            "data": {
                "folder": "runs/data/trace_scenes",
                "val": "",
                "severities": ("pristine", "L0", "L1", "L2", "L3", "L4"),
                "val_batch": 16,
                "max_dets": 500,
                "workers": 8,
            },
            "batch": {"size": 16},
            "views": {
                "flip": 0.5,
                "crop": 0.5,
                "short": (400, 500, 600),
                "crop_least": 384,
                "crop_most": 600,
                "side": 736,
                "sides": tuple(range(416, 737, 32)),
                "least": 1.0,
            },
            "loss": {
                "classes": 1.0,
                "l1": 5.0,
                "giou": 2.0,
                "alpha": 0.25,
                "gamma": 2.0,
                "least": 0.01,
                "cost": {"classes": 2.0, "l1": 5.0, "giou": 2.0, "alpha": 0.25, "gamma": 2.0},
            },
            "rates": {"encoder": 1.5e-4, "base": 1e-4, "component": 0.7, "layer": 0.8},
            "ema": {"decay": 0.993, "ramp": 100.0},
            "optim": {
                "lr": 1e-4,
                "warmup_steps": 0,
                "schedule": "constant",
                "weight_decay": 1e-4,
                "b1": 0.9,
                "b2": 0.999,
                "eps": 1e-8,
                "clip_norm": 0.1,
            },
            "loop": {
                "steps": 0,
                "log_every": 20,
                # 0: once an epoch.
                "eval_every": 0,
                "eval_first": False,
                "save_every": 500,
                "keep": 2,
                "best_metric": "map",
                "best_mode": "max",
                "patience": 0,
                "model_axis": 1,
                "min_shard_size": 65536,
                "prefetch": 2,
            },
        }
    )
