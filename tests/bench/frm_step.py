"""One FRM training step against the same module in PyTorch: A B A B, medians, their ratio.

    bin/bench frm_step        # or: python tests/bench/frm_step.py [--json=FILE] [--rounds=5]
    python tests/bench/frm_step.py --device=gpu --dtype=bfloat16 --batch=64      # on an accelerator

D=768, N=196, M=4, batch 16, float32 unless asked otherwise: SigLIP2-base's features with the
paper's VLM depth. A step is the loss (MSE + 0.1 cosine), its gradient, and AdamW. Ratio above 1:
ours is faster. `--profile=DIR` writes an XLA trace of our step; `--parts` times its parts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from trace_jax import frm
from trace_jax.frm import FRMConfig, LossConfig
from trace_jax.train import optimizer, sharding
from trace_jax.train.objectives import ContrastConfig, frm_loss
from trace_jax.train.state import create
from trace_jax.train.step import make_step


def flops(args: argparse.Namespace) -> float:
    """Floating-point operations of the products of one step (forward once, backward twice)."""
    tokens = args.batch * args.tokens
    kernels = args.depth * 12 * args.dim**2
    attention = args.depth * 4 * args.batch * args.tokens**2 * args.dim
    return 3 * (2 * tokens * kernels + attention)


def data(args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Degraded and pristine tokens [B, N, D]."""
    rng = np.random.default_rng(0)
    shape = (args.batch, args.tokens, args.dim)
    pristine = rng.normal(size=shape).astype(np.float32)
    return pristine + 0.5 * rng.normal(size=shape).astype(np.float32), pristine


def ours(args: argparse.Namespace) -> Callable[[], float]:
    """A function that does one step of trace_jax.train and returns its seconds."""
    config = FRMConfig(args.dim, args.depth, activation=args.activation, compute_dtype=args.dtype)
    tx = optimizer.OptimizerConfig(lr=1e-4, warmup_steps=0, schedule="constant")
    mesh = sharding.make_mesh(devices=1)
    with jax.set_mesh(mesh):
        state = create(frm.init(jax.random.key(0), config), optimizer.make(tx, 1000))
        shardings = sharding.tree_shardings(state, mesh, 2**16)
        state = sharding.place(state, shardings)
        degraded, pristine = data(args)
        batch: dict[str, Any] = {"degraded": degraded, "pristine": pristine}
        batch_shardings = sharding.batch_shardings(batch, mesh)
        batch = sharding.place(batch, batch_shardings)
        step = make_step(
            frm_loss(config, LossConfig(), ContrastConfig()),
            optimizer.make(tx, 1000),
            optimizer.schedule(tx, 1000),
            clip_norm=1.0,
            seed=0,
            mesh=mesh,
            state_shardings=shardings,
            batch_shardings=batch_shardings,
        )
    box = [state]

    def run() -> float:
        began = time.perf_counter()
        box[0], figures = step(box[0], batch, {})
        jax.block_until_ready((box[0], figures))
        return time.perf_counter() - began

    return run


def reference(args: argparse.Namespace, compiled: bool) -> Callable[[], float]:
    """The same module, loss and optimizer in PyTorch, with its fused attention."""
    import torch
    from torch import nn
    from torch.nn import functional

    device = "cuda" if args.device == "gpu" else "cpu"
    approximate = "tanh" if args.activation == "gelu_pytorch_tanh" else "none"

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            d = args.dim
            self.norm1, self.norm2 = nn.LayerNorm(d, 1e-6), nn.LayerNorm(d, 1e-6)
            self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
            self.alpha1 = nn.Parameter(torch.full((d,), 1e-2))
            self.alpha2 = nn.Parameter(torch.full((d,), 1e-2))

        def forward(self, u: Any) -> Any:
            b, n, d = u.shape
            q, k, v = self.qkv(self.norm1(u)).view(b, n, 3, 8, d // 8).permute(2, 0, 3, 1, 4)
            merged = functional.scaled_dot_product_attention(q, k, v)
            u = u + self.alpha1 * self.out(merged.transpose(1, 2).reshape(b, n, d))
            hidden = functional.gelu(self.up(self.norm2(u)), approximate=approximate)
            return u + self.alpha2 * self.down(hidden)

    torch.manual_seed(0)
    module: Any = nn.Sequential(*(Block() for _ in range(args.depth))).to(device)
    fused = {"fused": True} if args.device == "gpu" else {}
    adam = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.05, **fused)
    degraded, pristine = (torch.from_numpy(x).to(device) for x in data(args))
    parameters = list(module.parameters())
    if compiled:
        module = torch.compile(module)
    half = args.dtype == "bfloat16"

    def run() -> float:
        began = time.perf_counter()
        with torch.autocast(device, torch.bfloat16, enabled=half):
            recovered = module(degraded).float()
        cosine = functional.cosine_similarity(recovered, pristine, dim=-1).mean()
        loss = functional.mse_loss(recovered, pristine) + 0.1 * (1 - cosine)
        adam.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adam.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    return run


