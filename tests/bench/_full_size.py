"""A random bfloat16 checkpoint of Qwen3-VL-4B's true size: load it, answer, tell the peak memory.

    python tests/bench/_full_size.py [--folder=DIR] [--tokens=8]

Writes 8.9 GB in hub layout (sharded safetensors) to the folder, unless they lie there already;
loads them in bfloat16 through the real loader and generates. No part of bin/bench: it takes minutes
and 20 GB of memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import vision_language as tiny

CONFIG = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652,
    "vision_end_token_id": 151653, "tie_word_embeddings": True,
    "vision_config": {
        "depth": 24, "hidden_size": 1024, "num_heads": 16, "intermediate_size": 4096,
        "out_hidden_size": 2560, "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [5, 11, 17], "patch_size": 16,
    },
    "text_config": {
        "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_parameters": {
            "rope_theta": 5e6, "rope_type": "default", "mrope_section": [24, 20, 20],
            "mrope_interleaved": True,
        },
    },
}  # fmt: skip
_SHARD = 2 << 30


def write(folder: Path) -> None:
    """Random weights in shards of 2 GB, one shard in memory at a time."""
    config = Qwen3VLConfig(**CONFIG)
    with torch.device("meta"):
        shapes = Qwen3VLForConditionalGeneration(config).state_dict()
    shapes.pop("lm_head.weight", None)  # tied
    generator = torch.Generator().manual_seed(0)
    index: dict[str, str] = {}
    part: dict[str, torch.Tensor] = {}
    held = number = 0

    def flush() -> None:
        nonlocal part, held, number
        number += 1
        name = f"model-{number:05d}.safetensors"
        save_file(part, folder / name)
        index.update(dict.fromkeys(part, name))
        part, held = {}, 0

    for key, meta in shapes.items():
        centre = 1.0 if "norm" in key and key.endswith("weight") else 0.0
        value = torch.randn(meta.shape, generator=generator, dtype=torch.float32)
        part[key] = value.mul_(0.02).add_(centre).to(torch.bfloat16)
        held += part[key].numel() * 2
        if held > _SHARD:
            flush()
    flush()
    config.save_pretrained(folder)
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def peak() -> float:
    """The most memory that this process has had, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--write_only", action="store_true")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model.safetensors.index.json").exists():
        print(f"writing the checkpoint into {folder}; run again with --folder={folder} to measure")
        write(folder)
        # Writing has its own peak: loading is measured in a process of its own.
        return
    if args.write_only:
        return
    import converters

    began = time.perf_counter()
    host = converters.load_host("qwen3_vl", folder, dtype="bfloat16")
    print(
        f"{host.spec.num_params:,} parameters loaded in {time.perf_counter() - began:.0f} s, "
        f"peak {peak():.1f} GiB"
    )
    began = time.perf_counter()
    features = host.tap(host.preprocess([tiny.picture(448, 448)]))
    print(
        f"tap {features.tokens.shape} in {time.perf_counter() - began:.0f} s, peak {peak():.1f} GiB"
    )
    prompt = [151644, 872, 198, 151652, 151655, 151653, 3838, 374, 419, 30, 151645, 198]
    for attempt in ("compiled and ran", "ran"):
        began = time.perf_counter()
        (row,) = host.generate(features, [prompt], max_new_tokens=args.tokens, return_tokens=True)
        print(
            f"{attempt}: {len(row)} tokens in {time.perf_counter() - began:.0f} s, "
            f"peak {peak():.1f} GiB"
        )


if __name__ == "__main__":
    main()
