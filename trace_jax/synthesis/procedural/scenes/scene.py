"""Scenes: one layout rendered pristine and after fires of rising severity, with what is true of it.

A scene depends on (WORLD, seed, series, index) alone. Its renders share layout, camera and light,
so features of the pristine and a burnt render are pairs. Boxes come from the pictures themselves:
an object's box is that of the samples where it is in front.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trace_jax import taxonomy
from trace_jax.synthesis.procedural import captions
from trace_jax.synthesis.procedural.damage import OPACITY, Fire
from trace_jax.synthesis.procedural.render import SUPERSAMPLING, Body
from trace_jax.synthesis.procedural.scenes import debris
from trace_jax.synthesis.procedural.scenes.assembly import Placed, alone, look
from trace_jax.synthesis.procedural.scenes.layout import Item, arrange
from trace_jax.synthesis.procedural.scenes.room import (
    Room,
    film,
    hotness,
    make_room,
    room_body,
)
from trace_jax.synthesis.procedural.scenes.view import View, make_view
from trace_jax.synthesis.procedural.undamaged import undamaged
from trace_jax.synthesis.procedural.world import WORLD, Request, viewpoint
from trace_jax.types import LEVELS, PRISTINE, SEVERITIES, SceneBox

_SERIES = {"train": 0, "val": 1, "test": 2, "pretrain": 3, "sample": 4}
# Least of an object that must be in sight for a box: pixels, and share of what it would show alone.
LEAST_PIXELS, LEAST_VISIBLE = 24, 0.12
# An object next to the origin is one level worse than the scene, one far away one level better.
_NEAR, _FAR = 0.75, 0.24
_DIMMER = 0.045  # light lost a level: lamps have failed, panes are sooty


@dataclasses.dataclass(frozen=True)
class SceneRequest:
    """One layout and the renders wanted of it.

    Attributes:
      series: stream of random numbers and of identities, see _SERIES.
      index: within the series.
      seed: of the world.
      width, height: pixels; height at most width.
      severities: any of "pristine", "L0".."L4".
    """

    series: str
    index: int
    seed: int = 0
    width: int = 384
    height: int = 288
    severities: tuple[str, ...] = SEVERITIES


@dataclasses.dataclass(frozen=True)
class ScenePicture:
    """One render and what a manifest says of it; fields as in types.SceneExample."""

    pixels: np.ndarray
    layout: str
    environment: str
    scene_type: str
    severity: str
    boxes: tuple[SceneBox, ...]
    caption: str
    generation: Mapping[str, Any]


def scene_name(series: str, index: int) -> str:
    """A readable, unique name, e.g. "kitchen-test-00042"."""
    return f"{scene_type_of(index)}-{series}-{index:05d}"


def scene_type_of(index: int) -> str:
    """The scene type of a series' `index`-th layout: every type once before any twice."""
    names = taxonomy.load().scene_types
    order = np.random.default_rng([WORLD, 30]).permutation(len(names))
    return names[order[index % len(names)]]


def render_scene(request: SceneRequest) -> list[ScenePicture]:
    """Renders what is requested of one layout, in the order of the severities asked for."""
    kind = taxonomy.load().scene_type_of[scene_type_of(request.index)]
    rng = np.random.default_rng([WORLD, 1000, request.seed, _SERIES[request.series], request.index])
    room = make_room(kind.name, kind.environment, rng)
    view = make_view(room, request.width, request.height, rng)
    items = arrange(room, view, kind.name, request.series, request.seed, rng)
    fires = _Fires(request, items)
    pieces = debris.scatter(room, rng)
    out = []
    for severity in sorted(request.severities, key=SEVERITIES.index):
        level = None if severity == PRISTINE else LEVELS.index(severity)
        opacity = 0.0 if level is None else OPACITY[level]
        bodies, levels = fires.at(level, room)
        placed = [Placed(room_body(room, level, opacity), 1.0, 0.0, (0, 0, 0), shadow=False)]
        placed += _stand(items, bodies)
        if level is not None:
            placed.append(
                Placed(debris.body(pieces, level, opacity, room.seed), 1.0, 0.0, (0, 0, 0))
            )
        dim = 1.0 if level is None else 1.0 - _DIMMER * (level + 1)
        seen = look(placed, view, film(room, level), dim)
        boxes = _boxes(items, placed, levels, seen.owner, view)
        out.append(
            ScenePicture(
                seen.pixels,
                scene_name(request.series, request.index),
                kind.environment,
                kind.name,
                severity,
                boxes,
                _caption(kind.title, severity, boxes, room),
                _generation(request, items, room),
            )
        )
    wanted = {s: n for n, s in enumerate(request.severities)}
    return sorted(out, key=lambda picture: wanted[picture.severity])