def parts(args: argparse.Namespace) -> dict[str, float]:
    """Medians in seconds of what a step is made of, each alone: where the time goes."""
    tokens, d = args.batch * args.tokens, args.dim
    key = jax.random.key(0)
    x, w = jax.random.normal(key, (tokens, d)), jax.random.normal(key, (d, 4 * d))
    h = jax.random.normal(key, (tokens, 4 * d))
    config = FRMConfig(d, args.depth, activation=args.activation, compute_dtype=args.dtype)
    params = frm.init(key, config)
    degraded, pristine = data(args)
    loss = frm_loss(config, LossConfig(), ContrastConfig())
    batch = {"degraded": degraded, "pristine": pristine}
    whole = jax.jit(lambda p, b: loss(p, b, key)[0])
    gradient = jax.jit(jax.grad(lambda p, b: loss(p, b, key)[0]))
    forward, left, right = (jax.jit(f) for f in (_product, _left, _right))
    timed = {
        "product x @ w": (lambda: forward(x, w), 2 * tokens * 4 * d * d),
        "product x.T @ h": (lambda: left(x, h), 2 * tokens * 4 * d * d),
        "product h @ w.T": (lambda: right(h, w), 2 * tokens * 4 * d * d),
        "forward": (lambda: whole(params, batch), flops(args) / 3),
        "forward and backward": (lambda: gradient(params, batch), flops(args)),
    }
    out = {}
    for name, (call, work) in timed.items():
        _seconds(call)
        seconds = statistics.median(_seconds(call) for _ in range(args.rounds + 1))
        out[name] = seconds
        print(f"  {name:22s} {seconds * 1e3:9.1f} ms  {work / seconds / 1e9:7.1f} GFLOP/s")
    return out


def _product(x: jax.Array, w: jax.Array) -> jax.Array:
    return x @ w


def _left(x: jax.Array, h: jax.Array) -> jax.Array:
    return x.T @ h


def _right(h: jax.Array, w: jax.Array) -> jax.Array:
    return h @ w.T


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--activation", default="gelu_pytorch_tanh")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=196)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--profile", metavar="DIR")
    args = parser.parse_args()
    if args.device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    kind, cores = jax.devices()[0].device_kind, os.cpu_count()
    print(f"{flops(args) / 1e9:.0f} GFLOP a step on {kind}, {cores} cores")
    if args.parts:
        parts(args)
    runs = {"trace_jax": ours(args), "torch eager": reference(args, compiled=False)}
    if not args.no_compile:
        runs["torch.compile"] = reference(args, compiled=True)
    for name in list(runs):
        try:
            for _ in range(2):
                runs[name]()
        except Exception as error:  # torch.compile needs a C++ compiler, which may be missing
            if name == "trace_jax":
                raise
            print(f"{name}: does not run here ({type(error).__name__}: {str(error)[:200]})")
            del runs[name]
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(args.rounds):
        for name, run in runs.items():
            seconds[name].append(run())
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, median in medians.items():
        rate = flops(args) / median / 1e9
        ratio = "" if name == "trace_jax" else f"  ratio {median / medians['trace_jax']:.2f}x"
        print(f"{name:14s} {median * 1e3:9.1f} ms a step  {rate:8.1f} GFLOP/s{ratio}")
    if args.profile:
        with jax.profiler.trace(args.profile):
            runs["trace_jax"]()
    if args.json:
        ratios = {n: m / medians["trace_jax"] for n, m in medians.items() if n != "trace_jax"}
        result = {"settings": vars(args), "seconds": seconds, "ratios": ratios}
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
