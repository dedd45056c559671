"""Questions about images to padded token ids, positions and places for image tokens; numpy only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trace_jax.errors import UserError
from trace_jax.files import read_json
from trace_jax.hosts.text import load_tokenizer, tokenizer_files

# Lengths are rounded up to a multiple of this, so that few shapes are compiled.
_BUCKET = 32

Prompts = Sequence[str] | Sequence[Sequence[int]]


class Chat:
    """A model's tokenizer, the words around a question, and where an answer ends.

    Nothing is read until the first text comes: features can be made without a tokenizer.

    Args:
      folder: where the tokenizer's files lie, or None where there are none.
      image_token: id of the placeholder of one image token.
      written: the family's own chat format, (question, images) -> text with one placeholder an
        image; used where the folder brings no chat template.
      vocabulary: rows of the model's token table; ids must lie below.
      stop: ids that end an answer, where the folder does not say.
      around: words that stand before and after an image's placeholders and that the family's
        processor, not its template, writes.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        image_token: int,
        written: Callable[[str, int], str],
        vocabulary: int,
        stop: Sequence[int] = (),
        around: tuple[str, str] = ("", ""),
    ) -> None:
        self.folder = folder
        self.image_token = image_token
        self.vocabulary = vocabulary
        self._written = written
        self._stop = tuple(stop)
        self._around = around
        self._tokenizer: Any = None

    @property
    def files(self) -> tuple[Path, ...]:
        """The tokenizer's files there are."""
        return tokenizer_files(self.folder)

    @property
    def tokenizer(self) -> Any:
        """transformers' tokenizer.

        Raises:
          UserError: the folder has none.
        """
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.folder)
        return self._tokenizer

    @property
    def stop(self) -> tuple[int, ...]:
        """Ids that end an answer: generation_config.json's, else the config's."""
        found = self._generation("eos_token_id")
        if found is None:
            return self._stop
        return tuple(found) if isinstance(found, list) else (found,)

    @property
    def repetition_penalty(self) -> float:
        """What transformers' `generate` would use: generation_config.json's, else 1."""
        found = self._generation("repetition_penalty")
        return 1.0 if found is None else float(found)

    def _generation(self, key: str) -> Any:
        """A setting of generation_config.json, None where it is not set."""
        path = None if self.folder is None else self.folder / "generation_config.json"
        if path is None or not path.is_file():
            return None
        settings = read_json(path)
        return settings[key] if key in settings else None

    def text(self, question: str, images: int) -> str:
        """The whole prompt in words, one placeholder an image."""
        if self.tokenizer.chat_template:
            content = [{"type": "image"}] * images + [{"type": "text", "text": question}]
            text = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
            )
        else:
            text = self._written(question, images)
        before, after = self._around
        if not before + after:
            return text
        placeholder = self.tokenizer.convert_ids_to_tokens(self.image_token)
        return text.replace(placeholder, f"{before}{placeholder}{after}")

    def ids(self, question: str, images: int) -> list[int]:
        """The whole prompt in ids, one placeholder an image.

        Raises:
          UserError: no tokenizer, or one of another model.
        """
        ids = self.tokenizer(self.text(question, images), add_special_tokens=False)["input_ids"]
        if max(ids, default=0) >= self.vocabulary:
            raise UserError(
                f"{self.folder}: the tokenizer gives id {max(ids)}, the weights know "
                f"{self.vocabulary} tokens. Put the model's own tokenizer files there."
            )
        return list(ids)

    def decode(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        """Answers in words, without special tokens."""
        return [self.tokenizer.decode(list(row), skip_special_tokens=True) for row in tokens]


def arrange(
    chat: Chat,
    prompts: Prompts,
    grids: np.ndarray,
    *,
    images: Sequence[int] | None,
    tokens_of: Callable[[np.ndarray], np.ndarray],
    stride: int,
    spatial: bool,
    words_of: Callable[[np.ndarray], np.ndarray] | None = None,
    token: int | None = None,
) -> dict[str, np.ndarray]:
    """Prompts as the arrays that prefill takes.

    Args:
      chat: the host's.
      prompts: questions, or ready token ids, in which an image stands as one placeholder or as one
        a token.
      grids: int [images, 2], rows and columns of each image's tokens, in order over all prompts.
      images: how many images each prompt has; None: one each, or as many as its ids name.
      tokens_of: grids [n, 2] to the number of tokens of each.
      stride: places that the features hold for each image.
      spatial: whether image tokens have row and column positions (mrope), or count on like text.
      words_of: an image's grid to the ids that stand for it, where there are more than its tokens
        (Molmo2's markers); a prompt then has one placeholder an image.
      token: which of those ids is a token of the image; None: the placeholder's.

    Returns:
      ids int32 [B, L], padded on the left; real bool [B, L]; slots int32 [B, L], which row of the
      flattened features stands there, or -1; positions int32 [3, B, L]; next_position int32 [B].

    Raises:
      UserError: as many images as prompts speak of are not there.
    """
    if isinstance(prompts, str):
        raise UserError(f"expected a list of questions, got the single string {prompts!r}")
    rows, found = _rows(chat, prompts, len(grids), images)
    if sum(found) != len(grids):
        raise UserError(
            f"the prompts speak of {sum(found)} images, the features hold {len(grids)}. "
            "Say how many each has with images=[...]."
        )
    counts = np.asarray(tokens_of(grids), np.int64).reshape(-1)
    token = chat.image_token if token is None else token
    words = [
        np.full(count, token, np.int32) if words_of is None else words_of(grid)
        for grid, count in zip(grids, counts, strict=True)
    ]
    filled = []
    first = 0
    for row, number in zip(rows, found, strict=True):
        span = slice(first, first + number)
        places = grids[span] if spatial else None
        filled.append(_fill(chat, row, places, words[span], token, first * stride, stride))
        first += number
    longest = max((len(row[0]) for row in filled), default=0)
    length = -(-max(longest, 1) // _BUCKET) * _BUCKET
    batch = len(filled)
    out = {
        "ids": np.zeros((batch, length), np.int32),
        "real": np.zeros((batch, length), bool),
        "slots": np.full((batch, length), -1, np.int32),
        "positions": np.zeros((3, batch, length), np.int32),
        "next_position": np.zeros(batch, np.int32),
    }
    for index, (ids, slots, positions) in enumerate(filled):
        start = length - len(ids)
        out["ids"][index, start:] = ids
        out["real"][index, start:] = True
        out["slots"][index, start:] = slots
        out["positions"][:, index, start:] = positions
        out["next_position"][index] = positions.max(initial=-1) + 1
    return out


def _rows(
    chat: Chat, prompts: Prompts, images: int, given: Sequence[int] | None
) -> tuple[list[list[int]], list[int]]:
    """Ids of every prompt and how many images each has."""
    if given is not None and len(given) != len(prompts):
        raise UserError(f"images= names {len(given)} prompts, there are {len(prompts)}")
    if prompts and not isinstance(prompts[0], str):
        rows = [[int(token) for token in row] for row in prompts]
        return rows, [_runs(row, chat.image_token) for row in rows] if given is None else [*given]
    number = [1 if images else 0] * len(prompts) if given is None else [*given]
    return [chat.ids(str(p), n) for p, n in zip(prompts, number, strict=True)], number


def _runs(row: Sequence[int], token: int) -> int:
    """Images of a row of ids: runs of placeholders."""
    return sum(
        1 for i, value in enumerate(row) if value == token and (not i or row[i - 1] != token)
    )


def _fill(
    chat: Chat,
    row: Sequence[int],
    grids: np.ndarray | None,
    words: Sequence[np.ndarray],
    token: int,
    start: int,
    stride: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One prompt with its images' words in their places: ids, slots, positions [3, L]."""
    ids: list[int] = []
    slots: list[int] = []
    parts: list[np.ndarray] = []
    at, image, index = 0, 0, 0
    while index < len(row):
        if row[index] != chat.image_token:
            ids.append(row[index])
            slots.append(-1)
            parts.append(np.full((3, 1), at))
            at += 1
            index += 1
            continue
        if image >= len(words):
            raise UserError(f"a prompt has more image placeholders than its {len(words)} images")
        own = words[image] == token
        count = int(own.sum())
        given = 1
        while index + given < len(row) and row[index + given] == chat.image_token:
            given += 1
        # One placeholder an image, or one a token; images may follow each other directly.
        taken = count if given >= count and token == chat.image_token else 1
        ids += words[image].tolist()
        slots += np.where(own, start + image * stride + np.cumsum(own) - 1, -1).tolist()
        if grids is not None:
            down, across = (int(n) for n in grids[image])
            places = np.indices((down, across)).reshape(2, -1)
            parts.append(at + np.concatenate([np.zeros((1, count), int), places]))
            at += max(down, across)
        else:
            parts.append(np.broadcast_to(at + np.arange(len(own)), (3, len(own))))
            at += len(own)
        image += 1
        index += taken
    if image != len(words):
        raise UserError(f"a prompt has {image} image placeholders for its {len(words)} images")
    positions = np.concatenate(parts, axis=1) if parts else np.zeros((3, 0), int)
    return np.asarray(ids, np.int32), np.asarray(slots, np.int32), positions.astype(np.int32)
