"""SigLIP2-base image encoding against transformers' model: A B A B, medians, their ratio.

    bin/bench encode          # or: python tests/bench/encode.py [--json=FILE] [--rounds=7]

224 pixels, batch 8, float32, random weights shared by both sides through the real loader, whole
vision tower with its attention-pooling head. The reference runs with SDPA under inference_mode.
Ratio above 1: ours is faster. Both answers are compared too: a fast wrong one is no result.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import torch
from transformers import SiglipConfig, SiglipModel

import converters

Encode = Callable[[], np.ndarray]


def sides(batch: int) -> dict[str, Encode]:
    """The two ways from the same pixels to image embeddings [B, 768]."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.manual_seed(0)
    # A short vocabulary: the text tower is not measured.
    reference = SiglipModel(SiglipConfig(text_config={"vocab_size": 1000}, vision_config={}))
    reference.set_attn_implementation("sdpa")
    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        host = converters.load_host("siglip2", folder)
    vision = reference.vision_model.eval()
    pixels = np.random.default_rng(0).normal(size=(batch, 224, 224, 3)).astype(np.float32)
    inputs = {"pixel_values": jax.device_put(pixels)}
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))

    def ours() -> np.ndarray:
        return np.asarray(host.forward(inputs).embedding)

    def theirs() -> np.ndarray:
        with torch.inference_mode():
            return vision(images).pooler_output.numpy()

    return {"trace_jax": ours, "transformers": theirs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    encode = sides(args.batch)
    answers = {name: call() for name, call in encode.items()}  # warm up, and compile ours
    difference = np.abs(answers["trace_jax"] - answers["transformers"]).max()
    seconds: dict[str, list[float]] = {name: [] for name in encode}
    for _ in range(args.rounds):
        for name, call in encode.items():
            began = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    ratio = medians["transformers"] / medians["trace_jax"]
    print(f"SigLIP2-base, 224 pixels, batch {args.batch}, float32, {os.cpu_count()} cores")
    for name, median in medians.items():
        low, high = min(seconds[name]), max(seconds[name])
        rate = args.batch / median
        print(f"  {name:12s} {median:.3f} s ({low:.3f}-{high:.3f}), {rate:.2f} images/s")
    print(f"  ratio {ratio:.2f} (above 1: ours is faster); largest difference {difference:.1e}")
    if args.json:
        result = {"ratio": ratio, "seconds": seconds, "difference": float(difference)}
        result |= {"batch": args.batch, "load": os.getloadavg()[0]}
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
