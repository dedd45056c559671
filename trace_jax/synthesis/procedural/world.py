"""Identities of the procedural world: from (seed, series, index) to pictures and their rows.

An identity's pixels depend on (WORLD, seed, series, index) alone, never on the process, the order
of work or the other identities. Rebuilt on another processor a few pixels may differ by a grey
level: numpy and the compiler choose other vector instructions there.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from trace_jax import taxonomy
from trace_jax.synthesis.procedural import captions, recipes
from trace_jax.synthesis.procedural.camera import Camera, Light, frame, studio_light
from trace_jax.synthesis.procedural.mesh import Mesh
from trace_jax.synthesis.procedural.render import Body, render
from trace_jax.synthesis.procedural.undamaged import undamaged

# Changes whenever pixels of an identity change; stored in every data set.
WORLD = 2

# The series of the taxonomy's own identities (paper section 3: 499).
INVENTORY = "inventory"
# Separate streams of random numbers: series never share an identity.
_SERIES = {"train": 0, "val": 1, "test": 2, "pretrain": 3, "sample": 4, INVENTORY: 5}
_OBJECT, _VIEW, _FIRE = 0, 1, 2
PRISTINE = "pristine"


@dataclasses.dataclass(frozen=True)
class Request:
    """One identity and the pictures wanted of it.

    Attributes:
      series: "train", "val", "test", "pretrain" or "sample", a stream of random numbers, or
        "inventory": the taxonomy's identities with their materials and colourways.
      index: within the series.
      seed: of the whole world.
      size: side of the pictures in pixels, 64-448.
      views: pristine views; 0 is the reference that the levels share.
      levels: damage levels, e.g. ("L0", "L4"); each is rendered for every draw.
      draws: independent fires.
    """

    series: str
    index: int
    seed: int = 0
    size: int = 96
    views: tuple[int, ...] = (0,)
    levels: tuple[str, ...] = ()
    draws: int = 1


@dataclasses.dataclass(frozen=True)
class Picture:
    """One rendered picture and what a manifest says of it.

    Attributes:
      pixels: uint8 [size, size, 3].
      identity, object_type, variant, severity, view, draw, metrics, caption, description,
        failure_notes: as in a manifest row.
      materials: (part, material) pairs.
      functions: function tags of the type.
    """

    pixels: np.ndarray
    identity: str
    object_type: str
    variant: str
    severity: str
    view: int
    draw: int
    materials: tuple[tuple[str, str], ...]
    functions: tuple[str, ...]
    metrics: dict[str, float]
    caption: str
    description: str
    failure_notes: str


@dataclasses.dataclass(frozen=True)
class Identity:
    """One physical object before any fire."""

    name: str
    object_type: str
    mesh: Mesh
    values: dict[str, Any]
    variant: str


@functools.cache
def type_order() -> tuple[str, ...]:
    """The types in the order in which a series goes through them, again and again."""
    names = tuple(recipes.load())
    order = np.random.default_rng([WORLD, 77]).permutation(len(names))
    return tuple(names[k] for k in order)


def type_of(index: int) -> str:
    """The type of a series' `index`-th identity: every type once before any twice."""
    order = type_order()
    return order[index % len(order)]


def identity_name(series: str, index: int) -> str:
    """A readable, unique name, e.g. "mug-train-00123"; the inventory has names of its own."""
    if series == INVENTORY:
        return taxonomy.load().identities[index].name
    return f"{type_of(index)}-{series}-{index:05d}"


def _stream(request: Request, *key: int) -> np.random.Generator:
    return np.random.default_rng(
        [WORLD, request.seed, _SERIES[request.series], request.index, *key]
    )


def make_identity(request: Request) -> Identity:
    """Builds the requested identity's object."""
    rng = _stream(request, _OBJECT)
    if request.series == INVENTORY:
        row = taxonomy.load().identities[request.index]
        recipe = recipes.load()[row.object_type]
        mesh, values = recipes.build(recipe, rng, row.materials, row.colourway)
        words = f"{row.style}; {row.manufacturing}; {', '.join(row.colourway)}"
        return Identity(row.name, row.object_type, mesh, values, words)
    name = type_of(request.index)
    mesh, values = recipes.build(recipes.load()[name], rng)
    words = captions.variant(mesh, values)
    return Identity(identity_name(request.series, request.index), name, mesh, values, words)


def viewpoint(request: Request, identity: Identity, view: int) -> tuple[Camera, Light]:
    """Camera and light of a view; view 0 is shared by all levels."""
    recipe = recipes.load()[identity.object_type]
    rng = _stream(request, _VIEW, 0)
    yaw, pitch = rng.uniform(*recipe.yaw), rng.uniform(*recipe.pitch)
    fill, azimuth, elevation = rng.uniform(0.70, 0.80), rng.uniform(-55, -20), rng.uniform(50, 64)
    key, ambient = 0.62, 0.52
    if view > 0:
        rng = _stream(request, _VIEW, view)
        low, high = recipe.yaw[0] - 20, recipe.yaw[1] + 20
        first = yaw
        for _ in range(8):
            yaw = rng.uniform(low, high)
            if abs(yaw - first) >= 20:
                break
        pitch = float(np.clip(rng.uniform(recipe.pitch[0] - 6, recipe.pitch[1] + 10), 3, 55))
        fill *= rng.uniform(0.88, 1.05)
        azimuth += rng.uniform(-18, 18)
        elevation += rng.uniform(-5, 5)
        key *= rng.uniform(0.9, 1.1)
        ambient *= rng.uniform(0.94, 1.05)
    camera = frame(identity.mesh.points.astype(np.float64), yaw, pitch, fill, 0.01)
    return camera, studio_light(azimuth, elevation, key, ambient)


def pictures(request: Request) -> list[Picture]:
    """Renders what is requested of one identity: pristine views first, then draws by level."""
    identity = make_identity(request)
    out = []
    body = undamaged(identity.mesh, seed=request.index)
    for view in request.views:
        out.append(_picture(request, identity, body, PRISTINE, view, 0, {}))
    if request.levels:
        out += _damaged(request, identity, request.levels)
    return out


def _damaged(request: Request, identity: Identity, levels: Sequence[str]) -> list[Picture]:
    from trace_jax.synthesis.procedural import damage

    out = []
    for draw in range(request.draws):
        fire = damage.Fire(identity.mesh, _stream(request, _FIRE, draw))
        camera, _ = viewpoint(request, identity, 0)
        for state in fire.states(levels, camera):
            out.append(_picture(request, identity, state.body, state.level, 0, draw, state.metrics))
    return out


def _picture(
    request: Request,
    identity: Identity,
    body: Body,
    severity: str,
    view: int,
    draw: int,
    metrics: dict[str, float],
) -> Picture:
    camera, light = viewpoint(request, identity, view)
    mesh = identity.mesh
    kind = taxonomy.load().type(identity.object_type)
    materials = [finish.material for finish in mesh.finishes]
    return Picture(
        render(body, camera, light, request.size),
        identity.name,
        identity.object_type,
        identity.variant,
        severity,
        view,
        draw,
        tuple(
            (part, finish.material) for part, finish in zip(mesh.parts, mesh.finishes, strict=True)
        ),
        kind.functions,
        metrics,
        captions.caption(identity.object_type, mesh, severity),
        captions.describe(identity.object_type, materials, severity),
        captions.failure_notes(identity.object_type, materials),
    )
