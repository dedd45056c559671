"""What stands where: objects on the floor, on tables and worktops, on walls, under ceilings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from trace_jax import taxonomy
from trace_jax.synthesis.procedural.scenes.inventory import (
    FEWEST,
    MOST,
    draw_identity,
    draw_types,
    drawn_size,
)
from trace_jax.synthesis.procedural.scenes.room import Room
from trace_jax.synthesis.procedural.scenes.view import View
from trace_jax.synthesis.procedural.world import Identity, Request, make_identity

_TRIES = 40
_WIDEST = 0.42  # of the picture, most that the middle 70% of an object fill
_TALL = 0.62  # metres; what is taller stands along the walls, where it hides nothing
# Types whose top carries things.
_CARRIERS = (
    "table", "desk", "nightstand", "dresser", "bench", "washing_machine", "dishwasher", "oven",
    "filing_cabinet", "safe", "stool", "piano",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Item:
    """One object of a layout.

    Attributes:
      identity: the object.
      index: of its request, which also draws its fire.
      scale: metres a unit. yaw: degrees. x, y: where it stands, metres.
      place: "floor", "surface", "wall" or "ceiling".
      support: number of the item it stands on, or -1.
      height: metres above the floor, of what stands on no other item.
    """

    identity: Identity
    index: int
    scale: float
    yaw: float
    x: float
    y: float
    place: str
    support: int = -1
    height: float = 0.0

    @property
    def half(self) -> tuple[float, float]:
        """Half sides of its footprint along x and y, metres."""
        size = np.ptp(self.identity.mesh.points[:, :2], axis=0) * self.scale / 2
        a = np.radians(self.yaw)
        c, s = abs(np.cos(a)), abs(np.sin(a))
        return float(c * size[0] + s * size[1]), float(s * size[0] + c * size[1])

    @property
    def tall(self) -> float:
        """Its height, metres."""
        return float(np.ptp(self.identity.mesh.points[:, 2]) * self.scale)

    @property
    def middle(self) -> np.ndarray:
        """Middle of its pristine box [3], metres."""
        return np.array([self.x, self.y, self.height + self.tall / 2])


def arrange(
    room: Room, view: View, scene_type: str, series: str, seed: int, rng: np.random.Generator
) -> list[Item]:
    """Draws 4 to 12 objects and puts them in sight, where they do not run into each other.

    Args:
      room: the place. view: what the camera sees of it.
      scene_type: decides most of the types.
      series: stream of identities: those of one split meet in no other split's scenes.
      seed: of the world. rng: draws everything else.
    """
    count = int(rng.integers(FEWEST + 3, MOST + 1))
    names = draw_types(scene_type, count, rng)
    known = taxonomy.load().types
    items: list[Item] = []
    # Big things first: they carry the small ones. The spare ones come last, if needed at all.
    chosen = sorted(names[:count], key=lambda name: -known[name].size_m[1])
    for name in (*chosen, *names[count:]):
        if len(items) == count:
            break
        index = draw_identity(name, rng)
        identity = make_identity(Request(series, index, seed))
        metres = drawn_size(float(rng.uniform(*known[name].size_m)))
        scale = metres / max(float(np.ptp(identity.mesh.points, axis=0).max()), 1e-6)
        blank = Item(identity, index, scale, 0.0, 0.0, 0.0, "floor")
        placements = known[name].placement
        places = [placements[k] for k in rng.permutation(len(placements))]
        # What belongs on a table stands on one if there is room; else it lies on the floor.
        places.sort(key=lambda place: place != "surface")
        for place in [*places, *(p for p in ("floor",) if p not in places)]:
            item = _put(room, view, dataclasses.replace(blank, place=place), items, rng)
            if item is not None:
                items.append(item)
                break
    return items


def _put(
    room: Room, view: View, item: Item, items: Sequence[Item], rng: np.random.Generator
) -> Item | None:
    for attempt in range(_TRIES):
        if item.place == "surface":
            tried = _on_surface(room, item, items, rng)
        elif item.place == "wall":
            tried = _on_wall(room, item, items, rng)
        elif item.place == "ceiling":
            tried = _on_ceiling(room, item, items, rng)
        else:
            tried = _on_floor(room, item, items, rng, attempt < _TRIES // 2)
        if tried is not None and _in_sight(view, tried, items):
            return tried
    return None


def _in_sight(view: View, item: Item, items: Sequence[Item]) -> bool:
    """Whether most of it is in the picture, and does not fill it."""
    lift = items[item.support].tall if item.support >= 0 else 0.0
    hx, hy = item.half
    corners = item.middle + np.array([[sx * hx, sy * hy, lift + sz * item.tall / 2]
                                      for sx in (-0.7, 0.7) for sy in (-0.7, 0.7)
                                      for sz in (-0.7, 0.7)])  # fmt: skip
    span = np.ptp(view.camera.project(corners)[:, :2], axis=0)
    if span[0] > _WIDEST or span[1] > _WIDEST * view.height / view.width:
        return False
    return sum(view.sees(corner, 0.0) for corner in corners) >= 6


def _on_floor(
    room: Room, item: Item, items: Sequence[Item], rng: np.random.Generator, tidy: bool
) -> Item | None:
    tall = item.tall > _TALL
    along = int(rng.integers(4)) if tall and tidy else 3  # back, left or right wall, or free
    if along < 3:
        yaw = (0.0, 90.0, -90.0)[along] + float(rng.uniform(-10, 10))
        if room.outdoor and along:
            yaw = float(rng.uniform(-40, 40))
    else:
        wide = 40 if rng.random() < 0.7 else 150
        yaw = float(rng.uniform(-wide, wide))
    item = dataclasses.replace(item, yaw=yaw)
    hx, hy = item.half
    reach_x, reach_y = room.width / 2 - hx - 0.04, room.depth / 2 - hy - 0.04
    if reach_x <= 0 or reach_y <= -0.6:
        return None
    x = float(rng.uniform(-reach_x, reach_x))
    y = float(rng.uniform(min(-room.depth / 2 + 0.1, reach_y), reach_y))
    if along in (1, 2) and not room.outdoor:
        x = -reach_x if along == 1 else reach_x
    elif tall and tidy:
        y = reach_y - float(rng.uniform(0, 0.25))
    item = dataclasses.replace(item, x=x, y=y)
    if any(
        abs(x - b.x) < hx + b.half_x and abs(y - b.y) < hy + b.half_y and item.tall > b.low
        for b in room.blocks
    ):
        return None
    floor = [other for other in items if other.place == "floor"]
    return item if all(_apart(item, other) for other in floor) else None


def _apart(a: Item, b: Item) -> bool:
    ax, ay = a.half
    bx, by = b.half
    # Footprints may just touch: a chair stands half under its table.
    near = 0.85
    return abs(a.x - b.x) > near * (ax + bx) or abs(a.y - b.y) > near * (ay + by)


def _on_surface(
    room: Room, item: Item, items: Sequence[Item], rng: np.random.Generator
) -> Item | None:
    """On an item that carries things, or on a prop."""
    carriers = [
        k
        for k, other in enumerate(items)
        if other.place == "floor" and other.identity.object_type in _CARRIERS and other.tall < 1.3
    ]
    number = int(rng.integers(len(carriers) + len(room.tops))) if carriers or room.tops else -1
    if number < 0:
        return None
    yaw = float(rng.uniform(-35, 35))
    if number < len(carriers):
        carrier = items[carriers[number]]
        item = dataclasses.replace(item, yaw=carrier.yaw + yaw, support=carriers[number])
        x, y, (cx, cy) = carrier.x, carrier.y, carrier.half
        cx, cy = 0.82 * cx, 0.82 * cy
    else:
        top = room.tops[number - len(carriers)]
        # Between boards only what fits below the next one.
        above = [t.height for t in room.tops if (t.x, t.y) == (top.x, top.y)]
        room_left = min((h - top.height for h in above if h > top.height), default=9.0)
        if item.tall > room_left - 0.06:
            return None
        item = dataclasses.replace(item, yaw=yaw, height=top.height)
        x, y, cx, cy = top.x, top.y, top.half_x, top.half_y
    hx, hy = item.half
    rx, ry = cx - hx, cy - 0.85 * hy  # may stand out a little
    if rx <= 0 or ry <= 0:
        return None
    item = dataclasses.replace(
        item, x=x + float(rng.uniform(-rx, rx)), y=y + float(rng.uniform(-ry, ry))
    )
    near = [
        other
        for other in items
        if other.place == "surface" and (other.support, other.height) == (item.support, item.height)
    ]
    return item if all(_apart(item, other) for other in near) else None


def _on_wall(
    room: Room, item: Item, items: Sequence[Item], rng: np.random.Generator
) -> Item | None:
    yaw = 0.0 if room.outdoor else (0.0, 0.0, 0.0, 90.0, -90.0)[int(rng.integers(5))]
    item = dataclasses.replace(item, yaw=yaw)
    hx, hy = item.half
    reach_x, reach_y = room.width / 2 - hx - 0.02, room.depth / 2 - hy - 0.02
    low, high = 0.85, min(room.height - 0.1, 2.2) - item.tall
    if reach_x <= 0 or reach_y <= 0 or high < 0:
        return None
    height = float(rng.uniform(min(low, high), high))
    x, y = float(rng.uniform(-reach_x, reach_x)), reach_y
    if yaw:
        x, y = float(-np.sign(yaw) * reach_x), float(rng.uniform(-reach_y, reach_y))
    item = dataclasses.replace(item, x=x, y=y, height=height)
    top = height + item.tall
    for b in room.blocks:
        crossed = abs(x - b.x) < hx + b.half_x and abs(y - b.y) < hy + b.half_y + 0.05
        if crossed and height < b.high and b.low < top:
            return None
    for other in items:
        standing = other.place != "ceiling" and other.support < 0
        near = abs(x - other.x) < hx + other.half[0] and abs(y - other.y) < hy + other.half[1]
        if standing and near and height < other.height + other.tall and other.height < top:
            return None
    return item


def _on_ceiling(
    room: Room, item: Item, items: Sequence[Item], rng: np.random.Generator
) -> Item | None:
    if room.outdoor or any(other.place == "ceiling" for other in items):
        return None
    return dataclasses.replace(
        item,
        x=float(rng.uniform(-0.35, 0.35) * room.width),
        y=float(rng.uniform(-0.1, 0.4) * room.depth),
        height=max(room.height - item.tall - 0.02, 1.0),
    )
