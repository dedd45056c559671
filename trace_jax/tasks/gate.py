"""Whether a question is about what the object was (then features are recovered) or about what it
looks like now (then they must stay as they are).

A log-linear classifier on words and pairs of words, small enough to read: `gate.toml` holds the
weight of each cue, positive for what an object was. It was fitted on the training half of
`questions.toml` by `python -m trace_jax.tasks.gate --fit`; the other half was never looked at.
Works offline, in microseconds, and explains itself (`explain`).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trace_jax import files
from trace_jax.errors import UserError

ORIGIN, DAMAGE = "origin", "damage"
_FOLDER = Path(__file__).parent
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
_STRENGTH = 1.0  # of the penalty on squared weights
_KEPT = 0.05  # smaller weights are dropped from the file


@dataclasses.dataclass(frozen=True)
class Question:
    """A labelled question: `about` is "origin" or "damage", `split` "train" or "held_out"."""

    text: str
    about: str
    split: str


def recovers(question: str, mode: str = "query") -> bool:
    """Whether features are to be recovered before this question.

    Args:
      question: as the host will be asked.
      mode: "always", "never", or "query": decided by the question.

    Raises:
      UserError: unknown mode.
    """
    if mode == "query":
        return score(question) > 0
    if mode not in ("always", "never"):
        raise UserError(f"gate {mode!r}: known are always, never, query")
    return mode == "always"


def score(question: str) -> float:
    """Log-odds that the question is about what the object was."""
    return sum(weight for _, weight in explain(question))


def explain(question: str) -> list[tuple[str, float]]:
    """The cues of a question with their weights, the constant first."""
    weights = _weights()
    cues = [cue for cue in _cues(question) if cue in weights]
    return [("(constant)", weights["(constant)"]), *((cue, weights[cue]) for cue in cues)]


def questions() -> list[Question]:
    """The labelled questions of questions.toml; every second of each kind is held out."""
    table = tomllib.loads((_FOLDER / "questions.toml").read_text(encoding="utf-8"))
    return [
        Question(text, about, "held_out" if number % 2 else "train")
        for about in (ORIGIN, DAMAGE)
        for number, text in enumerate(table[about])
    ]


def patterned() -> list[Question]:
    """Further training questions: the patterns of questions.toml with their words filled in."""
    table = tomllib.loads((_FOLDER / "questions.toml").read_text(encoding="utf-8"))
    words = table["words"]
    filled = []
    for about in (ORIGIN, DAMAGE):
        for number, pattern in enumerate(table["patterns"][about]):
            for k in range(max(map(len, words.values()))):
                # Words move at unequal pace, so that each meets others.
                chosen = {
                    name: found[(k + number * place) % len(found)]
                    for place, (name, found) in enumerate(words.items(), start=1)
                }
                filled.append(Question(pattern.format(**chosen), about, "train"))
    return filled


def accuracy(rows: Sequence[Question]) -> float:
    """Share of questions put on the right side."""
    return float(np.mean([recovers(q.text) == (q.about == ORIGIN) for q in rows]))


def fit(rows: Sequence[Question]) -> dict[str, float]:
    """Weights by regularised logistic regression (Newton's method; the optimum is unique)."""
    counts = [_cues(q.text) for q in rows]
    names = sorted({cue for cues in counts for cue in cues})
    # A cue that one question has tells of that question, not of its kind.
    names = [n for n in names if sum(n in cues for cues in counts) >= 2]
    x = np.array([[1.0, *(float(n in cues) for n in names)] for cues in counts])
    y = np.array([1.0 if q.about == ORIGIN else 0.0 for q in rows])
    penalty = np.full(x.shape[1], _STRENGTH)
    penalty[0] = 1e-6
    w = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-x @ w))
        gradient = x.T @ (p - y) + penalty * w
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        w -= step
        if np.abs(step).max() < 1e-10:
            break
    found = {"(constant)": round(float(w[0]), 3)}
    return found | {
        name: round(float(v), 3) for name, v in zip(names, w[1:], strict=True) if abs(v) >= _KEPT
    }


def _cues(question: str) -> set[str]:
    """Words, what they speak of, which of that comes first, and pairs of it."""
    words = _WORD.findall(question.lower())
    topics = [_topics(word) for word in words]
    spoken = sorted({topic for found in topics for topic in found})
    pairs = {f"[{a}] with [{b}]" for i, a in enumerate(spoken) for b in spoken[i + 1 :]}
    first = next((sorted(found) for found in topics if found), [])
    return {
        *words,
        *(f"[{topic}]" for topic in spoken),
        *(f"no [{topic}]" for topic in _vocabulary() if topic not in spoken),
        *(f"first [{topic}]" for topic in first),
        *pairs,
    }


@functools.cache
def _vocabulary() -> dict[str, tuple[frozenset[str], tuple[str, ...]]]:
    """Topic to its whole words and its beginnings of words."""
    table = tomllib.loads((_FOLDER / "cues.toml").read_text(encoding="utf-8"))
    return {
        topic: (
            frozenset(entry[:-1] for entry in entries if entry.endswith("=")),
            tuple(entry for entry in entries if not entry.endswith("=")),
        )
        for topic, entries in table.items()
    }


def _topics(word: str) -> set[str]:
    return {
        topic
        for topic, (whole, beginnings) in _vocabulary().items()
        if word in whole or word.startswith(beginnings)
    }


@functools.cache
def _weights() -> dict[str, float]:
    table = tomllib.loads((_FOLDER / "gate.toml").read_text(encoding="utf-8"))
    weights = {str(k): float(v) for k, v in table["weights"].items()}
    if not all(math.isfinite(w) for w in weights.values()):
        raise UserError(f"{_FOLDER / 'gate.toml'}: a weight is not finite. Fit it again.")
    return weights


def main() -> None:
    """Fits the weights, or reports accuracy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="write gate.toml anew")
    if parser.parse_args().fit:
        weights = fit([*(q for q in questions() if q.split == "train"), *patterned()])
        lines = [
            "# Weights of the gate's cues, log-odds that a question is about what the object was.",
            "# Made by `python -m trace_jax.tasks.gate --fit` from questions.toml.",
            "",
            "[weights]",
            *(
                f'"{name}" = {weight}'
                for name, weight in sorted(weights.items(), key=lambda item: -item[1])
            ),
        ]
        files.write_text(_FOLDER / "gate.toml", "\n".join(lines) + "\n")
        _weights.cache_clear()
    for split in ("train", "held_out"):
        rows = [q for q in questions() if q.split == split]
        print(f"{split}: {accuracy(rows):.1%} of {len(rows)}")


if __name__ == "__main__":
    main()
