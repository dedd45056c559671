"""Greedy decoding against transformers' generate: A B A B, medians, their ratio.

    bin/bench decode          # or: python tests/bench/decode.py [--json=FILE] [--rounds=5]

Qwen3-VL with random weights shared through the real loader, float32, one picture a prompt, 32 new
tokens: a tiny model, and one of true width (hidden 2560, vocabulary 151,936) with two layers, each
at batch 1 and 4. Both sides start from the picture's features, so that decoding alone is timed; the
tokens must be equal. Ratio above 1: ours is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import vision_language as tiny

import converters

NEW_TOKENS = 32
SIZES: dict[str, dict[str, Any] | None] = {
    "tiny": None,
    "true width, 2 layers": tiny.QWEN3_TRUE_WIDTH,
}


def sides(changes: dict[str, Any] | None, batch: int) -> dict[str, Any]:
    """The two ways from the same features to token ids."""
    model = tiny.build("qwen3_vl", changes, std=0.02 if changes else 0.2)
    model.set_attn_implementation("sdpa")
    with tempfile.TemporaryDirectory() as folder:
        host = converters.load_host("qwen3_vl", tiny.save(model, Path(folder)))
    pictures = [tiny.picture(224, 224, seed) for seed in range(batch)]
    inputs = host.preprocess(pictures)
    pixels, grid = tiny.packed(inputs)
    prompts = tiny.ids_with_images([20] * batch, [1] * batch)
    features = host.tap(inputs)
    given = tiny.reference_text(host.arrange(features, prompts), grid)
    with torch.inference_mode():
        vision = model.model.get_image_features(pixels, grid)

    def ours() -> list[list[int]]:
        return host.generate(features, prompts, max_new_tokens=NEW_TOKENS, return_tokens=True)

    def theirs() -> list[list[int]]:
        with torch.inference_mode():
            whole = model.generate(
                **given, mm_encoder_outputs={"image": vision}, do_sample=False,
                max_new_tokens=NEW_TOKENS, pad_token_id=0, eos_token_id=None,
            )  # fmt: skip
        return whole[:, given["input_ids"].shape[1] :].tolist()

    return {"trace_jax": ours, "transformers": theirs}


def measure(label: str, changes: dict[str, Any] | None, batch: int, rounds: int) -> dict[str, Any]:
    """Medians of one size and batch."""
    calls = sides(changes, batch)
    answers = {name: call() for name, call in calls.items()}  # warm up, and compile ours
    same = answers["trace_jax"] == answers["transformers"]
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    ratio = medians["transformers"] / medians["trace_jax"]
    rates = {name: batch * NEW_TOKENS / median for name, median in medians.items()}
    print(
        f"  {label}, batch {batch}: "
        + ", ".join(f"{name} {rate:.1f} tokens/s" for name, rate in rates.items())
        + f"; ratio {ratio:.2f} (above 1: ours is faster); tokens {'equal' if same else 'DIFFER'}"
    )
    return {"size": label, "batch": batch, "seconds": seconds, "ratio": ratio, "equal": same}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(f"Qwen3-VL, {NEW_TOKENS} new tokens, float32, {os.cpu_count()} cores")
    found = [
        measure(label, changes, batch, args.rounds)
        for label, changes in SIZES.items()
        for batch in (1, 4)
    ]
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if not all(one["equal"] for one in found):
        sys.exit("the two sides answer differently: a fast wrong one is no result")


if __name__ == "__main__":
    main()
