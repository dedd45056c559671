"""What stands where: objects of a scene type on the floor, on tables, on walls, under ceilings.

Sizes follow the taxonomy's real ones, compressed: a fork of 20 cm is drawn at 28, a car of 4 m at
2.7, since what covers a few pixels cannot be learnt from and what fills the picture hides the rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from trace_jax import taxonomy
from trace_jax.synthesis.procedural.scenes.room import Room
from trace_jax.synthesis.procedural.world import Identity, Request, make_identity, type_order

_MIDDLE, _SMALL_POWER, _LARGE_POWER = 0.55, 0.62, 0.55
_TRIES = 60
# Types whose top carries things.
_SUPPORTS = (
    "table", "desk", "nightstand", "dresser", "bench", "washing_machine", "dishwasher", "oven",
    "filing_cabinet", "bookshelf", "safe", "stool", "piano",
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
      height: of a wall or ceiling place, metres above the floor.
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


def drawn_size(metres: float) -> float:
    """Metres that an object of a real longest side is drawn at."""
    power = _SMALL_POWER if metres < _MIDDLE else _LARGE_POWER
    return _MIDDLE * (metres / _MIDDLE) ** power


def arrange(
    room: Room,
    scene_type: str,
    series: str,
    seed: int,
    rng: np.random.Generator,
) -> list[Item]:
    """Draws 4 to 12 objects and puts them where they do not run into each other.

    Args:
      room: the place.
      scene_type: decides most of the types.
      series: stream of identities: those of one split meet in no other split's scenes.
      seed: of the world. rng: draws everything else.
    """
    wanted = _types(scene_type, int(rng.integers(5, 14)), rng)
    known = taxonomy.load().types
    items: list[Item] = []
    # Big things first: they carry the small ones.
    wanted.sort(key=lambda name: -known[name].size_m[1])
    for name in wanted:
        placements = known[name].placement
        index = _index_of(name, rng)
        identity = make_identity(Request(series, index, seed))
        metres = drawn_size(float(rng.uniform(*known[name].size_m)))
        points = identity.mesh.points
        scale = metres / max(float(np.ptp(points, axis=0).max()), 1e-6)
        for place in _order(placements, items, rng):
            item = _put(room, Item(identity, index, scale, 0.0, 0.0, 0.0, place), items, rng)
            if item is not None:
                items.append(item)
                break
        if len(items) == 12:
            break
    return items


def _types(scene_type: str, count: int, rng: np.random.Generator) -> list[str]:
    """Types of a scene: its usual ones, and some that COCO names, which detection is scored on."""
    known = taxonomy.load()
    row = known.scene_type_of[scene_type]
    usual = [name for name in row.objects if name in type_order()]
    fitting = [
        name
        for name in type_order()
        if row.environment in known.types[name].environments and known.types[name].coco
    ]
    chosen = [usual[k] for k in rng.permutation(len(usual))[: max(3, round(0.6 * count))]]
    others = [fitting[k] for k in rng.permutation(len(fitting))]
    chosen += [name for name in others if name not in chosen][: max(count - len(chosen), 0)]
    if rng.random() < 0.3 and chosen:
        chosen.append(chosen[int(rng.integers(len(chosen)))])  # two of a kind
    return chosen


def _index_of(name: str, rng: np.random.Generator) -> int:
    order = type_order()
    return order.index(name) + int(rng.integers(40)) * len(order)


def _order(placements: Sequence[str], items: Sequence[Item], rng: np.random.Generator) -> list[str]:
    """Places to try, a drawn one first; what finds no surface lies on the floor."""
    found = [placements[k] for k in rng.permutation(len(placements))]
    if "surface" in found and any(i.identity.object_type in _SUPPORTS for i in items):
        found.remove("surface")
        found.insert(0, "surface")
    return [*found, *(p for p in ("floor",) if p not in found)]


def _put(room: Room, item: Item, items: Sequence[Item], rng: np.random.Generator) -> Item | None:
    if item.place == "surface":
        return _on_surface(item, items, rng)
    if item.place == "wall":
        return _on_wall(room, item, items, rng)
    if item.place == "ceiling":
        return _on_ceiling(room, item, rng)
    return _on_floor(room, item, items, rng)


def _on_floor(
    room: Room, item: Item, items: Sequence[Item], rng: np.random.Generator
) -> Item | None:
    low = item.tall > 0.9
    for attempt in range(_TRIES):
        yaw = float(rng.uniform(-40, 40)) if rng.random() < 0.75 else float(rng.uniform(-150, 150))
        tried = dataclasses.replace(item, yaw=yaw)
        hx, hy = tried.half
        reach_x, reach_y = room.width / 2 - hx - 0.03, room.depth / 2 - hy - 0.03
        if reach_x <= 0 or reach_y <= -1.0:
            return None
        x = float(rng.uniform(-reach_x, reach_x))
        front = max(-room.depth / 2 + 0.3, -reach_y)
        y = float(rng.uniform(front, max(reach_y, front)))
        if low and attempt < _TRIES // 2:
            # Tall furniture stands along the walls, where it hides nothing.
            y = max(y, reach_y - 0.25)
        tried = dataclasses.replace(tried, x=x, y=y)
        if all(_apart(tried, other) for other in items if other.place == "floor"):
            return tried
    return None


def _apart(a: Item, b: Item) -> bool:
    ax, ay = a.half
    bx, by = b.half
    # Footprints may just touch: a chair stands half under its table.
    near = 0.82
    return abs(a.x - b.x) > near * (ax + bx) or abs(a.y - b.y) > near * (ay + by)


def _on_surface(item: Item, items: Sequence[Item], rng: np.random.Generator) -> Item | None:
    supports = [
        k
        for k, other in enumerate(items)
        if other.place == "floor" and other.identity.object_type in _SUPPORTS and other.tall < 1.5
    ]
    for _ in range(_TRIES):
        if not supports:
            return None
        number = supports[int(rng.integers(len(supports)))]
        carrier = items[number]
        yaw = carrier.yaw + float(rng.uniform(-35, 35))
        tried = dataclasses.replace(item, yaw=yaw, support=number)
        hx, hy = tried.half
        cx, cy = carrier.half
        rx, ry = 0.8 * cx - hx, 0.8 * cy - hy
        if rx <= 0 or ry <= 0:
            continue
        tried = dataclasses.replace(
            tried,
            x=carrier.x + float(rng.uniform(-rx, rx)),
            y=carrier.y + float(rng.uniform(-ry, ry)),
        )
        if all(_apart(tried, other) for other in items if other.support == number):
            return tried
    return None


def _on_wall(
    room: Room, item: Item, items: Sequence[Item], rng: np.random.Generator
) -> Item | None:
    if room.outdoor and item.tall > room.height:
        return None
    for _ in range(_TRIES):
        hx, hy = dataclasses.replace(item, yaw=0.0).half
        reach = room.width / 2 - hx - 0.1
        if reach <= 0:
            return None
        low, high = 0.9, max(0.95, room.height - item.tall - 0.15)
        tried = dataclasses.replace(
            item,
            yaw=0.0,
            x=float(rng.uniform(-reach, reach)),
            y=room.depth / 2 - hy - 0.02,
            height=float(rng.uniform(low, high)) if item.tall < 1.0 else 0.0,
        )
        others = [o for o in items if o.place == "wall"]
        if all(abs(tried.x - o.x) > hx + o.half[0] for o in others):
            return tried
    return None


def _on_ceiling(room: Room, item: Item, rng: np.random.Generator) -> Item | None:
    if room.outdoor:
        return None
    return dataclasses.replace(
        item,
        x=float(rng.uniform(-0.3, 0.3) * room.width),
        y=float(rng.uniform(-0.1, 0.3) * room.depth),
        height=max(room.height - item.tall - 0.02, 1.2),
    )
