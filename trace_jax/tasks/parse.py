"""From a model's free answer to sets of labels, by documented rules.

What the rules cannot read is its own outcome, "unparseable": it is counted apart and is never right
by accident. The rules, in order, for every answer:

1. Special tokens (`<|im_end|>`), markdown marks and surrounding space go.
2. A correction wins over what it corrects: of "wood ... actually, it was plastic" only what
   follows the last correcting word counts, if it names anything.
3. What is negated does not count: "not wood but plastic" is plastic.
4. Lists are split at commas, semicolons, slashes, line ends, "and" and "or"; every piece is looked
   up in the taxonomy's synonym tables (paper C.3, C.4). Order and repetition do not matter.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable

from trace_jax import taxonomy
from trace_jax.tasks.prompts import FUNCTION_LABEL, MATERIALS_LABEL

_SPECIAL = re.compile(r"<\|[^|<>]*\|>|</?s>|<(?:eos|pad|bos)>|<think>.*?(?:</think>|$)", re.DOTALL)
# An underscore inside a word is part of a tag ("food_storage"), not emphasis.
_MARKDOWN = re.compile(
    r"[*`#]{1,3}(?=\S)|(?<=\S)[*`#]{1,3}|(?<!\w)_{1,3}(?=\S)|(?<=\S)_{1,3}(?!\w)|"
    r"^\s*(?:[-•>]|\d+[.)])\s+",
    re.MULTILINE,
)
_CORRECTION = re.compile(
    r"\b(?:actually|correction|no,? wait|wait,? no|or rather|i mean|on second thou?ght)\b[,:]?",
    re.IGNORECASE,
)
_NOT_BUT = re.compile(r"\bnot\b[^,;.\n]*?\bbut(?: rather)?\b", re.IGNORECASE)
_NEGATED = re.compile(
    r"\b(?:not|no|without|rather than|instead of|isn'?t|wasn'?t|aren'?t|never)\b[^,;.\n]*",
    re.IGNORECASE,
)
_LIST = re.compile(r"[,;/|\n]|\s&\s|\band\b|\bor\b|\bplus\b", re.IGNORECASE)
_LABEL = re.compile(r"^\s*(?:the\s+)?(?:main\s+|original\s+)?materials?\b[^:]{0,40}:\s*", re.I)


@dataclasses.dataclass(frozen=True)
class Labels:
    """Labels read from an answer.

    Attributes:
      found: the labels.
      unparseable: whether nothing at all could be read.
      unknown: pieces that no table resolves.
    """

    found: frozenset[str]
    unparseable: bool
    unknown: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Description:
    """The three fields of a one-sentence description (paper C.4).

    Attributes:
      identity: object type, or None where no table resolves the phrase.
      identity_phrase: the words it was read from, "" where there are none.
      materials: see Labels.
      function: canonical tag, or None.
      function_phrase: the words it was read from.
    """

    identity: str | None
    identity_phrase: str
    materials: Labels
    function: str | None
    function_phrase: str

    @property
    def unparseable(self) -> bool:
        """Whether nothing at all could be read."""
        return self.identity is None and self.function is None and not self.materials.found


@dataclasses.dataclass(frozen=True)
class Answer:
    """The two fields of a functional-reasoning answer (paper C.5)."""

    functions: Labels
    materials: Labels


def clean(answer: str) -> str:
    """The answer without special tokens, markdown and surrounding space."""
    return _MARKDOWN.sub("", _SPECIAL.sub(" ", answer)).strip()


def materials(answer: str) -> Labels:
    """Material classes of a comma-separated list, or of looser words."""
    text = _LABEL.sub("", clean(answer))
    for part in reversed(_CORRECTION.split(text)):
        labels = _labels(_affirmed(part), _material)
        if labels.found:
            return labels
    return _labels(_affirmed(text), _material)


def description(answer: str) -> Description:
    """Identity, materials and function of a sentence."""
    text = clean(answer)
    kept = next(
        (part for part in reversed(_CORRECTION.split(text)) if _identity(_affirmed(part))[0]), text
    )
    whole, identity_text = _affirmed(text), _affirmed(kept)
    identity, phrase = _identity(identity_text)
    function, purpose = _function(whole)
    return Description(identity, phrase, _made_of(whole, phrase), function, purpose)


def function_answer(answer: str, *, strict: bool) -> Answer:
    """Function tags and restoration materials of the two labelled lines.

    Args:
      answer: the model's words.
      strict: only the form that was asked for counts: the two labels, each at the start of a line
        and once, canonical tags, single words. Otherwise labels may differ in case and wording,
        stand in a row or be missing (then the first line is about function), and words are
        resolved by the synonym tables.
    """
    text = _SPECIAL.sub(" ", answer).strip() if strict else clean(answer)
    fields = _strict_fields(text) if strict else _lenient_fields(text)
    if fields is None:
        nothing = Labels(frozenset(), True)
        return Answer(nothing, nothing)
    function, made_of = fields
    if strict:
        return Answer(_labels(function, _canonical_tag), _labels(made_of, _material))
    return Answer(_labels(_affirmed(function), _tag), materials(made_of))


# ---- rules


def _affirmed(text: str) -> str:
    return _NEGATED.sub(" ", _NOT_BUT.sub(" ", text))


def _labels(text: str, look_up: Callable[[str], str | None]) -> Labels:
    pieces = [piece.strip(" .:!?\"'()[]{}") for piece in _LIST.split(text)]
    pieces = [piece for piece in pieces if piece]
    found, unknown = set(), []
    for piece in dict.fromkeys(pieces):
        label = look_up(piece)
        if label is None:
            unknown.append(piece)
        else:
            found.add(label)
    return Labels(frozenset(found), not found, tuple(unknown))


@functools.cache
def _material(piece: str) -> str | None:
    words = taxonomy.load()
    return words.normalise_material(_lead(piece))


@functools.cache
def _tag(piece: str) -> str | None:
    words = taxonomy.load()
    return _canonical_tag(piece) or words.normalise_function(piece)


def _canonical_tag(piece: str) -> str | None:
    tag = piece.strip().lower().replace(" ", "_")
    return tag if tag in taxonomy.load().functions else None


# "It was made of", "mainly", "probably some": words before a material that say nothing of it.
_LEAD = re.compile(
    r"^(?:(?:it|they|this|that|the object|object|which|was|were|is|are|be|been|made|mostly|mainly|"
    r"primarily|probably|possibly|likely|perhaps|maybe|some|of|from|out|with|most|also|main|"
    r"materials?)\s+)+",
    re.IGNORECASE,
)


def _lead(piece: str) -> str:
    return _LEAD.sub("", piece)


_COPULA = re.compile(
    r"\b(?:was|is|were|are|be|been|being|resembles|looks like|seems like|appears like)\b"
    r"(?:\s+(?:most\s+)?(?:likely|probably|originally|once|possibly|perhaps|presumably|almost|"
    r"certainly|clearly|formerly|to be|to have been|been))*\s+",
    re.IGNORECASE,
)
_NOUN_END = re.compile(
    r"[.;:!?\n(]|,|\b(?:made|used|which|that|designed|intended|constructed|built|consisting|"
    r"composed|typically|commonly|meant|crafted|featuring|for|where|whose|to|before|from)\b",
    re.IGNORECASE,
)
_MADE_OF = re.compile(
    r"\b(?:made|constructed|built|composed|crafted|consisting|fabricated|formed|manufactured)\b"
    r"(?:\s+(?:up|mainly|mostly|primarily|largely|entirely|chiefly|predominantly|probably|likely|"
    r"out))*\s+(?:of|from|with|in|out of)\s+",
    re.IGNORECASE,
)
_MADE_END = re.compile(
    r"[.;:!?\n]|,?\s*\b(?:used|which|that|designed|intended|meant|serving|typically|commonly|"
    r"for|it|its|and (?:was |is )?(?:used|designed|intended|meant|served))\b",
    re.IGNORECASE,
)
_PURPOSE = re.compile(
    r"\b(?:used|intended|designed|meant|serv(?:ed|es|ing)|function(?:ed|s|ing)|suitable|ideal|"
    r"useful|purpose|use)\b(?:\s+(?:is|was|use|purpose|primarily|mainly|mostly|typically|"
    r"commonly|as|for|to|of|in))*\s+",
    re.IGNORECASE,
)
_LOOSE_PURPOSE = re.compile(r"\b(?:for|to)\s+(?=\w+)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.;!?\n]")


def _identity(text: str) -> tuple[str | None, str]:
    """Type and the noun phrase it comes from: after the first copula, else the opening words."""
    phrases = [text[m.end() :] for m in _COPULA.finditer(text)] + [text]
    cut = [_cut(phrase, _NOUN_END) for phrase in phrases]
    cut = [phrase for phrase in cut if phrase]
    for phrase in cut:
        found = taxonomy.load().normalise_type(phrase)
        if found:
            return found, phrase
    return None, cut[0] if cut else ""


def _made_of(text: str, noun_phrase: str) -> Labels:
    """Materials after "made of"; where nothing stands there, those of the noun's adjectives."""
    found: set[str] = set()
    unknown: list[str] = []
    for match in _MADE_OF.finditer(text):
        labels = _labels(_cut(text[match.end() :], _MADE_END), _material)
        found |= labels.found
        unknown += labels.unknown
    if not found:
        words = noun_phrase.replace("-", " ").split()
        found = {m for word in words[:-1] if (m := _material(word)) is not None}
    return Labels(frozenset(found), not found, tuple(unknown))


