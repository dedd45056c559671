"""Rendering a data folder: many identities, several processes, resumable after a kill.

Each picture is written whole or not at all. A journal in the folder holds the finished
identities' rows; a second run of the same settings goes on from it and ends with the same bytes
as an unbroken run. `manifest.jsonl` comes last, so a folder that has one is complete.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from PIL import Image

from trace_jax import files, taxonomy
from trace_jax.data import manifest, rows
from trace_jax.errors import UserError
from trace_jax.progress import Progress
from trace_jax.runs import rendering
from trace_jax.runs.inventory import split_inventory
from trace_jax.synthesis.procedural import WORLD, Request, identity_name
from trace_jax.synthesis.procedural.encode import FORMATS, EncodedPicture, render_identity
from trace_jax.synthesis.procedural.sheet import sheet
from trace_jax.synthesis.procedural.world import INVENTORY
from trace_jax.types import LEVELS, SPLITS, Example, PartMaterial

_TOLD = ("seed", "size", "format", "quality")
_SIZES = (64, 448)
# Bytes of a picture by (96 px) WebP and PNG, generously; only to refuse a full disk early.
_BYTES = {"webp": 4_000, "png": 14_000}


@dataclasses.dataclass(frozen=True)
class Series:
    """One run of identities with the same pictures wanted.

    Attributes:
      name: stream of identities: "train", "val", "test" or "pretrain".
      split: split of its rows.
      count: identities.
      first: index of the first one.
      indices: which ones, where they are not `count` in a row.
      views: pristine views.
      levels: damage levels.
      draws: fires an identity.
    """

    name: str
    split: str
    count: int
    first: int = 0
    views: tuple[int, ...] = (0,)
    levels: tuple[str, ...] = LEVELS
    draws: int = 1
    indices: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class GenerateConfig:
    """What to render; see configs/nano/data.py."""

    name: str
    version: str
    engine: str
    kind: str
    seed: int
    size: int
    format: str
    quality: int
    series: tuple[Series, ...]

    @classmethod
    def from_page(cls, page: ConfigDict, subset: str = "") -> GenerateConfig:
        """Reads a config page.

        Args:
          page: see configs/nano/data.py.
          subset: one of `page.subsets`: the first identities of each series, under its own name.

        Raises:
          UserError: a value that no engine can render, or an unknown subset.
        """
        series = tuple(Series(**{k: _tuple(v) for k, v in row.items()}) for row in page.series)
        name = page.name
        if subset:
            if subset not in page.subsets:
                known = ", ".join(page.subsets) or "none"
                raise UserError(f"--subset={subset}: the page knows {known}.")
            name = page.subsets[subset].name
            counts = page.subsets[subset].counts
            series = tuple(dataclasses.replace(s, count=counts[s.name]) for s in series)
        config = cls(
            name, page.version, page.engine, page.kind, int(page.seed), int(page.size),
            page.format, int(page.quality), series,
        )  # fmt: skip
        config.check()
        return config

    def check(self) -> None:
        """Refuses what cannot be rendered."""
        if self.engine != "procedural":
            raise UserError(f"--engine={self.engine}: known engines: procedural.")
        if self.kind != "objects":
            raise UserError(f"--kind={self.kind}: the procedural engine renders kind objects.")
        if not _SIZES[0] <= self.size <= _SIZES[1]:
            raise UserError(f"--size={self.size}: must lie in {_SIZES[0]}-{_SIZES[1]} pixels.")
        if self.format not in FORMATS:
            raise UserError(f"--format={self.format}: known formats: {', '.join(FORMATS)}.")
        if not any(series.count for series in self.series):
            raise UserError("no identities to render: give --identities or --split_sizes.")

    def requests(self) -> list[tuple[Series, Request]]:
        """Every identity in manifest order."""
        return [
            (s, Request(s.name, k, self.seed, self.size, s.views, s.levels, s.draws))
            for s in self.series
            for k in s.indices or range(s.first, s.first + s.count)
        ]


def from_sizes(
    name: str,
    identities: int,
    split_sizes: Sequence[str | int],
    *,
    engine: str,
    kind: str,
    seed: int,
    size: int,
    views: int,
    draws: int,
    format: str,
    quality: int,
) -> GenerateConfig:
    """The config of a data set given by numbers alone.

    Args:
      identities: of the inventory, see `inventory_series`; where `split_sizes` is empty.
      split_sizes: identities of train, val and test.
      views: pristine views of every identity.

    Raises:
      UserError: sizes that make no data set.
    """
    if split_sizes:
        try:
            counts = tuple(int(n) for n in split_sizes)
        except ValueError:
            counts = ()
        if len(counts) != 3 or min(counts) < 0:
            raise UserError(
                f"--split_sizes={','.join(map(str, split_sizes))}: give three whole numbers, "
                "train,val,test."
            )
    else:
        counts = (0, 0, 0)
    if views < 1 or draws < 1:
        raise UserError("--views and --draws must be at least 1.")
    common: dict[str, Any] = {"views": tuple(range(views)), "levels": LEVELS, "draws": draws}
    if split_sizes:
        series = tuple(
            Series(split, split, count, **common)
            for split, count in zip(SPLITS, counts, strict=True)
        )
    else:
        series = inventory_series(identities, seed, **common)
    config = GenerateConfig(name, "1.0.0", engine, kind, seed, size, format, quality, series)
    config.check()
    return config


def inventory_series(identities: int, seed: int, **common: Any) -> tuple[Series, ...]:
    """The first so many identities of the inventory, split 80/10/10 (paper section 3).

    See `split_inventory`. Beyond the inventory's size random variants follow.

    Args:
      identities: how many.
      seed: of the split.
      common: further fields of Series.
    """
    known = taxonomy.load().identities
    series = [
        Series(INVENTORY, split, len(indices), indices=indices, **common)
        for split, indices in split_inventory(known, identities, seed).items()
        if indices
    ]
    more = identities - len(known)
    if more > 0:
        series.append(Series("train", "train", more, **common))
    return tuple(series)


def default_out(page: ConfigDict | None, subset: str) -> str:
    """Where a page's data set goes when no folder is given.

    Raises:
      UserError: there is no page to say so.
    """
    if page is None:
        raise UserError("give the folder to write with --out=DIR.")
    return page.subsets[subset].out if subset else page.out


def write_sheet(config: GenerateConfig, path: str | Path) -> Path:
    """Renders a contact sheet of all the config's identities to one PNG or WebP file."""
    pixels = sheet([dataclasses.replace(request, draws=1) for _, request in config.requests()])
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "WEBP" if str(path).endswith("webp") else "PNG")
    files.write_bytes(path, stream.getvalue())
    return Path(path)


