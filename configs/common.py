"""What the FRM pages share: every field with its value; a page shows only what it changes."""

from __future__ import annotations

from ml_collections import ConfigDict

from trace_jax.frm import budget


def frm_page(name: str, *, host: str, tap: str, depth: int) -> ConfigDict:
    """An FRM experiment on cached features with the paper's loss, MSE + 0.1 cosine.

    The optimizer, schedule and length are ours (the paper names none). Fields are explained where
    they are read: `runs/train.py`, `train/loop.py`, `train/optimizer.py` of `trace_jax`.

    Args:
      name: of the run; it writes to runs/train/<name>.
      host: registered host name.
      tap: tap name.
      depth: M, blocks.
    """
    return ConfigDict(
        {
            "kind": "frm",
            "name": name,
            "condition": "frm",
            "seed": 0,
            "epochs": 30,
            "evals_per_epoch": 1,
            "host": {"name": host, "tap": tap, "weights": ""},
            "data": {
                "folder": "",
                "cache": "",
                "features": "cached",
                "levels": ("L0", "L1", "L2", "L3", "L4"),
                "draws": (),
                "identities": 0,
                "batch_size": 64,
                "level_balanced": False,
                "pristine_fraction": 0.0,
                "val_draws": (0,),
                "val_batch_size": 64,
            },
            "frm": {
                "depth": depth,
                "num_heads": 8,
                "mlp_ratio": 4,
                "alpha_init": 1e-2,
                "activation": "gelu_pytorch_tanh",
                "norm_eps": 1e-6,
                "compute_dtype": "float32",
            },
            "loss": {"name": "mse_cos", "cos_weight": 0.1, "huber_delta": 1.0, "norm_eps": 1e-6},
            "contrast": {"weight": 0.0, "temperature": 0.07},
            "optim": {
                "lr": 1e-3,
                "warmup_steps": 50,
                "schedule": "cosine",
                "final_fraction": 0.0,
                "weight_decay": 0.05,
                "b1": 0.9,
                "b2": 0.999,
                "eps": 1e-8,
                "clip_norm": 1.0,
                "no_decay": ("bias", "scale", "alpha", "norm"),
            },
            "loop": {
                "steps": 0,
                "log_every": 10,
                "eval_every": 0,
                "eval_first": True,
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


def encoder_page(name: str, *, host: str, dim: int, host_params: int) -> ConfigDict:
    """FRM on a published encoder's last hidden state, as deep as a 10% parameter overhead allows.

    Args:
      name: of the run.
      host: registered host name.
      dim: D, width of a token.
      host_params: P_host, parameters of the whole host, both towers.
    """
    depth = budget.depth(0.10, host_params=host_params, dim=dim, mlp_ratio=4)
    page = frm_page(name, host=host, tap="last_hidden_state", depth=depth)
    page.data.batch_size = 16
    page.data.val_batch_size = 16
    page.optim.lr = 3e-4
    page.loop.patience = 8
    return page


def vlm_page(name: str, *, host: str, tap: str) -> ConfigDict:
    """FRM on a vision-language host with the paper's capacity for them: M=4, 8 heads, r=4.

    Args:
      name: of the run.
      host: registered host name.
      tap: tap name.
    """
    page = frm_page(name, host=host, tap=tap, depth=4)
    page.data.batch_size = 16
    page.data.val_batch_size = 16
    page.optim.lr = 2e-4
    page.frm.compute_dtype = "bfloat16"
    page.loop.patience = 8
    return page


def add_plus(page: ConfigDict) -> ConfigDict:
    """Turns a page into condition "frm_plus": every addition to the paper's recipe, in one place.

    - `contrast.weight`: InfoNCE on pooled tokens against the batch's pristine ones, for what MSE
      costs in retrieval.
    - `data.pristine_fraction`: pristine -> pristine pairs, so that recovery leaves pristine alone.
    - `data.level_balanced`: every level equally often.
    """
    page.condition = "frm_plus"
    page.contrast.weight = 0.3
    page.data.pristine_fraction = 0.4
    page.data.level_balanced = True
    page.loop.best_metric, page.loop.best_mode = "r_at_1", "max"
    return page
