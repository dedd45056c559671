"""Vision-language hosts of true width, ids and vocabulary, two or three layers, as hub folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
from safetensors import safe_open
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import converters
from trace_jax import hosts

_QWEN3 = {
    "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 2,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6,
}  # fmt: skip
_IDS = {
    "image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_vl": {
        **_IDS,
        "tie_word_embeddings": True,
        "vision_config": {
            "depth": 2, "hidden_size": 1024, "num_heads": 16, "intermediate_size": 4096,
            "out_hidden_size": 2560, "num_position_embeddings": 2304, "patch_size": 16,
            "deepstack_visual_indexes": [0],
        },
        "text_config": {
            **_QWEN3,
            "rope_parameters": {
                "rope_theta": 5e6, "rope_type": "default", "mrope_section": [24, 20, 20],
                "mrope_interleaved": True,
            },
        },
    },
    "qwen2_5_vl": {
        **_IDS,
        "tie_word_embeddings": True,
        "vision_config": {
            "depth": 2, "hidden_size": 1280, "num_heads": 16, "intermediate_size": 3420,
            "out_hidden_size": 2048, "patch_size": 14, "window_size": 112,
            "fullatt_block_indexes": [1],
        },
        "text_config": {
            "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 11008,
            "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "rope_theta": 1e6, "rope_type": "default", "mrope_section": [16, 24, 24],
            },
        },
    },
    "internvl": {
        "image_token_id": 151671,
        "tie_word_embeddings": False,
        "image_seq_length": 256,
        "vision_config": {
            "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16,
            "intermediate_size": 4096, "attention_bias": True, "image_size": [448, 448],
            "patch_size": [14, 14],
        },
        "text_config": {
            **_QWEN3,
            "model_type": "qwen3",
            "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
        },
    },
    "llava_onevision": {
        **_IDS,
        "model_type": "llavaonevision1_5",
        "vocab_size": 151936,
        "tie_word_embeddings": False,
        "vision_config": {
            "depth": 2, "embed_dim": 1024, "hidden_size": 1024, "intermediate_size": 4096,
            "num_heads": 16, "text_hidden_size": 2560, "layer_norm_eps": 1e-5,
            "hidden_act": "gelu", "in_channels": 3, "patch_size": 14, "spatial_merge_size": 2,
            "temporal_patch_size": 1,
        },
        "text_config": {
            **_QWEN3, "rope_theta": 5e6, "hidden_act": "silu", "attention_bias": False,
            "max_position_embeddings": 262144, "model_type": "LLaVAOneVision1_5_text",
        },
    },
    "molmo2": {
        "image_start_token_id": 151936, "image_end_token_id": 151937, "image_patch_id": 151938,
        "image_col_id": 151939, "low_res_image_start_token_id": 151940,
        "vision_config": {
            "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 3,
            "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 72,
            "image_size": [378, 378], "patch_size": 14,
        },
        "adapter_config": {
            "vision_feature_layer": [2, 1], "hidden_size": 1152, "num_attention_heads": 16,
            "num_key_value_heads": 16, "head_dim": 72, "intermediate_size": 9728,
            "text_hidden_size": 2560,
        },
        "text_config": {
            **_QWEN3,
            "additional_vocab_size": 128,
            "rope_parameters": {"rope_theta": 5e6, "rope_type": "default"},
        },
    },
}  # fmt: skip
# Tap shape of one 448 x 448 picture (paper, Appendix D; 725 by Molmo2's own processor).
SHAPES = {
    "qwen3_vl": (196, 2560),
    "qwen2_5_vl": (256, 2048),
    "internvl": (256, 2560),
    "llava_onevision": (256, 2560),
    "molmo2": (725, 2560),
}
_SPECIAL = {
    "<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645,
    "<|vision_start|>": 151652, "<|vision_end|>": 151653, "<|image_pad|>": 151655,
    "<|video_pad|>": 151656, "<img>": 151669, "</img>": 151670, "<IMG_CONTEXT>": 151671,
}  # fmt: skip
_MOLMO = {
    "<im_start>": 151936, "<im_end>": 151937, "<im_patch>": 151938, "<im_col>": 151939,
    "<low_res_im_start>": 151940, "<|image|>": 151941,
}  # fmt: skip
_SHARDS = 3


def folder(name: str, to: Path) -> Path:
    """Random weights in three shards with an index, a byte tokenizer with the published ids."""
    config = {"model_type": name, **CONFIGS[name]}
    host = hosts.build(name, config, jax.random.key(0))
    converters.save_host(host, to)
    _shard(to)
    _tokenizer(_SPECIAL | (_MOLMO if name == "molmo2" else {}), to)
    return to


def _shard(to: Path) -> None:
    whole = to / "model.safetensors"
    index: dict[str, str] = {}
    with safe_open(whole, "np") as source:
        keys = sorted(source.keys())
        for number in range(_SHARDS):
            name = f"model-{number + 1:05d}-of-{_SHARDS:05d}.safetensors"
            part = keys[number::_SHARDS]
            save_file({key: source.get_tensor(key) for key in part}, to / name)
            index |= dict.fromkeys(part, name)
    whole.unlink()
    text = json.dumps({"metadata": {}, "weight_map": index})
    (to / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def _tokenizer(special: dict[str, int], to: Path) -> None:
    vocabulary = {b: k for k, b in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    words = Tokenizer(models.BPE(vocab=vocabulary | special, merges=[]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    words.add_special_tokens([AddedToken(word, special=True) for word in special])
    PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    ).save_pretrained(to)
