"""From free words to the vocabulary: materials, types and functions as a description names them.

Paper C.3 to C.5: text is lowercased, stripped of punctuation and articles, singularised and matched
with fixed tables. What the tables cannot resolve is None; nothing is guessed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Pairs = Iterable[tuple[str, str]]  # phrase, label
_WORD = re.compile(r"[^\W_]+")
_APOSTROPHE = re.compile("['\N{RIGHT SINGLE QUOTATION MARK}]")
_AND = re.compile(r"[/,;&+]")


class Folding:
    """Folds text to plain words.

    Attributes:
      articles: words that are dropped.
    """

    def __init__(self, rules: Mapping[str, Any]) -> None:
        """Takes the tables of words.toml."""
        self.articles = frozenset(rules["articles"])
        self._spelling: Mapping[str, str] = rules["spelling"]
        self._singular: dict[str, str] = dict(rules["singular"])  # grows with the words met

    def words(self, text: str) -> list[str]:
        """Lower case, no accents, punctuation or articles, one spelling; plurals stay."""
        if not text.isascii():
            text = unicodedata.normalize("NFKD", text)
            text = "".join(c for c in text if not unicodedata.combining(c))
        found = _WORD.findall(_APOSTROPHE.sub("", text.lower()))
        spelling, articles = self._spelling, self.articles
        return [spelling.get(word, word) for word in found if word not in articles]

    def singular(self, word: str) -> str:
        """The word's singular by rule, or by the table where a rule fails."""
        known = self._singular.get(word)
        if known is None:
            known = _by_rule(word)
            known = self._singular[word] = self._spelling.get(known, known)
        return known

    def key(self, words: Iterable[str]) -> str:
        """What a phrase is looked up by once its plurals are folded."""
        known, singular = self._singular.get, self.singular
        return " ".join([known(word) or singular(word) for word in words])


def _by_rule(word: str) -> str:
    if len(word) <= 3 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes", "zzes", "oes")):
        return word[:-2]
    return word[:-1]


class Phrases:
    """Phrases and what each means; a phrase with two meanings is a fault, the first one counts.

    Attributes:
      faults: phrases claimed twice, and phrases that fold to nothing.
    """

    def __init__(self, folding: Folding, drop: Iterable[str] = ()) -> None:
        """Starts empty; `drop` are words left out of phrases."""
        self._folding, self._drop = folding, frozenset(drop)
        self._exact: dict[str, str] = {}
        self._folded: dict[str, str] = {}
        self._longest = 0
        self.faults: list[str] = []

    def add(self, pairs: Pairs, plural_only: Iterable[str] = ()) -> Phrases:
        """Another look-up, with these phrases and labels too.

        Args:
          pairs: phrase and label.
          plural_only: phrases whose singular means something else.
        """
        new = Phrases(self._folding, self._drop)
        new._exact, new._folded = dict(self._exact), dict(self._folded)
        new.faults = list(self.faults)
        plural_only = frozenset(plural_only)
        for phrase, label in pairs:
            words = [w for w in self._folding.words(phrase) if w not in self._drop]
            if not words:
                new.faults.append(f"{phrase!r} of {label} has no word left to look up")
                continue
            exact = " ".join(words)
            owner = new._exact.setdefault(exact, label)
            if exact not in plural_only:
                owner = new._folded.setdefault(self._folding.key(words), owner)
            if owner != label:
                new.faults.append(f"{phrase!r} is claimed by {owner} and {label}")
        new._longest = max((key.count(" ") + 1 for key in new._folded), default=0)
        return new

    def find(self, words: Sequence[str]) -> str | None:
        """The label of exactly these words."""
        found = self._exact.get(" ".join(words))
        return found or self._folded.get(self._folding.key(words))

    def ending(self, words: Sequence[str]) -> str | None:
        """The label of the longest phrase that the words end with."""
        for start in range(max(0, len(words) - self._longest), len(words)):
            found = self.find(words[start:])
            if found:
                return found
        return None

    def within(self, words: Sequence[str]) -> str | None:
        """The label of the longest phrase anywhere in the words, the first of equals."""
        for length in range(min(self._longest, len(words)), 0, -1):
            for start in range(len(words) - length + 1):
                found = self.find(words[start : start + length])
                if found:
                    return found
        return None


