"""Generation as the paper's Appendix B has it: trajectories of objects, judged scenes.

`Desk` asks one thing at a time: it looks whether the answer is known, keeps to the budget, tries
again where that may help and remembers what came. `trajectory` and `scene` say what is asked, in
which order. Nothing here writes; a `Memory` does (`runs.pipeline_store`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from trace_jax.synthesis import judge as judging
from trace_jax.synthesis.budget import Meter
from trace_jax.synthesis.engines.base import Checked, Engine, EngineError, Picture, Request, checked
from trace_jax.synthesis.judge import BadVerdictError, Verdict
from trace_jax.synthesis.prompts import CANDIDATE, PREVIOUS, SceneBrief
from trace_jax.types import LEVELS, PRISTINE

# The Gemini image models' aspect ratios.
_RATIOS = ("1:1", "2:3", "3:2", "3:4", "4:3", "4:5", "5:4", "9:16", "16:9", "21:9")


class GaveUp(Exception):  # noqa: N818 - one subject of many; the run goes on without it
    """A subject cannot be finished now; the message is the reason."""


class ServiceFailed(GaveUp):
    """It is the service that gave nothing, not the judge that wanted something else."""


class Stopped(Exception):  # noqa: N818 - asked for
    """The run was told to stop before this subject was done."""


@dataclasses.dataclass(frozen=True)
class Unusable:
    """The judge's answers to one candidate were no verdicts; such a candidate is not accepted."""

    reason: str


class Memory(Protocol):
    """What has been answered, by key. Safe to call from threads."""

    def picture(self, key: str) -> Checked | None: ...
    def keep_picture(self, key: str, picture: Checked, about: Mapping[str, Any]) -> None: ...
    def verdict(self, key: str) -> Verdict | Unusable | None: ...
    def keep_verdict(
        self, key: str, verdict: Verdict | Unusable, about: Mapping[str, Any]
    ) -> None: ...


@dataclasses.dataclass(frozen=True)
class Patience:
    """How often and how long to wait: exponential, with jitter.

    Attributes:
      attempts: tries in all.
      first: seconds before the second.
      longest: most seconds that we choose to wait; the service may ask for more.
    """

    attempts: int
    first: float
    longest: float

    # A service that asks for more is closed for the day; better to go on another time.
    LONGEST_ASKED = 600.0

    def wait(self, failures: int, asked: float | None) -> float:
        """Seconds to wait after so many failures, at least what the service asked for."""
        own = min(self.longest, self.first * 2.0 ** (failures - 1)) * random.uniform(0.5, 1.0)
        return max(own, asked or 0.0)


