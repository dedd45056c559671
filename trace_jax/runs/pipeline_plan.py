"""What a generation will ask for: subjects, splits, prompts, references; and what it may cost."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation

from trace_jax import files
from trace_jax.errors import FaultsError, UserError
from trace_jax.runs.inventory import split_inventory
from trace_jax.synthesis import prompts, references
from trace_jax.synthesis.budget import Prices
from trace_jax.synthesis.judge import PAPER_ACCEPTANCE
from trace_jax.synthesis.pipeline import ObjectPlan, Style, aspect_ratio
from trace_jax.synthesis.prompts import SceneBrief, Templates
from trace_jax.synthesis.references import Reference
from trace_jax.synthesis.settings import Settings
from trace_jax.taxonomy import Taxonomy
from trace_jax.types import LEVELS, PRISTINE, SPLITS


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run, decided before anything is sent; the same for the same settings and folders.

    Attributes:
      settings: of the run.
      names: subjects in order: identities, or layouts of scenes.
      splits: subject -> split; 80/10/10 (paper section 3).
      objects: identity -> its prompts; empty for scenes.
      scenes: layout -> its brief; empty for objects.
      references: layout -> the photographs it is given.
      pool_hash: of all photographs, "" where there are none.
      templates: what the prompts were made from.
      judge_prompt: filled in.
      style: what all requests have alike.
    """

    settings: Settings
    names: tuple[str, ...]
    splits: Mapping[str, str]
    objects: Mapping[str, ObjectPlan]
    scenes: Mapping[str, SceneBrief]
    references: Mapping[str, tuple[Reference, ...]]
    pool_hash: str
    templates: Templates
    judge_prompt: str
    style: Style

    @classmethod
    def make(cls, settings: Settings, words: Taxonomy) -> Plan:
        """Decides everything.

        Args:
          settings: checked.
          words: the taxonomy.

        Raises:
          UserError: templates or references that cannot be used, more identities than there are.
        """
        templates = prompts.read(words, settings.templates or None)
        objects: dict[str, ObjectPlan] = {}
        scenes: dict[str, SceneBrief] = {}
        photographs: dict[str, tuple[Reference, ...]] = {}
        pool: tuple[Reference, ...] = ()
        if settings.kind == "objects":
            rows, count = words.identities, settings.identities
            if count > len(rows):
                raise UserError(f"--identities={count}: the taxonomy has {len(rows)}.")
            chosen = split_inventory(rows, count, settings.seed)
            where = {rows[k].name: name for name, indices in chosen.items() for k in indices}
            objects = _objects(
                sorted(k for found in chosen.values() for k in found), words, templates
            )
            ratio = "1:1"
        else:
            for index in range(settings.scenes):
                brief = prompts.scene_brief(templates, words, index, settings.seed)
                scenes[brief.name] = brief
            where = split(tuple(scenes), settings.seed)
            ratio = aspect_ratio(settings.width, settings.height)
            if settings.grounding or settings.judge:
                pool = references.scan(
                    settings.references, words.environments, settings.references_max
                )
                photographs = {
                    name: references.sample(
                        pool, brief.scene_type.environment, settings.references_min,
                        settings.references_max, settings.seed, name,
                    )
                    for name, brief in scenes.items()
                }  # fmt: skip
        names = tuple(objects or scenes)
        style = Style(
            settings.image_model, settings.judge_model, settings.image_size, ratio, settings.seed
        )
        pool_hash = files.sha256_json([r.sha256 for r in pool]) if pool else ""
        judge = templates.fill("judge", threshold=f"{settings.threshold:g}")
        return cls(
            settings, names, where, objects, scenes, photographs, pool_hash,
            templates, judge, style,
        )  # fmt: skip

    def limit(self, prices: Prices) -> Decimal | None:
        """The budget in money, None where there is none.

        Raises:
          FaultsError: it is no number, or the price table lacks a model it has to cover.
        """
        if not self.settings.budget:
            return None
        faults = [
            f"the price table has no price for {model}"
            for model in self._requests()
            if prices.of(model) is None
        ]
        limit = Decimal(0)
        try:
            limit = Decimal(self.settings.budget)
        except InvalidOperation:
            faults.append("it is no number")
        if not limit.is_finite() or limit < 0:
            faults.append("it is no amount of money")
        if faults:
            raise FaultsError(
                f"--budget={self.settings.budget}: cannot be kept", faults,
                "Give an amount, and prices with --prices=FILE.",
            )  # fmt: skip
        return limit

    def prompts(self, name: str) -> Iterator[tuple[str, str]]:
        """Titles and texts of what is asked for one subject."""
        if name in self.objects:
            for severity, text in self.objects[name].prompts.items():
                yield f"{severity} ({self.style.image_model})", text
            return
        count = len(self.references.get(name, ())) if self.settings.grounding else 0
        yield f"scene, with {count} references ({self.style.image_model})", self.scenes[name].prompt
        if self.settings.judge:
            yield f"judge ({self.style.judge_model})", self.judge_prompt

    def estimate(self, prices: Prices) -> str:
        """What the run will send and cost if nothing has been bought yet, in words."""
        lines = [f"{len(self.names)} {self.settings.kind}; without retries:"]
        total = Decimal(0)
        for model, count in self._requests().items():
            price = prices.of(model)
            if price is None:
                lines.append(f"  {model}: about {count} requests (no price in the table)")
                continue
            total += price * count
            lines.append(
                f"  {model}: about {count} requests at most {price} each: "
                f"{money(price * count, prices.currency)}"
            )
        lines.append(f"  in all at most about {money(total, prices.currency)}")
        if self.settings.kind == "scenes" and self.settings.judge:
            lines.append(
                f"(candidates counted at the paper's acceptance rate of {PAPER_ACCEPTANCE:.1%})"
            )
        lines.append("Prices are the table's, set by you: --prices=FILE.")
        return "\n".join(lines)

    def _requests(self) -> dict[str, int]:
        if self.objects:
            return {self.style.image_model: len(self.names) * (1 + len(LEVELS))}
        if not self.settings.judge:
            return {self.style.image_model: len(self.names)}
        candidates = round(len(self.names) / PAPER_ACCEPTANCE + 0.5)
        found = {self.style.image_model: candidates}
        found[self.style.judge_model] = found.get(self.style.judge_model, 0) + candidates
        return found


def split(names: Sequence[str], seed: int) -> dict[str, str]:
    """80/10/10 by layout: a tenth to val and to test, drawn by the seed from the names alone."""
    tenth = round(len(names) / 10)
    ranked = sorted(names, key=lambda n: hashlib.sha256(f"split/{seed}/{n}".encode()).digest())
    train, val, test = SPLITS
    where = {name: train for name in names}
    where |= {name: val for name in ranked[:tenth]}
    where |= {name: test for name in ranked[tenth : 2 * tenth]}
    return where


def money(amount: Decimal, currency: str) -> str:
    """An amount for people, e.g. "1,234.50 USD"."""
    return f"{amount:,.2f} {currency}"


def _objects(
    indices: Sequence[int], words: Taxonomy, templates: Templates
) -> dict[str, ObjectPlan]:
    plans = {}
    for index in indices:
        row = words.identities[index]
        kind = words.type(row.object_type)
        texts = {PRISTINE: prompts.pristine_prompt(templates, row, kind)}
        for level in words.severity:
            texts[level.name] = prompts.stage_prompt(
                templates, row, kind, level, words.failure_steps
            )
        plans[row.name] = ObjectPlan(row.name, index, texts)
    return plans
