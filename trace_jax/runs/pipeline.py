"""Generating a data folder with an image model: the paper's pipeline (section 3, Appendix B).

Everything bought is kept in the folder (`pipeline_store`), so a run that was killed, or that its
budget stopped, goes on with the same command and asks nothing twice. The manifest holds what is
finished; `dataset.json` says whether that is all.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from trace_jax import files, taxonomy
from trace_jax.data import manifest
from trace_jax.errors import UserError
from trace_jax.progress import Progress
from trace_jax.runs.pipeline_plan import Plan, money
from trace_jax.runs.pipeline_store import FOLDER, Store
from trace_jax.synthesis import pipeline, references
from trace_jax.synthesis.budget import BudgetReached, Meter, read_prices
from trace_jax.synthesis.engines import make
from trace_jax.synthesis.engines.base import Checked, Engine
from trace_jax.synthesis.judge import PAPER_ACCEPTANCE, Verdict
from trace_jax.synthesis.pipeline import (
    Candidate,
    Desk,
    GaveUp,
    Patience,
    ServiceFailed,
    Stopped,
    Unusable,
)
from trace_jax.synthesis.settings import Settings
from trace_jax.types import Example, PartMaterial, SceneExample

# Subjects in a row that the service fails before the run ends.
_FAILURES = 10
# What a subject's work gives: pictures by severity, or the accepted candidate.
_Made = Mapping[str, Checked] | Candidate


@dataclasses.dataclass(frozen=True)
class PipelineResult:
    """What a run made, earlier runs of its folder included.

    Attributes:
      dataset: the folder, None where nothing is finished yet.
      wanted, finished: trajectories or scenes.
      skipped: subject -> why it was given up; the next run tries it again.
      stopped: why the run ended early (its budget, a service that is down), or "".
      requests, cost, currency: sent and spent for the folder in all.
      candidates, accepted, unusable: scenes that were judged, taken, and without a usable verdict.
      judged: whether a judge decided.
    """

    dataset: manifest.Dataset | None
    wanted: int
    finished: int
    skipped: Mapping[str, str]
    stopped: str
    requests: int
    cost: Decimal
    currency: str
    candidates: int
    accepted: int
    unusable: int
    judged: bool

    @property
    def complete(self) -> bool:
        """Whether everything wanted is there."""
        return self.finished == self.wanted

    def summary(self) -> str:
        """Lines for a user."""
        lines = [
            f"{self.finished} of {self.wanted} finished; {self.requests} requests, at most "
            f"{money(self.cost, self.currency)}"
        ]
        if self.judged and self.candidates:
            lines.append(
                f"accepted {self.accepted} of {self.candidates} candidates: "
                f"{self.accepted / self.candidates:.1%} (the paper: {PAPER_ACCEPTANCE:.1%}); "
                f"{self.unusable} without a usable verdict"
            )
        lines += [f"skipped {name}: {reason}" for name, reason in self.skipped.items()]
        if self.stopped:
            lines.append(
                f"stopped, {self.stopped}. Nothing is lost: run the same command again to go on"
                + (
                    ", with a larger --max_requests or --budget."
                    if "budget" in self.stopped
                    else "."
                )
            )
        elif self.skipped:
            lines.append("Run the same command again to try what was skipped.")
        return "\n".join(lines)


def run(
    settings: Settings, out: str | Path, *, engine: str = "gemini", command: str = ""
) -> PipelineResult:
    """Generates a data folder, or goes on with an unfinished one.

    Args:
      settings: what to generate and how.
      out: the folder.
      engine: name of the engine.
      command: the command that made the folder, kept in dataset.json.

    Raises:
      UserError: bad settings, templates, references or prices; no key; a refused key.
    """
    settings.check()
    out = Path(out)
    maker = make(engine, settings)
    if maker.model:
        settings = dataclasses.replace(settings, image_model=maker.model)
    if settings.kind == "scenes" and settings.judge and not maker.judges:
        raise UserError(f"the {engine} engine cannot judge; give --nojudge.")
    plan = Plan.make(settings, taxonomy.load())
    prices = read_prices(settings.prices or None)
    limit = plan.limit(prices)
    _check_folder(out, settings)
    with Store(out, maker.scrub) as store:
        meter = Meter(
            prices, settings.max_requests or None, limit, requests=store.requests,
            cost=store.cost, record=store.spent,
        )  # fmt: skip
        work = _Work(settings, plan, maker, store, meter)
        stopped = work.go()
        dataset = _write(out, settings, plan, work, store, engine, maker.scrub(command))
    judged = [c for c in work.candidates.values() if c.verdict is not None]
    return PipelineResult(
        dataset, len(plan.names), len(work.made), work.skipped, stopped, meter.requests,
        meter.cost, prices.currency, len(judged), sum(c.accepted for c in judged),
        sum(isinstance(c.verdict, Unusable) for c in judged), bool(plan.scenes) and settings.judge,
    )  # fmt: skip


class _Work:
    """One run's threads and what they bring."""

    def __init__(
        self, settings: Settings, plan: Plan, engine: Engine, store: Store, meter: Meter
    ) -> None:
        self.made: dict[str, _Made] = {}
        self.skipped: dict[str, str] = {}
        self.candidates: dict[tuple[str, int], Candidate] = {}
        self._settings, self._plan = settings, plan
        self._stop, self._lock = threading.Event(), threading.Lock()
        patience = Patience(settings.attempts, settings.backoff, settings.backoff_max)
        self._desk = Desk(engine, store, meter, patience, self._stop)

    def go(self) -> str:
        """Works through the plan; returns why it ended early, or ""."""
        settings, plan = self._settings, self._plan
        stopped, failures = "", 0
        pool = concurrent.futures.ThreadPoolExecutor(settings.concurrency)
        with Progress(len(plan.names), settings.name, settings.kind) as progress:
            futures = {pool.submit(self._one, name): name for name in plan.names}
            try:
                for future in concurrent.futures.as_completed(futures):
                    name = futures[future]
                    try:
                        self.made[name] = _light(future.result())
                        progress.advance()
                        failures = 0
                    except GaveUp as error:
                        self.skipped[name] = str(error)
                        failures += isinstance(error, ServiceFailed)
                        if failures >= _FAILURES:
                            # A closed service or a spent quota: to try all others takes days.
                            stopped = f"the service failed {_FAILURES} times in a row"
                            self._stop.set()
                    except BudgetReached as error:
                        # The others go on as far as what is bought already takes them.
                        stopped = stopped or f"the budget is reached: {error}"
                    except Stopped:
                        pass
            finally:
                # Also after a refused key, Ctrl-C or a bug: what is under way ends and is kept.
                self._stop.set()
                pool.shutdown(cancel_futures=True)
        order = {name: number for number, name in enumerate(plan.names)}
        self.skipped = dict(sorted(self.skipped.items(), key=lambda item: order[item[0]]))
        return stopped

    def _one(self, name: str) -> _Made:
        plan, settings = self._plan, self._settings
        if not plan.scenes:
            return pipeline.trajectory(self._desk, plan.objects[name], plan.style)
        return pipeline.scene(
            self._desk,
            plan.scenes[name],
            lambda: tuple(
                references.load(reference, f"Reference {number}")
                for number, reference in enumerate(plan.references[name], 1)
            ),
            plan.style,
            plan.judge_prompt,
            grounding=settings.grounding,
            judge=settings.judge,
            threshold=settings.threshold,
            candidates=settings.candidates,
            seen=lambda number, candidate: self._note(name, number, candidate),
        )

    def _note(self, name: str, number: int, candidate: Candidate) -> None:
        with self._lock:
            self.candidates[name, number] = _light(candidate)


