"""A data folder of toy pictures, for pretraining runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from trace_jax.data import manifest
from trace_jax.types import Example, PartMaterial

SIDE, TYPES, VARIANTS, VIEWS = 32, 4, 6, 3


def picture(number: int, view: int) -> Image.Image:
    rng = np.random.default_rng(number)
    pixels = np.full((SIDE, SIDE, 3), 255, np.uint8)
    top, size = 4 + view, 12 + 2 * (number % TYPES)
    pixels[top : top + size, 6 : 6 + size // 2] = rng.integers(20, 220, 3)
    return Image.fromarray(pixels)


def folder_of(folder: Path, split: str = "train", levels: tuple[str, ...] = ()) -> Path:
    (folder / "images").mkdir(parents=True)
    rows = []
    for number in range(TYPES * VARIANTS):
        kind = f"kind_{'abcd'[number % TYPES]}"
        for view, severity in [(v, "pristine") for v in range(VIEWS)] + [(0, s) for s in levels]:
            path = f"images/{number}_{view}_{severity}.png"
            picture(number, view).save(folder / path)
            rows.append(
                Example(
                    path=path,
                    identity=f"i{number}",
                    object_type=kind,
                    variant=f"v{number}",
                    severity=severity,
                    split=split,
                    materials=(PartMaterial("body", ("wood", "steel")[number % 2]),),
                    view=view,
                    functions=("seating", "lighting")[number // 2 % 2 :][:1],
                    metrics={"soot_coverage": 0.4, "structural_integrity": 0.9}
                    if severity in levels
                    else {},
                    caption=f"a kind {'abcd'[number % TYPES]} of look {number % 3}.",
                )
            )
    manifest.write(folder, manifest.DatasetInfo("objects", "toy", "1", ""), rows)
    return folder