@dataclasses.dataclass(frozen=True)
class GenerateResult:
    """What a run made.

    Attributes:
      dataset: the complete folder.
      rendered: pictures rendered now (an earlier run may have made the others).
      images_per_second: of this run.
    """

    dataset: manifest.Dataset
    rendered: int
    images_per_second: float


def run(
    config: GenerateConfig, out: str | Path, *, workers: int = 0, command: str = ""
) -> GenerateResult:
    """Renders a data folder, or goes on with an unfinished one.

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
    total = sum(len(r.views) + len(r.levels) * r.draws for _, r in wanted)
    scale = (config.size / 96) ** 2
    stamp = {"world": WORLD, "config": json.loads(json.dumps(dataclasses.asdict(config)))}
    told = {"world": WORLD, **{k: stamp["config"][k] for k in _TOLD}}
    with rendering.journal(out, stamp, told) as (done, stream):
        left = [(s, r) for s, r in wanted if not rendering.whole(out, done.get(_key(r)))]
        missing = sum(len(r.views) + len(r.levels) * r.draws for _, r in left)
        files.require_space(out, int(missing * scale * _BYTES[config.format]), "rendering")
        start = time.monotonic()
        with Progress(total, config.name, "images", done=total - missing) as progress:
            splits = {_key(r): s.split for s, r in left}
            # Small series first: val and test can be looked at while train is on its way.
            ordered = sorted(left, key=lambda pair: pair[0].count)
            jobs = [(r, config.format, config.quality) for _, r in ordered]
            for request, encoded in rendering.work(
                render_identity, jobs, workers or os.cpu_count() or 1
            ):
                key = _key(request)
                done[key] = _write(out, config.format, splits[key], encoded)
                rendering.record(stream, key, done[key])
                progress.advance(len(encoded))
        seconds = max(time.monotonic() - start, 1e-9)
        examples = [_example(row) for _, r in wanted for row in done[_key(r)]]
        info = manifest.DatasetInfo(
            config.kind, config.name, config.version, taxonomy.load().name,
            {"command": command, "engine": config.engine, "world": WORLD, "seed": config.seed,
             "size": config.size, "format": config.format, "quality": config.quality},
        )  # fmt: skip
        dataset = manifest.write(out, info, examples)
    (out / rendering.JOURNAL).unlink(missing_ok=True)
    return GenerateResult(dataset, missing, missing / seconds)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value


def _key(request: Request) -> str:
    return identity_name(request.series, request.index)


def _write(
    out: Path, format: str, split: str, encoded: Sequence[EncodedPicture]
) -> list[dict[str, Any]]:
    written = []
    for item in encoded:
        picture = item.picture
        state = picture.severity if picture.severity == "pristine" else picture.severity.lower()
        number = picture.view if picture.severity == "pristine" else picture.draw
        path = f"images/{split}/{picture.identity}/{state}_{number}.{format}"
        rendering.write_picture(out / path, item.data)
        example = Example(
            path=path,
            identity=picture.identity,
            object_type=picture.object_type,
            variant=picture.variant,
            severity=picture.severity,
            split=split,
            materials=tuple(PartMaterial(part, material) for part, material in picture.materials),
            functions=picture.functions,
            view=picture.view,
            draw=picture.draw,
            metrics=picture.metrics,
            caption=picture.caption,
            description=picture.description,
            failure_notes=picture.failure_notes,
            sha256=hashlib.sha256(item.data).hexdigest(),
        )
        written.append(rows.to_json(example))
    return written


def _example(row: Mapping[str, Any]) -> Example:
    example, faults = rows.from_json(dict(row))
    if example is None:
        raise UserError(f"{_JOURNAL}: a row is damaged ({'; '.join(faults)}). Delete the folder.")
    return example