def _light(made: Any) -> Any:
    """The same without the pictures' bytes, which lie on the disk; a whole set would not fit."""
    if isinstance(made, Candidate):
        return dataclasses.replace(made, picture=_light(made.picture))
    if isinstance(made, Checked):
        return dataclasses.replace(made, data=b"")
    return {severity: _light(picture) for severity, picture in made.items()}


def _check_folder(out: Path, settings: Settings) -> None:
    """Refuses a folder that holds another data set, or pictures that are not ours."""
    if (out / "images").exists() and not (out / FOLDER).is_dir():
        raise UserError(f"{out}: holds pictures of another origin. Choose another --out.")
    if not (out / manifest.INFO_FILE).exists():
        return
    found = files.read_json(out / manifest.INFO_FILE, "Choose another --out.")
    same = isinstance(found, dict) and found.get("kind") == settings.kind
    if not same or found.get("name") != settings.name or not _own(found):
        raise UserError(f"{out}: holds another data set. Choose another --out.")


def _own(found: Mapping[str, Any]) -> bool:
    provenance = found.get("provenance")
    return isinstance(provenance, Mapping) and provenance.get("made_by") == "pipeline"


def _write(
    out: Path,
    settings: Settings,
    plan: Plan,
    work: _Work,
    store: Store,
    engine: str,
    command: str,
) -> manifest.Dataset | None:
    """The manifest of what is finished; None where nothing is."""
    rows: list[Example | SceneExample] = []
    for name in plan.names:
        made = work.made.get(name)
        if isinstance(made, Candidate):
            rows.append(_scene_row(out, settings, plan, store, engine, name, made))
        elif made is not None:
            rows += _object_rows(out, plan, store, name, made)
    if not rows:
        return None
    judged = [c for c in work.candidates.values() if c.verdict is not None]
    provenance: dict[str, Any] = {
        "made_by": "pipeline",
        "command": command,
        "engine": engine,
        "image_model": settings.image_model,
        "image_size": settings.image_size,
        "seed": settings.seed,
        "templates": plan.templates.hash,
        "wanted": len(plan.names),
        "finished": len(work.made),
        "complete": len(work.made) == len(plan.names),
    }
    if plan.scenes:
        provenance |= {
            "grounding": settings.grounding,
            "judge": settings.judge_model if settings.judge else "",
            "threshold": settings.threshold,
            "references": plan.pool_hash,
            "candidates": len(judged),
            "accepted": sum(c.accepted for c in judged),
            "unusable_verdicts": sum(isinstance(c.verdict, Unusable) for c in judged),
        }
    vocabulary = taxonomy.load().name
    # Generated scenes have no pristine twin (paper B.2).
    info = manifest.DatasetInfo(
        settings.kind, settings.name, "1.0.0", vocabulary, provenance,
        pairs=settings.kind != "scenes",
    )  # fmt: skip
    dataset = manifest.write(out, info, rows)
    _prune(out, {row.path for row in rows})
    return dataset