class _Fires:
    """Every object's states, computed once for all severities asked for."""

    def __init__(self, request: SceneRequest, items: Sequence[Item]) -> None:
        self._items = items
        self._states: list[list[Body]] = []
        burning = any(s != PRISTINE for s in request.severities)
        for number, item in enumerate(items):
            if not burning:
                self._states.append([])
                continue
            own = Request(request.series, item.index, request.seed)
            eye, _ = viewpoint(own, item.identity, 0)
            rng = np.random.default_rng(
                [WORLD, 1001, request.seed, _SERIES[request.series], request.index, number]
            )
            fire = Fire(item.identity.mesh, rng)
            self._states.append([state.body for state in fire.states(LEVELS, eye)])

    def at(self, level: int | None, room: Room) -> tuple[list[Body], list[int | None]]:
        """Bodies at a scene's level, and the level of each object: None is untouched."""
        bodies, levels = [], []
        for number, item in enumerate(self._items):
            own: int | None = None
            if level is not None:
                place = np.array([[item.x, item.y, item.height + 0.5 * item.tall]])
                reached = float(hotness(room, place)[0])
                own = level + (reached > _NEAR) - (reached < _FAR)
                own = min(own, len(LEVELS) - 1) if own >= 0 else None
            mesh = item.identity.mesh
            bodies.append(undamaged(mesh, item.index) if own is None else self._states[number][own])
            levels.append(own)
        return bodies, levels


def _stand(items: Sequence[Item], bodies: Sequence[Body]) -> list[Placed]:
    """Bodies in the world; what stood on a table sinks with it, what hung falls when it breaks."""
    placed: list[Placed] = []
    for item, body in zip(items, bodies, strict=True):
        z = item.height
        if item.support >= 0:
            z = _top(placed[item.support], item)
        elif item.place in ("wall", "ceiling") and _fallen(body):
            z = 0.0
        placed.append(Placed(body, item.scale, item.yaw, (item.x, item.y, z)))
    return placed


def _fallen(body: Body) -> bool:
    """Whether so little is left that no hook holds it."""
    return float((body.state[:, 3] > 0).mean()) < 0.75


def _top(carrier: Placed, item: Item) -> float:
    """Height of what is left of a carrier under an item's footprint."""
    points = carrier.world()
    alive = carrier.body.state[:, 3] > 0.0
    hx, hy = item.half
    inside = (np.abs(points[:, 0] - item.x) < hx + 0.05) & (
        np.abs(points[:, 1] - item.y) < hy + 0.05
    )
    found = points[inside & alive, 2]
    return float(np.percentile(found, 92)) if len(found) else 0.0


def _boxes(
    items: Sequence[Item],
    placed: Sequence[Placed],
    levels: Sequence[int | None],
    owner: np.ndarray,
    view: View,
) -> tuple[SceneBox, ...]:
    found = []
    known = taxonomy.load()
    for number, item in enumerate(items, start=1):
        rows, columns = np.nonzero(owner == number)
        if len(rows) < LEAST_PIXELS * SUPERSAMPLING**2:
            continue
        whole = alone(placed[number], view)
        visible = min(len(rows) / max(whole, 1), 1.0)
        if visible < LEAST_VISIBLE:
            continue
        x0, x1 = columns.min() / SUPERSAMPLING, (columns.max() + 1) / SUPERSAMPLING
        y0, y1 = rows.min() / SUPERSAMPLING, (rows.max() + 1) / SUPERSAMPLING
        finishes = item.identity.mesh.finishes
        materials = tuple(dict.fromkeys(f.material for f in finishes))
        level = levels[number - 1]
        found.append(
            SceneBox(
                (float(x0), float(y0), float(x1 - x0), float(y1 - y0)),
                item.identity.object_type,
                known.coco_of(item.identity.object_type) or "",
                materials,
                "intact" if level is None else captions.state(materials, LEVELS[level]),
                round(float(visible), 4),
                item.identity.name,
            )
        )
    return tuple(found)


def _caption(title: str, severity: str, boxes: Sequence[SceneBox], room: Room) -> str:
    names = list(dict.fromkeys(box.object_type.replace("_", " ") for box in boxes))[:4]
    listed = (
        ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + (names[-1] if names else "")
    )
    seen = f" with {listed}" if names else ""
    if severity == PRISTINE:
        return f"A {title}{seen}."
    level = taxonomy.load().severity[LEVELS.index(severity)]
    side = "left" if room.origin[0] < -0.3 else "right" if room.origin[0] > 0.3 else "middle"
    worst = f"worst in the {side}" if side == "middle" else f"worst on the {side}"
    return f"A {title} after a fire{seen}. {level.title.capitalize()}, {worst}."


def _generation(request: SceneRequest, items: Sequence[Item], room: Room) -> dict[str, Any]:
    return {
        "engine": "procedural",
        "world": WORLD,
        "series": request.series,
        "index": request.index,
        "seed": request.seed,
        "fire_origin": [round(float(v), 3) for v in room.origin],
        # What was put there, seen or not: never read as truth (paper A.3).
        "intended_inventory": [item.identity.object_type for item in items],
    }
