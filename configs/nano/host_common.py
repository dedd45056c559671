"""What both nano host configs share (a helper, not an experiment)."""

from __future__ import annotations

from ml_collections import ConfigDict


def base(host: str) -> ConfigDict:
    """The page without the architecture: data, batches, views, losses, optimizer, loop.

    Args:
      host: registered name of the host to pretrain.
    """
    return ConfigDict(
        {
            "kind": "host",
            "name": f"{host}_host",
            "seed": 0,
            # SigLIP starts its logit bias at -10, right for batches of thousands. With 64
            # captions it must start near -log(64), or text learns nothing in a run this short.
            "host": {"name": host, "config": {}, "logit_bias": -4.16},
            "data": {
                "folder": "runs/data/nano_pretrain",
                # Instances never trained on, spread evenly over the manifest.
                "held_out": 300,
                # R@1 by severity of this folder's validation identities is logged where it
                # exists; it steers nothing.
                "watch": "runs/data/nano_trace",
                "workers": 2,
            },
            "batch": {"size": 64, "hard_types": 8, "same_view": 0.5},
            "loss": {
                "text": "",
                "pooled": 1.0,
                "embedding": 0.5,
                "caption": 1.0,
                "object_type": 1.0,
                "material": 0.2,
                "colour": 1.0,
                "label_smoothing": 0.05,
            },
            "views": {
                "scale": (0.85, 1.12),
                "shift": 0.06,
                "rotation": 8.0,
                "flip": 0.5,
                "brightness": 0.12,
                "contrast": 0.12,
                "saturation": 0.12,
                "clean": 0.2,
                "soot": 0.95,
                "soot_darkness": (0.5, 0.97),
                "holes": 0.55,
                "warp": 0.05,
                "occluder": 0.25,
            },
            "optim": {
                "lr": 1e-3,
                "warmup_steps": 200,
                "schedule": "cosine",
                "final_fraction": 0.0,
                "weight_decay": 0.05,
                "b1": 0.9,
                "b2": 0.98,
                "eps": 1e-8,
                "clip_norm": 1.0,
                "no_decay": ("bias", "scale", "norm", "table", "probe", "cls", "logit"),
            },
            "loop": {
                "steps": 1000,
                "seed": 0,
                "log_every": 20,
                "eval_every": 400,
                "eval_first": False,
                "save_every": 200,
                "keep": 2,
                "best_metric": "r_at_1",
                "best_mode": "max",
                "patience": 0,
                "model_axis": 1,
                "min_shard_size": 65536,
                "prefetch": 2,
            },
        }
    )
