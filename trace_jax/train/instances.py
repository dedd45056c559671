"""Pictures of many instances held in memory, and the batches that pretraining draws from them.

A batch is a pure function of (seed, step), so a resumed run sees what an unbroken one sees. Every
other batch is hard: a few object types with many instances each, so that telling instances apart
takes more than telling types apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8
from PIL import Image

from trace_jax import images
from trace_jax.data.manifest import Dataset
from trace_jax.errors import FaultsError, UserError
from trace_jax.progress import Progress
from trace_jax.types import PRISTINE, Example

# Captions beside those of the manifest, so that zero-shot prompts are in distribution.
TEMPLATES = ("a photo of a {}.", "a photo of a {}.", "{}", "a {} on a white background.")


@dataclasses.dataclass(frozen=True)
class Instances:
    """Pristine pictures grouped by instance; array rows are pictures.

    Attributes:
      pictures: [R, S, S, 3] uint8.
      rows: [I, V], the pictures of each instance by view; views are numbered from 0.
      identity: name of each instance.
      object_type: [I] index into `types`.
      material: [I, M] 0/1 over `materials`.
      types, materials: sorted names.
      texts: distinct captions.
      captions: for each instance, indices into `texts`.
    """

    pictures: UInt8[np.ndarray, "r s s 3"]
    rows: Int[np.ndarray, "i v"]
    identity: tuple[str, ...]
    object_type: Int[np.ndarray, " i"]
    material: Float[np.ndarray, "i m"]
    types: tuple[str, ...]
    materials: tuple[str, ...]
    texts: tuple[str, ...]
    captions: tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class BatchConfig:
    """What one batch holds.

    Attributes:
      size: instances in a batch; the step encodes twice as many pictures.
      hard_types: object types in a hard batch; its `size` is shared among them.
      same_view: probability that both pictures of an instance show the same view (a damaged
        object is searched among pristine pictures of that very view).
    """

    size: int = 64
    hard_types: int = 8
    same_view: float = 0.5


def readable(name: str) -> str:
    """A taxonomy name as words: "bar_stool" -> "bar stool"."""
    return name.replace("_", " ")


def load(dataset: Dataset, side: int, workers: int = 2) -> Instances:
    """Decodes every pristine picture of a data folder and groups the rows.

    Args:
      dataset: kind "objects"; rows that are not pristine are left out.
      side: S; pictures of another size are resized (bilinear).
      workers: decoding threads.

    Raises:
      UserError: no pristine rows, or instances with unequal numbers of views.
      FaultsError: pictures that cannot be read, all of them listed.
    """
    examples = [e for e in dataset.examples if e.severity == PRISTINE]
    if not examples:
        raise UserError(f"{dataset.folder}: has no pristine pictures to pretrain on.")
    pictures = decode(dataset, examples, side, workers)
    members: dict[str, list[int]] = {}
    for row, example in enumerate(examples):
        members.setdefault(example.identity, []).append(row)
    for rows in members.values():
        rows.sort(key=lambda row: examples[row].view)
    if len({len(rows) for rows in members.values()}) != 1:
        raise UserError(
            f"{dataset.folder}: instances have unequal numbers of pristine views; "
            "render every instance from the same number of views."
        )
    first = [examples[rows[0]] for rows in members.values()]
    types = sorted({e.object_type for e in first})
    materials = sorted({p.material for e in first for p in e.materials})
    material = np.zeros((len(first), len(materials)), np.float32)
    for place, example in enumerate(first):
        for part in example.materials:
            material[place, materials.index(part.material)] = 1.0
    texts: dict[str, int] = {}
    captions = []
    for example, rows in zip(first, members.values(), strict=True):
        own = [examples[row].caption for row in rows if examples[row].caption]
        # The manifest's captions and the templates share the draws evenly.
        said = [t.format(readable(example.object_type)) for t in TEMPLATES]
        said += [own[place % len(own)] for place in range(len(TEMPLATES)) if own]
        captions.append(tuple(texts.setdefault(text, len(texts)) for text in said))
    return Instances(
        pictures=pictures,
        rows=np.array(list(members.values())),
        identity=tuple(members),
        object_type=np.array([types.index(e.object_type) for e in first]),
        material=material,
        types=tuple(types),
        materials=tuple(materials),
        texts=tuple(texts),
        captions=tuple(captions),
    )


def decode(
    dataset: Dataset, examples: Sequence[Example], side: int, workers: int = 2
) -> UInt8[np.ndarray, "n s s 3"]:
    """Decodes pictures into one array, in the order given.

    Raises:
      FaultsError: pictures that cannot be read, all of them listed.
    """
    pictures = np.empty((len(examples), side, side, 3), np.uint8)

    def one(row: int) -> str | None:
        try:
            image = images.open_rgb(dataset.path(examples[row]))
        except images.BadImageError as error:
            return f"{examples[row].path}: {error}"
        if image.size != (side, side):
            image = image.resize((side, side), Image.Resampling.BILINEAR)
        pictures[row] = np.asarray(image)
        return None

    faults = []
    with ThreadPoolExecutor(workers) as pool, Progress(len(examples), "decode", "images") as bar:
        for fault in pool.map(one, range(len(examples)), chunksize=64):
            bar.advance()
            if fault:
                faults.append(fault)
    if faults:
        raise FaultsError(f"{dataset.folder}: pictures cannot be read", faults)
    return pictures


def held_out(count: int, wanted: int) -> Bool[np.ndarray, " i"]:
    """Marks `wanted` of `count` instances, evenly spaced, so that every type has its share."""
    marks = np.zeros(count, bool)
    if wanted:
        marks[np.linspace(0, count - 1, min(wanted, count)).round().astype(int)] = True
    return marks


def draw(
    data: Instances,
    members: Int[np.ndarray, " k"],
    input_ids: Int[np.ndarray, "t l"],
    config: BatchConfig,
    seed: int,
    step: int,
) -> dict[str, Any]:
    """The batch of a step; see `contrastive.make_loss` for its fields.

    Args:
      data: instances in memory.
      members: indices of the instances that may be drawn.
      input_ids: the host's tokens of `data.texts`, row by row.
      config: sizes.
      seed, step: the batch is a pure function of both.
    """
    rng = np.random.default_rng((seed, step))
    chosen, first, second = choose(data, members, config, rng, step)
    texts = np.array([rng.choice(data.captions[i]) for i in chosen])
    return {
        "first": data.pictures[data.rows[chosen, first]],
        "second": data.pictures[data.rows[chosen, second]],
        "input_ids": input_ids[texts],
        "text_group": texts.astype(np.int32),
        "object_type": data.object_type[chosen].astype(np.int32),
        "material": data.material[chosen],
    }


def choose(
    data: Instances,
    members: Int[np.ndarray, " k"],
    config: BatchConfig,
    rng: np.random.Generator,
    step: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Instances of a step's batch and two views of each.

    Returns:
      chosen, first, second: [size], indices of instances and of their views.
    """
    chosen = (
        _hard(data.object_type, members, config, rng)
        if step % 2
        else rng.permutation(members)[: config.size]
    )
    views = data.rows.shape[1]
    first = rng.integers(views, size=len(chosen))
    other = (first + rng.integers(1, max(views, 2), size=len(chosen))) % views
    second = np.where(rng.random(len(chosen)) < config.same_view, first, other)
    return chosen, first, second


def _hard(
    types: np.ndarray, members: np.ndarray, config: BatchConfig, rng: np.random.Generator
) -> np.ndarray:
    present = np.unique(types[members])
    picked = rng.permutation(present)[: config.hard_types]
    each = config.size // config.hard_types
    chosen = [rng.permutation(members[types[members] == kind])[:each] for kind in picked]
    flat = np.concatenate(chosen)
    # Rare types leave room; anything else fills it, so that shapes stay fixed.
    rest = rng.permutation(np.setdiff1d(members, flat))[: config.size - len(flat)]
    return np.concatenate([flat, rest])


def words(data: Instances) -> Iterable[str]:
    """Every text a tokenizer's vocabulary should be built from."""
    yield from data.texts
    yield from (readable(name) for name in (*data.types, *data.materials))
