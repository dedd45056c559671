"""Rendering a data folder of scenes: several processes, resumable after a kill.

Every layout is rendered pristine and at each severity asked for; see synthesis.procedural.scenes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from trace_jax import files, taxonomy
from trace_jax.data import manifest, rows
from trace_jax.errors import UserError
from trace_jax.progress import Progress
from trace_jax.runs import rendering
from trace_jax.synthesis.procedural import WORLD
from trace_jax.synthesis.procedural.encode import FORMATS, encode_pixels
from trace_jax.synthesis.procedural.scenes import (
    ScenePicture,
    SceneRequest,
    render_scene,
    scene_name,
)
from trace_jax.types import SEVERITIES, SPLITS, SceneExample

_WIDTHS = (128, 640)
_TOLD = ("seed", "width", "height", "format", "quality")
_BYTES = {"webp": 40_000, "png": 150_000}  # a 384 x 288 picture, generously


@dataclasses.dataclass(frozen=True)
class SceneSeries:
    """One run of layouts with the same renders wanted.

    Attributes:
      name: stream: "train", "val", "test" or "pretrain".
      split: split of its rows.
      count: layouts.
      severities: any of "pristine", "L0".."L4".
      first: index of the first one.
    """

    name: str
    split: str
    count: int
    severities: tuple[str, ...] = SEVERITIES
    first: int = 0


@dataclasses.dataclass(frozen=True)
class ScenesConfig:
    """What to render; see configs/trace_scenes.py."""

    name: str
    version: str
    seed: int
    width: int
    height: int
    format: str
    quality: int
    series: tuple[SceneSeries, ...]

    @classmethod
    def from_page(cls, page: ConfigDict, subset: str = "") -> ScenesConfig:
        """Reads a config page; see runs.generate.GenerateConfig.from_page."""
        series = tuple(
            SceneSeries(**{**row, "severities": tuple(row["severities"])}) for row in page.series
        )
        name = page.name
        if subset:
            if subset not in page.subsets:
                known = ", ".join(page.subsets) or "none"
                raise UserError(f"--subset={subset}: the page knows {known}.")
            name, counts = page.subsets[subset].name, page.subsets[subset].counts
            series = tuple(dataclasses.replace(s, count=counts[s.name]) for s in series)
        config = cls(
            name, page.version, int(page.seed), int(page.width), int(page.height), page.format,
            int(page.quality), tuple(s for s in series if s.count),
        )  # fmt: skip
        config.check()
        return config

    def check(self) -> None:
        """Refuses what cannot be rendered."""
        if not _WIDTHS[0] <= self.width <= _WIDTHS[1] or not 96 <= self.height <= self.width:
            raise UserError(
                f"--width={self.width} --height={self.height}: the width must lie in "
                f"{_WIDTHS[0]}-{_WIDTHS[1]} pixels, the height in 96-width."
            )
        if self.format not in FORMATS:
            raise UserError(f"--format={self.format}: known formats: {', '.join(FORMATS)}.")
        if not any(series.count for series in self.series):
            raise UserError("no scenes to render: give --scenes.")

    def requests(self) -> list[tuple[SceneSeries, SceneRequest]]:
        """Every layout in manifest order."""
        return [
            (s, SceneRequest(s.name, k, self.seed, self.width, self.height, s.severities))
            for s in self.series
            for k in range(s.first, s.first + s.count)
        ]


def from_number(
    name: str, scenes: int, *, seed: int, width: int, height: int, format: str, quality: int
) -> ScenesConfig:
    """So many layouts, split 80/10/10, each pristine and at all levels."""
    tenth = round(scenes / 10)
    counts = (scenes - 2 * tenth, tenth, tenth)
    series = tuple(
        SceneSeries(split, split, count)
        for split, count in zip(SPLITS, counts, strict=True)
        if count
    )
    config = ScenesConfig(name, "1.0.0", seed, width, height, format, quality, series)
    config.check()
    return config


@dataclasses.dataclass(frozen=True)
class ScenesResult:
    """The complete folder, pictures rendered now, and how fast."""

    dataset: manifest.Dataset
    rendered: int
    images_per_second: float


def run(
    config: ScenesConfig, out: str | Path, *, workers: int = 0, command: str = ""
) -> ScenesResult:
    """Renders a data folder of scenes, or goes on with an unfinished one.

    Args:
      config: what to render.
      out: the folder.
      workers: processes; 0 means one a core.
      command: the documented command that rebuilds the folder, kept in dataset.json.

    Raises:
      UserError: bad settings, a full disk, or a folder begun with other settings.
    """
    config.check()
    out = Path(out)
    wanted = config.requests()
    total = sum(len(r.severities) for _, r in wanted)
    settings = json.loads(json.dumps(dataclasses.asdict(config)))
    stamp = {"world": WORLD, "config": settings}
    told = {"world": WORLD, **{k: settings[k] for k in _TOLD}}
    with rendering.journal(out, stamp, told) as (done, stream):
        left = [(s, r) for s, r in wanted if not rendering.whole(out, done.get(_key(r)))]
        missing = sum(len(r.severities) for _, r in left)
        scale = config.width * config.height / (384 * 288)
        files.require_space(out, int(missing * scale * _BYTES[config.format]), "rendering")
        start = time.monotonic()
        splits = {_key(r): s.split for s, r in left}
        jobs = [
            (r, config.format, config.quality)
            for _, r in sorted(left, key=lambda pair: pair[0].count)
        ]
        with Progress(total, config.name, "images", done=total - missing) as progress:
            for request, made in rendering.work(_render, jobs, workers or os.cpu_count() or 1):
                key = _key(request)
                done[key] = [
                    rows.to_json(_write(out, config, splits[key], picture, data))
                    for picture, data in made
                ]
                rendering.record(stream, key, done[key])
                progress.advance(len(made))
        seconds = max(time.monotonic() - start, 1e-9)
        examples = [_example(row) for _, r in wanted for row in done[_key(r)]]
        paired = all("pristine" in r.severities and len(r.severities) > 1 for _, r in wanted)
        info = manifest.DatasetInfo(
            "scenes", config.name, config.version, taxonomy.load().name,
            {"command": command, "engine": "procedural", **told}, pairs=paired,
        )  # fmt: skip
        dataset = manifest.write(out, info, examples)
    (out / rendering.JOURNAL).unlink(missing_ok=True)
    return ScenesResult(dataset, missing, missing / seconds)


def _key(request: SceneRequest) -> str:
    return scene_name(request.series, request.index)


def _render(
    job: tuple[SceneRequest, str, int],
) -> tuple[SceneRequest, list[tuple[ScenePicture, bytes]]]:
    """Renders and encodes one layout; runs in a worker process."""
    request, format, quality = job
    made = []
    for picture in render_scene(request):
        data = encode_pixels(picture.pixels, format, quality)
        made.append((dataclasses.replace(picture, pixels=picture.pixels[:0]), data))
    return request, made


def _write(
    out: Path, config: ScenesConfig, split: str, picture: ScenePicture, data: bytes
) -> SceneExample:
    path = f"images/{split}/{picture.layout}/{picture.severity.lower()}.{config.format}"
    rendering.write_picture(out / path, data)
    return SceneExample(
        path=path,
        layout=picture.layout,
        environment=picture.environment,
        scene_type=picture.scene_type,
        severity=picture.severity,
        split=split,
        width=config.width,
        height=config.height,
        boxes=picture.boxes,
        caption=picture.caption,
        generation=picture.generation,
        sha256=hashlib.sha256(data).hexdigest(),
    )


def _example(row: Mapping[str, Any]) -> SceneExample:
    found, faults = rows.from_json(row, kind="scenes")
    assert isinstance(found, SceneExample), faults
    return found


def default_out(page: ConfigDict, subset: str) -> str:
    """Where a page's data set goes when no folder is given."""
    return page.subsets[subset].out if subset else page.out
