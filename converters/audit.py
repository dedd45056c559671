"""Every key of a config.json is handled, ignored for a stated reason, or must have one value.

A key outside the three is an error: a setting we do not know may change what the model computes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Section:
    """What is known of one section of a config.json.

    Attributes:
      handled: keys that the host's parser reads.
      ignored: keys without influence on what the host computes, with the reason.
      must_equal: keys of which the host implements one value only.
    """

    handled: Collection[str]
    ignored: Mapping[str, str]
    must_equal: Mapping[str, Any]


_BOOKKEEPING = "bookkeeping of transformers"
_GENERATION = "text generation, which an encoder does not do"
_LABELS = "labels of a classification head, which there is none of"
_TRAINING = "training only"
_OUTPUTS = "which outputs transformers returns"
_TOKENS = "the tokenizer brings its own ids"

# Settings that transformers 2-5 wrote into every section of every model.
COMMON_IGNORED: dict[str, str] = {
    **dict.fromkeys(
        (
            "_name_or_path", "architectures", "finetuning_task", "model_type", "name_or_path",
            "task_specific_params", "tokenizer_class", "transformers_version", "auto_map",
            "_commit_hash", "_attn_implementation_autoset", "attn_implementation",
            "_attn_implementation", "is_composition",
        ),
        _BOOKKEEPING,
    ),
    **dict.fromkeys(
        (
            "bad_words_ids", "decoder_start_token_id", "diversity_penalty", "do_sample",
            "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
            "forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length",
            "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
            "num_return_sequences", "prefix", "remove_invalid_values", "repetition_penalty",
            "return_dict_in_generate", "suppress_tokens", "begin_suppress_tokens", "temperature",
            "top_k", "top_p", "typical_p", "use_cache",
        ),
        _GENERATION,
    ),
    **dict.fromkeys(("id2label", "label2id", "problem_type", "num_labels"), _LABELS),
    **dict.fromkeys(
        (
            "attention_dropout", "dropout", "initializer_factor", "initializer_range",
            "gradient_checkpointing",
        ),
        _TRAINING,
    ),
    **dict.fromkeys(
        ("output_attentions", "output_hidden_states", "output_scores", "return_dict"), _OUTPUTS
    ),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id"), _TOKENS),
    **dict.fromkeys(
        ("dtype", "torch_dtype", "use_bfloat16", "torchscript"),
        "each tensor says its own dtype; the host's is asked for at load",
    ),
    "chunk_size_feed_forward": "the same numbers in smaller pieces",
    "tie_word_embeddings": "there is no output head to tie",
    "tie_encoder_decoder": "there is no decoder",
    "is_encoder_decoder": "there is no decoder",
    "cross_attention_hidden_size": "there is no cross-attention",
}  # fmt: skip
COMMON_MUST_EQUAL: dict[str, Any] = {
    "add_cross_attention": False,
    "is_decoder": False,
    "pruned_heads": {},
}


def check(
    config: Mapping[str, Any], sections: Mapping[str, Section]
) -> tuple[dict[str, str], list[str]]:
    """Audits a config.json.

    Args:
      config: its contents.
      sections: "" for the top level, then the names of nested sections. A nested section that is
        null or absent is fine; so is its old twin `<name>_dict` where the parser handles it.

    Returns:
      ignored keys ("section.key") with their reason; every fault.
    """
    ignored: dict[str, str] = {}
    faults: list[str] = []
    for name, section in sections.items():
        for place in (name,) if not name else (name, f"{name}_dict"):
            value = config if not place else config[place] if place in config else None
            if value is None:
                continue
            if not isinstance(value, Mapping):
                faults.append(f"{place} is {value!r}, not a section")
                continue
            for key in value:
                label = f"{place}.{key}" if place else key
                _check_key(label, key, value[key], section, ignored, faults)
    return ignored, faults


def _check_key(
    label: str,
    key: str,
    value: Any,
    section: Section,
    ignored: dict[str, str],
    faults: list[str],
) -> None:
    must_equal = {**COMMON_MUST_EQUAL, **section.must_equal}
    reasons = {**COMMON_IGNORED, **section.ignored}
    if key in section.handled:
        return
    if key in must_equal:
        if value != must_equal[key] and value is not None:
            faults.append(f"config.json: {label} is {value!r}, must be {must_equal[key]!r}")
    elif key in reasons:
        ignored[label] = reasons[key]
    else:
        faults.append(f"config.json: {label} = {value!r} is a setting this host does not know")
