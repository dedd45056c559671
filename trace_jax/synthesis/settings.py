"""Settings of the generation pipeline; each is a flag of bin/generate of the same name."""

from __future__ import annotations

import dataclasses
from typing import Any

from trace_jax.errors import FaultsError


def _field(default: Any, help: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": help})


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is generated and how; `metadata["help"]` of each field describes it."""

    kind: str = _field("objects", "objects (trajectories pristine -> L0 -> ... -> L4) or scenes.")
    name: str = _field("objects", "Name of the data set.")
    identities: int = _field(0, "Identities, every type once before any twice.")
    scenes: int = _field(0, "Scenes wanted.")
    width: int = _field(384, "Width of a scene; gemini takes the aspect ratio from it.")
    height: int = _field(288, "Height of a scene.")
    seed: int = _field(0, "Seed of every draw.")
    image_model: str = _field("gemini-3-pro-image-preview", "Model that makes pictures.")
    judge_model: str = _field("gemini-3-flash-preview", "Model that judges scenes.")
    image_size: str = _field("1K", "Size asked of the image model: 1K, 2K or 4K.")
    base_url: str = _field("", "Address of a service of Gemini's form; empty for Google's.")
    api_version: str = _field("", "Version of the service's interface, e.g. v1beta.")
    timeout: float = _field(180.0, "Seconds a request may take.")
    references: str = _field("", "Folder of real post-fire photographs, for scenes.")
    references_min: int = _field(2, "Least references of a scene (the paper: 2).")
    references_max: int = _field(
        4, "Most references of a scene (the paper: 4 in section 3, 5 in B.2)."
    )
    grounding: bool = _field(True, "Send the references with the scene prompt.")
    judge: bool = _field(True, "Let the judge accept or reject scenes.")
    threshold: float = _field(0.7, "Least grounding score that is accepted (the paper: 0.7).")
    candidates: int = _field(5, "Candidates of a scene before it is given up.")
    templates: str = _field("", "Folder with prompt templates in place of the shipped ones.")
    concurrency: int = _field(4, "Requests under way at once.")
    attempts: int = _field(6, "Tries of a request before it is given up.")
    backoff: float = _field(2.0, "Seconds before the second try; doubles, with jitter.")
    backoff_max: float = _field(60.0, "Longest such wait; a longer Retry-After is still honoured.")
    max_requests: int = _field(0, "Requests that may be sent for this folder in all; 0: no limit.")
    budget: str = _field("", "Money that may be spent for this folder in all; empty: no limit.")
    prices: str = _field("", "Price table; set it from your own contract. See prices.toml.")

    def check(self) -> None:
        """Refuses settings that cannot be run.

        Raises:
          FaultsError: all of them.
        """
        faults = [
            f"--{name}={getattr(self, name)}: must be at least {least}"
            for name, least in (
                ("identities", 0), ("scenes", 0), ("width", 1), ("height", 1), ("candidates", 1),
                ("concurrency", 1), ("attempts", 1), ("backoff", 0), ("backoff_max", 0),
                ("max_requests", 0), ("timeout", 1),
            )
            if not getattr(self, name) >= least
        ]  # fmt: skip
        if self.kind not in ("objects", "scenes"):
            faults.append(f"--kind={self.kind}: known kinds: objects, scenes")
        if self.kind in ("objects", "scenes"):
            flag = "identities" if self.kind == "objects" else "scenes"
            if getattr(self, flag) == 0:
                faults.append(f"--{flag}: say how many are wanted")
        if not 0.0 <= self.threshold <= 1.0:
            faults.append(f"--threshold={self.threshold}: must lie in 0-1")
        if not 1 <= self.references_min <= self.references_max <= 10:
            faults.append(
                f"--references_min={self.references_min} --references_max={self.references_max}: "
                "must be in order and lie in 1-10"
            )
        if self.image_size not in ("1K", "2K", "4K"):
            faults.append(f"--image_size={self.image_size}: known sizes: 1K, 2K, 4K")
        if self.kind == "scenes" and not self.references and (self.grounding or self.judge):
            faults.append(
                "--references: grounding and judge need a folder of real photographs; or switch "
                "both off with --nogrounding --nojudge"
            )
        if faults:
            raise FaultsError("these settings cannot be run", faults, "See bin/generate --help.")