class Desk:
    """Asks an engine; see the module. Shared by all threads of a run.

    Args:
      engine: who answers.
      memory: what has been answered.
      meter: the budget.
      patience: of retries.
      stop: set to end the run.
      answered: called after each new answer.
    """

    def __init__(
        self,
        engine: Engine,
        memory: Memory,
        meter: Meter,
        patience: Patience,
        stop: threading.Event,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine, self._memory, self._meter = engine, memory, meter
        self._patience, self._stop, self._answered = patience, stop, answered

    def picture(self, request: Request, about: Mapping[str, Any]) -> Checked:
        """A whole picture, remembered or new.

        Raises:
          GaveUp: no usable one came in all tries.
          Stopped, BudgetReached: it was not asked for.
          UserError: the service refuses this run altogether.
        """
        key = request.key(self._engine.name)
        if (known := self._memory.picture(key)) is not None:
            return known
        found = self._ask(request, lambda: checked(self._engine.image(request)))
        self._memory.keep_picture(key, found, about)
        self._answered()
        return found

    def verdict(
        self, request: Request, threshold: float, about: Mapping[str, Any]
    ) -> Verdict | Unusable:
        """The judge's verdict, remembered or new; `Unusable` after tries that brought none."""
        key = request.key(self._engine.name)
        if (known := self._memory.verdict(key)) is not None:
            return known
        found: Verdict | Unusable
        try:
            found = self._ask(request, lambda: _verdict(self._engine.verdict(request), threshold))
        except _NoVerdict as error:
            found = Unusable(self._engine.scrub(str(error)))
        self._memory.keep_verdict(key, found, about)
        self._answered()
        return found

    def _ask(self, request: Request, call: Callable[[], Any]) -> Any:
        failures = 0
        while True:
            if self._stop.is_set():
                raise Stopped
            price = self._meter.reserve(request.model)
            try:
                return call()
            except EngineError as error:
                if not error.billed:
                    self._meter.refund(request.model, price)
                failures += 1
                reason = self._engine.scrub(str(error))
                asked = error.wait or 0.0
                if not error.retry or asked > self._patience.LONGEST_ASKED:
                    raise ServiceFailed(reason) from None
                if failures >= self._patience.attempts:
                    if isinstance(error, _BadAnswer):
                        raise _NoVerdict(reason) from None
                    raise ServiceFailed(f"{failures} tries, the last: {reason}") from None
                if self._stop.wait(self._patience.wait(failures, error.wait)):
                    raise Stopped from None


class _BadAnswer(EngineError):
    """The judge answered, but not with a verdict."""


class _NoVerdict(Exception):  # noqa: N818 - turned into Unusable at once
    pass


def _verdict(text: str, threshold: float) -> Verdict:
    try:
        return judging.parse(text, threshold)
    except BadVerdictError as error:
        raise _BadAnswer(f"the verdict {error}") from error


def seed_of(*parts: Any) -> int:
    """A 31-bit seed from anything that prints; the services take 32-bit integers."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def aspect_ratio(width: int, height: int) -> str:
    """The known ratio nearest to a size in pixels, e.g. "4:3"."""

    def distance(ratio: str) -> float:
        a, b = (int(side) for side in ratio.split(":"))
        return max(width * b / (height * a), height * a / (width * b))

    return min(_RATIOS, key=distance)


@dataclasses.dataclass(frozen=True)
class ObjectPlan:
    """One trajectory to make.

    Attributes:
      identity: its name.
      index: in the taxonomy's list.
      prompts: "pristine" and "L0".."L4" -> prompt.
    """

    identity: str
    index: int
    prompts: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Style:
    """What every request of a run has alike: models, size, seed."""

    image_model: str
    judge_model: str
    image_size: str
    aspect_ratio: str
    seed: int


def trajectory(desk: Desk, plan: ObjectPlan, style: Style) -> dict[str, Checked]:
    """Pristine from text alone, then each level from the picture of the one before (B.1).

    Raises:
      GaveUp, Stopped, BudgetReached, UserError: see `Desk.picture`.
    """
    made: dict[str, Checked] = {}
    previous: tuple[Picture, ...] = ()
    for severity in (PRISTINE, *LEVELS):
        request = Request(
            "image",
            style.image_model,
            plan.prompts[severity],
            previous,
            _settings(style, plan.identity, severity),
            {"identity": plan.identity, "index": plan.index, "severity": severity},
        )
        about = {"subject": plan.identity, "severity": severity}
        try:
            made[severity] = found = desk.picture(request, about)
        except GaveUp as error:
            raise type(error)(f"{severity}: {error}") from None
        previous = (Picture(PREVIOUS, found.data, found.media_type, found.sha256),)
    return made


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One generated scene and what the judge said of it (None: it was not asked)."""

    picture: Checked
    verdict: Verdict | Unusable | None

    @property
    def accepted(self) -> bool:
        return self.verdict is None or (isinstance(self.verdict, Verdict) and self.verdict.accepted)


def scene(
    desk: Desk,
    brief: SceneBrief,
    references: Callable[[], tuple[Picture, ...]],
    style: Style,
    judge_prompt: str,
    *,
    grounding: bool,
    judge: bool,
    threshold: float,
    candidates: int,
    seen: Callable[[int, Candidate], None],
) -> Candidate:
    """Makes candidates until one is accepted (B.2, B.3).

    Args:
      desk: who asks.
      brief: what is wanted.
      references: loads the photographs; called once, and not at all where neither switch needs
        them.
      style: models, size, seed.
      judge_prompt: filled in.
      grounding: send the references with the prompt.
      judge: let the judge decide; without it the first whole picture is accepted.
      threshold: least score that is accepted.
      candidates: how many are made before giving up.
      seen: told of every candidate and its number.

    Raises:
      GaveUp, Stopped, BudgetReached, UserError: see `Desk.picture`.
    """
    photographs = references() if grounding or judge else ()
    for number in range(candidates):
        subject = {
            "scene": brief.name, "scene_type": brief.scene_type.name, "severity": brief.level,
            "candidate": number,
        }  # fmt: skip
        request = Request(
            "image",
            style.image_model,
            brief.prompt,
            photographs if grounding else (),
            _settings(style, brief.name, number),
            subject,
        )
        about = {"subject": brief.name, "candidate": number}
        found = desk.picture(request, about)
        verdict: Verdict | Unusable | None = None
        if judge:
            shown = Picture(CANDIDATE, found.data, found.media_type, found.sha256)
            question = Request(
                "verdict",
                style.judge_model,
                judge_prompt,
                (shown, *photographs),
                {"seed": style.seed, "threshold": threshold},
            )
            verdict = desk.verdict(question, threshold, about)
        candidate = Candidate(found, verdict)
        seen(number, candidate)
        if candidate.accepted:
            return candidate
    raise GaveUp(f"none of {candidates} candidates was accepted by the judge")


def _settings(style: Style, *what: Any) -> dict[str, Any]:
    return {
        "seed": seed_of(style.seed, *what),
        "aspect_ratio": style.aspect_ratio,
        "image_size": style.image_size,
    }
