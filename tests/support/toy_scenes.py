"""A data folder of toy scenes: plain rectangles whose colour is their category."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from trace_jax.data import manifest
from trace_jax.types import SceneBox, SceneExample

SIDE = 64
COLOURS = {"bench": (220, 40, 30), "chair": (40, 200, 60), "clock": (30, 60, 220)}


def scene(number: int) -> tuple[Image.Image, tuple[SceneBox, ...]]:
    """One to three rectangles side by side, one of them of no category, one a crowd at times."""
    rng = np.random.default_rng(number)
    pixels = np.full((SIDE, SIDE, 3), 230, np.uint8)
    boxes = []
    for place in range(1 + number % 3):
        name = list(COLOURS)[int(rng.integers(3))]
        w, h = (int(n) for n in rng.integers(10, 19, 2))
        x, y = 2 + 21 * place, int(rng.integers(2, SIDE - h - 2))
        pixels[y : y + h, x : x + w] = COLOURS[name]
        boxes.append(SceneBox((x, y, w, h), name, coco=name))
    if number % 4 == 0:
        boxes.append(SceneBox((0, 60, 64, 4), "rug", coco=""))
    if number % 5 == 0:
        boxes.append(SceneBox((0, 0, 64, 64), "chair", coco="chair", crowd=True))
    return Image.fromarray(pixels), tuple(boxes)


def folder_of(folder: Path, *, train: int = 16, val: int = 6, empty: int = 1) -> Path:
    """Training and validation scenes, `empty` training scenes more that show nothing."""
    (folder / "images").mkdir(parents=True)
    rows = []
    for number in range(train + val + empty):
        image, boxes = scene(number)
        if number >= train + val:
            image, boxes = Image.new("RGB", (SIDE, SIDE), (230, 230, 230)), ()
        path = f"images/{number}.png"
        image.save(folder / path)
        split = "val" if train <= number < train + val else "train"
        rows.append(
            SceneExample(path, f"s{number}", "", "", "pristine", split, SIDE, SIDE, boxes=boxes)
        )
    info = manifest.DatasetInfo("scenes", "toy_scenes", "1", "", pairs=False)
    manifest.write(folder, info, rows)
    return folder
