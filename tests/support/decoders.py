"""Text decoders of the reference classes, drawn anew, and ours filled from what they save."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import torch
from flax import nnx
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from converters.decoder import text_decoder
from converters.leaves import flatten, unflatten
from converters.load import _fill
from converters.rules import plan
from converters.tensors import Checkpoint
from trace_jax.hosts.text_decoder import DecoderConfig, TextDecoder, parse

CLASSES = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}
SIZES = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rope_parameters": {"rope_theta": 5e6, "rope_type": "default"},
}


def reference(kind: str, sizes: dict, *, tied: bool, seed: int = 0, std: float = 0.2):
    """A random causal language model of the reference class."""
    config_class, model_class = CLASSES[kind]
    model = model_class(config_class(**sizes, tie_word_embeddings=tied))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            centre = 1.0 if "norm" in key else 0.0
            parameter.normal_(centre, std, generator=generator)
    model.set_attn_implementation("eager")
    return model.eval()


def ours(kind: str, sizes: dict, *, tied: bool, folder: Path) -> tuple[TextDecoder, DecoderConfig]:
    """Our decoder with the weights that `save_pretrained` wrote to `folder`."""
    config = parse(
        sizes,
        tied=tied,
        query_key_norm=kind == "qwen3",
        qkv_bias=kind == "qwen2",
        layout="plain",
    )
    make = lambda: TextDecoder(config, dtype=jnp.dtype("float32"), rngs=nnx.Rngs(params=0))  # noqa: E731
    graph, state = nnx.split(nnx.eval_shape(make))
    leaves = {f"text/{k}": v for k, v in flatten(nnx.to_pure_dict(state)).items()}
    checkpoint = Checkpoint.open(folder)
    assert not checkpoint.faults
    pieces, _, faults = plan(
        {path: leaf.shape for path, leaf in leaves.items()},
        text_decoder(config, "text", "model", "lm_head.weight"),
        {key: info.shape for key, info in checkpoint.tensors.items()},
        {},
    )
    assert not faults, faults
    params = unflatten(dict(flatten(_fill(checkpoint, leaves, pieces, None))))["text"]
    return nnx.merge(graph, params), config