def _function(text: str) -> tuple[str | None, str]:
    """Tag and the statement of purpose it comes from."""
    phrases = [text[m.end() :] for m in _PURPOSE.finditer(text)]
    phrases += [text[m.end() :] for m in _LOOSE_PURPOSE.finditer(text)]
    cut = [p for phrase in phrases if (p := _cut(phrase, _SENTENCE_END))]
    for phrase in cut:
        found = _canonical_tag(phrase) or taxonomy.load().normalise_function(phrase)
        if found:
            return found, phrase
    return None, cut[0] if cut else ""


def _cut(text: str, end: re.Pattern[str]) -> str:
    match = end.search(text)
    return (text[: match.start()] if match else text).strip(" ,.\"'")


_LENIENT_LABEL = re.compile(
    r"(?P<function>\b(?:original\s+)?functions?(?:\s+tags?)?\s*[:=-])|"
    r"(?P<materials>\b(?:restoration\s+|required\s+|needed\s+)?materials?(?:\s+\w+){0,3}\s*[:=-])",
    re.IGNORECASE,
)


def _strict_fields(text: str) -> tuple[str, str] | None:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) != 2:
        return None
    if not (lines[0].startswith(FUNCTION_LABEL) and lines[1].startswith(MATERIALS_LABEL)):
        return None
    return lines[0][len(FUNCTION_LABEL) :], lines[1][len(MATERIALS_LABEL) :]


def _lenient_fields(text: str) -> tuple[str, str] | None:
    spans: dict[str, str] = {}
    matches = list(_LENIENT_LABEL.finditer(text))
    for index, match in enumerate(matches):
        end = matches[index + 1].start() if index + 1 < len(matches) else len(text)
        # The last statement of a field wins, as a correction does.
        spans[str(match.lastgroup)] = text[match.end() : end]
    if spans:
        return spans.get("function", ""), spans.get("materials", "")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    return lines[0], "\n".join(lines[1:])