def _object_rows(
    out: Path, plan: Plan, store: Store, name: str, made: Mapping[str, Checked]
) -> list[Example]:
    words = taxonomy.load()
    identity = words.identities[plan.objects[name].index]
    kind = words.type(identity.object_type)
    stages = {level.name: f"{level.title}. {level.description}" for level in words.severity}
    colours = ", ".join(identity.colourway)
    rows = []
    for severity, picture in made.items():
        path = f"images/{name}/{severity.lower()}.{picture.suffix}"
        _place(store, picture, out / path)
        rows.append(
            Example(
                path=path,
                identity=name,
                object_type=kind.name,
                variant=f"{identity.style}; {identity.manufacturing}; {colours}",
                severity=severity,
                split=plan.splits[name],
                materials=tuple(PartMaterial(p, m) for p, m in identity.materials.items()),
                functions=kind.functions,
                sha256=picture.sha256,
                description=stages.get(severity, ""),
                failure_notes=kind.failure,
            )
        )
    return rows


def _scene_row(
    out: Path,
    settings: Settings,
    plan: Plan,
    store: Store,
    engine: str,
    name: str,
    made: Candidate,
) -> SceneExample:
    brief, picture = plan.scenes[name], made.picture
    path = f"images/{name}.{picture.suffix}"
    _place(store, picture, out / path)
    generation: dict[str, Any] = {
        "engine": engine,
        "model": settings.image_model,
        "prompt_sha256": hashlib.sha256(brief.prompt.encode()).hexdigest(),
        "controls": dict(brief.controls),
        "grounding": settings.grounding,
        "references": [r.sha256 for r in plan.references.get(name, ())],
        # What the prompt asked for, never what can be seen (A.3).
        "intended_inventory": {
            "objects": list(brief.inventory),
            "materials": brief.controls["material_profile"],
        },
    }
    if isinstance(made.verdict, Verdict):
        generation |= {
            "judge_model": settings.judge_model,
            "grounding_score": made.verdict.score,
            "reasoning": made.verdict.reasoning,
        }
    title = next(lv.title for lv in taxonomy.load().severity if lv.name == brief.level)
    return SceneExample(
        path=path,
        layout=name,
        environment=brief.scene_type.environment,
        scene_type=brief.scene_type.name,
        severity=brief.level,
        split=plan.splits[name],
        width=picture.width,
        height=picture.height,
        caption=f"{brief.scene_type.title.capitalize()} after a fire: {title}.",
        generation=generation,
        sha256=picture.sha256,
    )


def _place(store: Store, picture: Checked, path: Path) -> None:
    """Puts a kept picture where its row says, without a second copy where the disk can link."""
    if path.is_file() and files.sha256_file(path) == picture.sha256:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)
        os.link(store.path(picture.sha256, picture.suffix), temporary)
        os.replace(temporary, path)
        return
    files.write_bytes(path, store.path(picture.sha256, picture.suffix).read_bytes())


def _prune(out: Path, wanted: set[str]) -> None:
    """Removes pictures that an earlier manifest of the folder named and this one does not."""
    for path in (out / "images").rglob("*"):
        if path.is_file() and path.relative_to(out).as_posix() not in wanted:
            path.unlink()


def describe(settings: Settings, write: Callable[[str], None], show: int = 3) -> None:
    """`--dry_run`: prints the prompts of the first subjects and what the run may cost.

    Args:
      settings: as for `run`; no key is needed and nothing is sent.
      write: takes lines.
      show: subjects whose prompts are printed; 0 for all.
    """
    settings.check()
    plan = Plan.make(settings, taxonomy.load())
    prices = read_prices(settings.prices or None)
    names: Sequence[str] = plan.names[: show or None]
    for name in names:
        for title, text in plan.prompts(name):
            write(f"--- {name}: {title}\n{text}\n")
    if left := len(plan.names) - len(names):
        write(f"... and {left} more ({settings.kind}); --show=0 prints all.\n")
    write(plan.estimate(prices))
