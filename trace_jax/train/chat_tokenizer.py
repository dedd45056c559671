"""The tokenizer of a nano vision-language host, in the Hugging Face file format.

Byte-level BPE with Qwen's special tokens, so that the same text code serves hub weights and ours
and every text comes back as it was. Sentences that every training prompt repeats are tokens of
their own: a nano decoder then reads a question in a handful of steps.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from trace_jax import files

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
IMAGE = "<|image_pad|>"
_SPECIAL = (PAD, START, END, "<|vision_start|>", "<|vision_end|>", IMAGE, "<|video_pad|>")


def build(texts: Iterable[str], sentences: Sequence[str], size: int) -> Tokenizer:
    """Learns the merges.

    Args:
      texts: what is asked and answered.
      sentences: each becomes one token, exactly as written.
      size: rows of the vocabulary without special tokens and sentences; at least the 256 bytes.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(sorted(set(texts)), trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in _SPECIAL])
    tokenizer.add_tokens([AddedToken(s, normalized=False) for s in sorted(set(sentences))])
    return tokenizer


def save(tokenizer: Tokenizer, folder: str | os.PathLike[str]) -> None:
    """Writes the files that transformers' AutoTokenizer reads, and where answers end."""
    folder = Path(folder)
    ids = tokenizer.get_vocab()
    files.write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True) + "\n")
    files.write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "padding_side": "left",
            "model_input_names": ["input_ids", "attention_mask"],
            "pad_token": PAD,
            "eos_token": END,
        },
    )
    files.write_json(
        folder / "generation_config.json",
        {"eos_token_id": [ids[END], ids[PAD]], "pad_token_id": ids[PAD], "do_sample": False},
    )
