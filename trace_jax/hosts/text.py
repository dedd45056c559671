"""Texts to token ids with the tokenizer that lies beside the weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trace_jax.errors import UserError

# Every file a tokenizer of these families may consist of; what `save_host` copies along.
TOKENIZER_FILES: tuple[str, ...] = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
_VOCABULARIES = ("tokenizer.json", "vocab.json", "tokenizer.model", "spiece.model")


class TextTokenizer:
    """Pads and cuts every text to the model's context, as zero-shot use of CLIP and SigLIP does.

    Nothing is read until the first text comes: a host without a tokenizer still encodes images.

    Args:
      folder: where the tokenizer's files lie, or None where there are none.
      context: length of a row of ids.
      lower_case: whether texts are lower-cased first (SigLIP was trained so; CLIP's own tokenizer
        does it by itself).
      vocabulary: rows of the model's token table; ids must lie below.
      end_of_text: id at which the model pools, or None: every text must hold it.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        context: int,
        lower_case: bool,
        vocabulary: int,
        end_of_text: int | None,
    ) -> None:
        self.folder = folder
        self.vocabulary = vocabulary
        self.end_of_text = end_of_text
        self.context = context
        self.lower_case = lower_case
        self._tokenizer: Any = None

    @property
    def files(self) -> tuple[Path, ...]:
        """The files there are."""
        return tokenizer_files(self.folder)

    def __call__(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """{"input_ids": int32 [T, context]}, padded on the right with the tokenizer's pad id.

        Raises:
          UserError: there is no tokenizer, it cannot be read, it is another model's (XLA would
            clamp ids beyond the table without a word), or `texts` is one bare string.
        """
        if isinstance(texts, str):
            raise UserError(f"expected a list of texts, got the single string {texts!r}")
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.folder)
        lines = [text.lower() for text in texts] if self.lower_case else list(texts)
        if not lines:
            return {"input_ids": np.zeros((0, self.context), np.int32)}
        encoded = self._tokenizer(
            lines,
            padding="max_length",
            padding_side="right",
            truncation=True,
            max_length=self.context,
            return_tensors="np",
        )
        ids = encoded["input_ids"].astype(np.int32)
        if ids.max() >= self.vocabulary:
            raise UserError(
                f"{self.folder}: the tokenizer gives id {ids.max()}, the weights know "
                f"{self.vocabulary} tokens. Put the model's own tokenizer files there."
            )
        if self.end_of_text is not None and not (ids == self.end_of_text).any(axis=1).all():
            raise UserError(
                f"{self.folder}: the tokenizer ends no text with id {self.end_of_text}, at which "
                "config.json (text_config.eos_token_id) says the model pools."
            )
        return {"input_ids": ids}


def tokenizer_files(folder: Path | None) -> tuple[Path, ...]:
    """A folder's tokenizer files, in the order of TOKENIZER_FILES."""
    if folder is None:
        return ()
    return tuple(p for n in TOKENIZER_FILES if (p := folder / n).is_file())


def load_tokenizer(folder: Path | None) -> Any:
    """transformers' tokenizer of a folder.

    Raises:
      UserError: there is none, it cannot be read, or it names no pad token.
    """
    names = {path.name for path in tokenizer_files(folder)}
    if folder is None or not names.intersection(_VOCABULARIES):
        place = "this host" if folder is None else str(folder)
        raise UserError(
            f"{place}: there is no tokenizer ({', '.join(_VOCABULARIES)}), so texts cannot be "
            "encoded. Put the model's tokenizer files beside its weights."
        )
    # Imported here: it takes seconds, and most commands encode no text.
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder}: the tokenizer cannot be read ({error}). Copy its files again."
        ) from error
    if tokenizer.pad_token_id is None:
        raise UserError(f"{folder}: the tokenizer names no pad token")
    return tokenizer