class Normaliser:
    """Look-ups of materials, types and functions.

    Attributes:
      faults: of the phrases it was built from.
    """

    def __init__(
        self,
        rules: Mapping[str, Any],
        materials: Pairs,
        functions: Pairs,
        type_names: Pairs,
        type_aliases: Pairs,
    ) -> None:
        """Builds the tables.

        Args:
          rules: words.toml.
          materials, functions: phrase and class or tag.
          type_names: names and synonyms; they may end a longer noun phrase ("red leather couch").
          type_aliases: names in other label sets; they count as a whole, adjectives aside.
        """
        self._fold = fold = Folding(rules)
        kinds, made, does = rules["type"], rules["material"], rules["function"]
        self._fillers = frozenset(does["fillers"])
        self._materials = Phrases(fold).add(materials)
        self._functions = Phrases(fold, self._fillers).add(functions)
        self._names = Phrases(fold).add(type_names, kinds["plural_only"])
        self._whole = self._names.add(type_aliases, kinds["plural_only"])
        self.faults = [
            *(f"materials.toml: {text}" for text in self._materials.faults),
            *(f"functions.toml: {text}" for text in self._functions.faults),
            *(f"object_types: {text}" for text in self._whole.faults),
        ]
        self._forms, self._joints = frozenset(made["forms"]), frozenset(made["joints"])
        self._material_fillers = frozenset(made["fillers"])
        self._negations = frozenset(made["negations"])
        self._cuts, self._modifiers = frozenset(kinds["cuts"]), frozenset(kinds["modifiers"])
        self._openings = sorted((fold.words(o) for o in kinds["openings"]), key=len, reverse=True)

    def material(self, text: str) -> str | None:
        """The one material class that a word or phrase names.

        The last known word of a phrase decides, words of shape aside ("oak veneer panel": wood).
        Two classes joined in a phrase ("rubber-coated steel", "glass and metal") give None, as does
        a word of no class.
        """
        words = self._fold.words(_AND.sub(" and ", text))
        whole = self._materials.find(words)
        if whole or not self._negations.isdisjoint(words):
            return whole
        found = {self._head(piece) for piece in _split(words, self._joints)} - {None}
        return found.pop() if len(found) == 1 else None

    def _head(self, words: list[str]) -> str | None:
        words = [word for word in words if word not in self._material_fillers]
        while words:
            found = self._materials.ending(words)
            if found:
                return found
            if self._fold.singular(words[-1]) not in self._forms:
                return None
            words = words[:-1]
        return None

    def type(self, text: str) -> str | None:
        """The object type that a noun phrase names.

        First the whole phrase, also without its adjectives; then ever shorter beginnings that end
        before a word such as "with" or "on"; of the shortest, the longest known phrase it ends
        with ("a red leather couch with legs": sofa). An unknown head noun gives None ("guitar case"
        is no guitar).
        """
        words = self._after_opening(self._fold.words(text))
        ends = [k for k, word in enumerate(words) if word in self._cuts and k > 0]
        for end in (len(words), *reversed(ends)):
            found = self._whole_type(words[:end])
            if found:
                return found
        return self._names.ending(words[: ends[0]] if ends else words)

    def _after_opening(self, words: list[str]) -> list[str]:
        for opening in self._openings:
            if words[: len(opening)] == opening and len(words) > len(opening):
                # "one or two" openings may follow each other: "probably a pair of"
                return self._after_opening(words[len(opening) :])
        return words

    def _whole_type(self, words: list[str]) -> str | None:
        while words:
            found = self._whole.find(words)
            if found:
                return found
            if words[0] not in self._modifiers and not self._materials.find(words[:1]):
                return None
            words = words[1:]
        return None

    def function(self, text: str) -> str | None:
        """The function tag that a word or a statement of purpose names.

        Of all known phrases in the text the longest counts, of equally long ones the first.
        """
        words = [word for word in self._fold.words(text) if word not in self._fillers]
        return self._functions.within(words)


def _split(words: Iterable[str], joints: frozenset[str]) -> list[list[str]]:
    pieces: list[list[str]] = [[]]
    for word in words:
        if word in joints:
            pieces.append([])
        else:
            pieces[-1].append(word)
    return pieces
