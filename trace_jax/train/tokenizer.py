"""The nano hosts' word tokenizer, in the Hugging Face file format.

Whole lower-case words, because the nano captions come from a small closed vocabulary; a word that
was never listed becomes `<unk>`. Padding and end tokens behave as in the family that the host
belongs to, so that the same text code serves hub weights and ours.
"""

from __future__ import annotations

import json
import os
import re
import string
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from trace_jax import files

# As in the hub's SigLIP2 files: pad 0, eos 1.
_SIGLIP_SPECIAL = ("<pad>", "<eos>", "<unk>")
# As in the hub's CLIP files: the end token is the largest id and pads too, so that pooling at the
# first end token and pooling at the largest id agree.
_CLIP_UNKNOWN = "<unk>"
_CLIP_START, _CLIP_END = "<|startoftext|>", "<|endoftext|>"
_WORD = re.compile(r"\w+|[^\w\s]")


def vocabulary(texts: Iterable[str]) -> list[str]:
    """Sorted words of `texts`, with all digits, ASCII letters and punctuation marks."""
    words = set(string.digits) | set(string.ascii_lowercase) | set(string.punctuation)
    for text in texts:
        words.update(_WORD.findall(text.lower().replace("_", " ")))
    return sorted(words)


def build(words: list[str], family: str) -> Tokenizer:
    """Makes the tokenizer of a family.

    Args:
      words: see `vocabulary`.
      family: "siglip2" (text, eos, then pads of id 0) or "clip" (bos, text, eos; pads are eos).

    Raises:
      ValueError: an unknown family.
    """
    if family == "siglip2":
        order = [*_SIGLIP_SPECIAL, *words]
        special, template = [_SIGLIP_SPECIAL[1]], f"$A {_SIGLIP_SPECIAL[1]}"
    elif family == "clip":
        order = [_CLIP_UNKNOWN, *words, _CLIP_START, _CLIP_END]
        special, template = [_CLIP_START, _CLIP_END], f"{_CLIP_START} $A {_CLIP_END}"
    else:
        raise ValueError(f"no tokenizer for family {family!r}")
    ids = {word: place for place, word in enumerate(order)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace("_", " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Punctuation("isolated"),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(token, ids[token]) for token in special]
    )
    tokenizer.add_special_tokens(
        [t for t in (*_SIGLIP_SPECIAL, _CLIP_START, _CLIP_END) if t in ids]
    )
    return tokenizer


def save(tokenizer: Tokenizer, folder: str | os.PathLike[str], family: str, context: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json; transformers' AutoTokenizer reads them.

    Args:
      tokenizer: see `build`.
      folder: target, made if missing.
      family: as for `build`.
      context: longest text in tokens, with its special tokens.
    """
    folder = Path(folder)
    settings: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "padding_side": "right",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids"],
        "unk_token": "<unk>",
    }
    if family == "siglip2":
        settings |= {"pad_token": _SIGLIP_SPECIAL[0], "eos_token": _SIGLIP_SPECIAL[1]}
    else:
        settings |= {
            "pad_token": _CLIP_END,
            "bos_token": _CLIP_START,
            "eos_token": _CLIP_END,
            "model_input_names": ["input_ids", "attention_mask"],
        }
    text = json.dumps(json.loads(tokenizer.to_str()), indent=1, ensure_ascii=False)
    files.write_text(folder / "tokenizer.json", text + "\n")
    files.write_json(folder / "tokenizer_config.json", settings)


def special_ids(tokenizer: Tokenizer, family: str) -> dict[str, int]:
    """The ids that config.json's text_config names for this tokenizer."""
    if family == "siglip2":
        names = {"pad_token_id": _SIGLIP_SPECIAL[0], "eos_token_id": _SIGLIP_SPECIAL[1]}
    else:
        names = {"pad_token_id": _CLIP_END, "bos_token_id": _CLIP_START, "eos_token_id": _CLIP_END}
    ids = tokenizer.get_vocab()
    return {key: ids[token] for key, token in names.items()}
