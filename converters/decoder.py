"""The shared text decoder in the Hugging Face layout of Qwen3 and Qwen2."""

from __future__ import annotations

from converters.audit import Section
from converters.rules import TRANSPOSE, Rule, Stack, Take
from trace_jax.hosts.text_decoder import DecoderConfig


def text_decoder(config: DecoderConfig, flax: str, hub: str, head: str) -> dict[str, Rule]:
    """Rules for a decoder whose tensors are named as transformers' Qwen3Model names them.

    Args:
      config: decides which optional tensors there are.
      flax: path of the decoder's leaves, e.g. "text".
      hub: prefix of the source keys, e.g. "model.language_model".
      head: source key of an untied output head.
    """
    layer = f"{hub}.layers.{{}}"
    maps = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj"}
    rules: dict[str, Rule] = {
        f"{flax}/tokens/table": Take(f"{hub}.embed_tokens.weight"),
        f"{flax}/norm/scale": Take(f"{hub}.norm.weight"),
        f"{flax}/layers/norm1/scale": Stack(Take(f"{layer}.input_layernorm.weight")),
        f"{flax}/layers/norm2/scale": Stack(Take(f"{layer}.post_attention_layernorm.weight")),
    }
    for ours, theirs in maps.items():
        key = f"{layer}.self_attn.{theirs}"
        rules[f"{flax}/layers/attention/{ours}/kernel"] = Stack(Take(f"{key}.weight", TRANSPOSE))
        if config.qkv_bias and ours != "out":
            rules[f"{flax}/layers/attention/{ours}/bias"] = Stack(Take(f"{key}.bias"))
    for name in ("gate", "up", "down"):
        rules[f"{flax}/layers/mlp/{name}/kernel"] = Stack(
            Take(f"{layer}.mlp.{name}_proj.weight", TRANSPOSE)
        )
    if config.query_key_norm:
        for ours, theirs in (("query_norm", "q_norm"), ("key_norm", "k_norm")):
            rules[f"{flax}/layers/attention/{ours}/scale"] = Stack(
                Take(f"{layer}.self_attn.{theirs}.weight")
            )
    if not config.tied:
        rules[f"{flax}/head/kernel"] = Take(head, TRANSPOSE)
    return rules


# Settings of a Qwen-type text section.
TEXT_SECTION = Section(
    (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "hidden_act",
        "rope_theta", "rope_parameters", "rope_scaling",
    ),
    {
        "max_position_embeddings": "rotary positions have no table; prompts are far shorter",
        "sliding_window": "used only with use_sliding_window",
        "max_window_layers": "used only with use_sliding_window",
        "layer_types": "every layer attends to everything before it",
        "tie_word_embeddings": "the top level decides",
    },
    {"attention_bias": False, "use_sliding_window": False, "attention_dropout": 0.0},
)  # fmt: skip
