"""Whether a phrase means a label where no synonym table knows: the fallback of paper C.4.

The judge sees the predicted phrase, the true label and the policy, never the image, and says
equivalent or not. It is asked about unresolved identity and function phrases only, not materials.
Verdicts are kept in a file by everything they depend on, so a verdict is bought once.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from trace_jax import files
from trace_jax.errors import UserError

ENGINES = ("none", "local", "openai")
# The policy in our words; its version is part of a verdict's key.
POLICY_VERSION = 1
POLICY = {
    "identity": (
        "Both must name the same kind of object: a synonym, a spelling or a closer description of "
        'it counts ("writing table" for desk), a broader class ("furniture" for desk) or a '
        "neighbouring object (stool for chair) does not."
    ),
    "function": (
        "Both must state the same purpose: another wording counts, a broader or a neighbouring "
        "purpose does not."
    ),
}
_QUESTION = (
    "You compare a predicted phrase with a reference label.\n"
    "Field: {field}\n"
    "Reference label: {label}\n"
    "Predicted phrase: {phrase}\n"
    "Policy: {policy}\n"
    "Are they equivalent? Answer with one word, yes or no."
)


class Engine(Protocol):
    """Answers one question in words.

    Attributes:
      name: "local" or "openai".
      model: what answers.
    """

    name: str
    model: str

    def __call__(self, question: str) -> str: ...


@dataclasses.dataclass
class Judge:
    """Verdicts by an engine, remembered.

    Attributes:
      engine: None is the strict rule: an unresolved phrase never matches.
      memory: file of verdicts, one JSON object a line; None keeps them in this process.
      asked: how many verdicts were needed.
    """

    engine: Engine | None = None
    memory: Path | None = None
    asked: int = 0

    def __post_init__(self) -> None:
        self._verdicts: dict[str, bool] = {}
        if self.memory is not None and self.memory.is_file():
            for text in self.memory.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(text)
                    self._verdicts[row["key"]] = bool(row["equivalent"])
                except (ValueError, KeyError, TypeError):
                    continue  # a line that a kill cut short: that verdict is asked again

    def equivalent(self, field: str, phrase: str, label: str) -> bool:
        """Whether `phrase` means `label`.

        Args:
          field: "identity" or "function".
          phrase: what the answer says, unresolved by the tables.
          label: the truth, in words.

        Raises:
          UserError: the engine cannot be reached.
        """
        if not phrase:
            return False
        self.asked += 1
        if self.engine is None:
            return False
        question = _QUESTION.format(
            field=field, label=label.replace("_", " "), phrase=phrase, policy=POLICY[field]
        )
        key = files.sha256_json([self.engine.name, self.engine.model, POLICY_VERSION, question])
        if key not in self._verdicts:
            said = self.engine(question).strip().lower()
            verdict = said.startswith("yes")
            self._remember(key, verdict, field, phrase, label, said)
        return self._verdicts[key]

    def _remember(
        self, key: str, verdict: bool, field: str, phrase: str, label: str, said: str
    ) -> None:
        self._verdicts[key] = verdict
        if self.memory is None:
            return
        row = {
            "key": key, "equivalent": verdict, "field": field, "phrase": phrase, "label": label,
            "said": said[:200],
        }  # fmt: skip
        self.memory.parent.mkdir(parents=True, exist_ok=True)
        with open(self.memory, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")


class LocalEngine:
    """A vision-language host that we load, asked in words alone.

    Args:
      generate: (questions, max_new_tokens) -> answers, e.g. of `host.generate(None, ...)`.
      model: its name and weights, part of a verdict's key.
    """

    name = "local"

    def __init__(self, generate: Callable[[list[str], int], list[str]], model: str) -> None:
        self._generate = generate
        self.model = model

    def __call__(self, question: str) -> str:
        return self._generate([question], 4)[0]


class OpenAIEngine:
    """OpenAI's service; the key comes from OPENAI_API_KEY and goes nowhere else.

    Args:
      model: the paper's is GPT-5.
      base_url: another service of the same form.
    """

    name = "openai"

    def __init__(self, model: str = "gpt-5", base_url: str | None = None) -> None:
        self.model = model
        if not os.environ.get("OPENAI_API_KEY"):
            raise UserError("--judge=openai: set OPENAI_API_KEY in the environment.")
        try:
            import openai
        except ImportError as error:
            raise UserError(
                "--judge=openai: needs the package openai. Install it: bin/setup judge"
            ) from error
        self._errors: tuple[type[Exception], ...] = (openai.OpenAIError,)
        self._refused: type[Exception] = openai.BadRequestError
        self._client: Any = openai.OpenAI(base_url=base_url, max_retries=5)

    def __call__(self, question: str) -> str:
        message = [{"role": "user", "content": question}]
        try:
            try:
                reply = self._client.chat.completions.create(
                    model=self.model, messages=message, temperature=0.0
                )
            except self._refused as error:
                # Some models take their own temperature only.
                if "temperature" not in str(error):
                    raise
                reply = self._client.chat.completions.create(model=self.model, messages=message)
        except self._errors as error:
            raise UserError(
                f"--judge=openai: {type(error).__name__}. Verdicts so far are kept; the same "
                "command goes on from there."
            ) from error
        return str(reply.choices[0].message.content or "")
