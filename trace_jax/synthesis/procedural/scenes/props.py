"""Fixed things of a place that no box is drawn around: worktops, shelves, windows, trees.

Each is built against a wall at y = 0 with the room at y < 0, within a width, and says where things
may stand on it. Heights are about nine tenths of real ones, as furniture is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from trace_jax.synthesis.procedural.scenes.kit import SKY, Kit

_BENCH = 0.76  # height of what one works at


def _worktop(kit: Kit, width: float, front: str = "lacquer", top: str = "stone") -> None:
    deep, high = 0.5, _BENCH
    body, slab = kit.finish(front), kit.finish(top)
    kit.box((0, -deep / 2), (width, deep, high - 0.05), 0.0, body)
    kit.box((0, -deep / 2 - 0.01), (width + 0.04, deep + 0.04, 0.05), high - 0.05, slab)
    doors = max(2, round(width / 0.45))
    handle = kit.finish("steel")
    for k in range(doors):
        x = (k + 0.5) * width / doors - width / 2
        kit.box((x, -deep - 0.006), (width / doors - 0.025, 0.014, high - 0.18), 0.08, body)
        kit.box((x + 0.12, -deep - 0.02), (0.10, 0.02, 0.018), high - 0.17, handle)
    kit.top((0, -deep / 2), (width, deep), high)


def _bar(kit: Kit, width: float) -> None:
    front = "panel" if kit.rng.random() < 0.6 else "lacquer"
    _worktop(kit, width, front, "timber" if kit.rng.random() < 0.5 else "stone")


def _table(kit: Kit, width: float, deep: float, top: str, legs: str, shelf: bool) -> None:
    slab, leg = kit.finish(top), kit.finish(legs)
    kit.box((0, -deep / 2), (width, deep, 0.05), _BENCH - 0.05, slab)
    for x in (-width / 2 + 0.04, width / 2 - 0.04):
        for y in (-0.05, -deep + 0.05):
            kit.box((x, y), (0.05, 0.05, _BENCH - 0.05), 0.0, leg)
    kit.top((0, -deep / 2), (width, deep), _BENCH)
    if shelf:
        kit.box((0, -deep / 2), (width - 0.1, deep - 0.08, 0.03), 0.2, slab)
        kit.top((0, -deep / 2 - 0.05), (width - 0.2, deep - 0.16), 0.23)


def _workbench(kit: Kit, width: float) -> None:
    _table(kit, width, 0.52, "timber", "timber", True)


def _steel_bench(kit: Kit, width: float) -> None:
    _table(kit, width, 0.52, "steel", "steel", True)


def _sideboard(kit: Kit, width: float) -> None:
    body, deep = kit.finish("lacquer"), 0.36
    high = float(kit.rng.uniform(0.42, 0.62))
    kit.box((0, -deep / 2), (width, deep, high), 0.05, body)
    foot = kit.finish("timber")
    kit.box((0, -deep / 2 + 0.02), (width - 0.1, deep - 0.06, 0.05), 0.0, foot)
    for k in range(3):
        x = (k - 1) * width / 3
        kit.box((x, -deep - 0.006), (width / 3 - 0.02, 0.012, high - 0.06), 0.08, body)
    kit.top((0, -deep / 2), (width, deep), high + 0.05)


def _shelf(kit: Kit, width: float) -> None:
    board, deep = kit.finish("timber"), 0.24
    for high in (1.12, 1.5)[: 1 + int(kit.rng.random() < 0.5)]:
        kit.box((0, -deep / 2), (width, deep, 0.03), high, board)
        kit.top((0, -deep / 2), (width - 0.04, deep + 0.08), high + 0.03)


def _rack(kit: Kit, width: float) -> None:
    post, board, deep = kit.finish("steel"), kit.finish("timber"), 0.42
    for x in (-width / 2, width / 2):
        for y in (-0.03, -deep + 0.03):
            kit.box((x, y), (0.05, 0.05, 1.6), 0.0, post)
    for high in (0.25, 0.78, 1.3):
        kit.box((0, -deep / 2), (width, deep, 0.035), high, board)
        kit.top((0, -deep / 2 - 0.02), (width - 0.1, deep), high + 0.035)


def _cupboard(kit: Kit, width: float) -> None:
    body, handle = kit.finish("lacquer"), kit.finish("steel")
    kit.box((0, -0.15), (width, 0.30, 0.5), 1.45, body)
    doors = max(2, round(width / 0.42))
    for k in range(doors):
        x = (k + 0.5) * width / doors - width / 2
        kit.box((x, -0.305), (width / doors - 0.025, 0.014, 0.46), 1.47, body, frail=True)
        kit.box((x, -0.32), (0.09, 0.02, 0.018), 1.5, handle)


def _window(kit: Kit, width: float) -> None:
    low, high = 0.85, 1.0
    frame, pane, sky = kit.finish("lacquer"), kit.finish("pane"), kit.finish(SKY)
    kit.sheet((-width / 2, -0.012, low), (width, 0, 0), (0, 0, high), sky, burns=False)
    kit.sheet((-width / 2, -0.03, low), (width, 0, 0), (0, 0, high), pane, frail=True)
    for x in (-width / 2, 0.0, width / 2):
        kit.box((x, -0.03), (0.05, 0.06, high), low, frame)
    for z in (low - 0.03, low + high):
        kit.box((0, -0.04), (width + 0.1, 0.08, 0.05), z, frame)
    if kit.rng.random() < 0.55:
        cloth = kit.finish("cloth")
        for side in (-1, 1):
            kit.box(
                (side * (width / 2 + 0.08), -0.09), (0.3, 0.05, 1.25), low - 0.2, cloth, frail=True
            )


def _house_window(kit: Kit, width: float) -> None:
    frame, pane, sky = kit.finish("lacquer"), kit.finish("pane"), kit.finish("slate")
    kit.sheet((-width / 2, -0.012, 0.8), (width, 0, 0), (0, 0, 0.95), sky)
    kit.sheet((-width / 2, -0.03, 0.8), (width, 0, 0), (0, 0, 0.95), pane, frail=True)
    for x in (-width / 2, 0.0, width / 2):
        kit.box((x, -0.03), (0.06, 0.06, 0.95), 0.8, frame)
    for z in (0.76, 1.74):
        kit.box((0, -0.05), (width + 0.12, 0.1, 0.06), z, frame)


def _door(kit: Kit, width: float) -> None:
    leaf, frame, knob = kit.finish("lacquer"), kit.finish("lacquer"), kit.finish("steel")
    kit.box((0, -0.02), (0.74, 0.04, 1.78), 0.0, leaf, frail=True)
    for z in (0.2, 0.95):
        kit.box((0, -0.045), (0.5, 0.012, 0.6), z, leaf, frail=True)
    for x in (-0.4, 0.4):
        kit.box((x, -0.03), (0.07, 0.06, 1.82), 0.0, frame)
    kit.box((0, -0.03), (0.87, 0.06, 0.07), 1.8, frame)
    kit.box((0.3, -0.06), (0.1, 0.03, 0.03), 0.86, knob)


def _board(kit: Kit, width: float) -> None:
    frame, face = kit.finish("timber"), kit.finish("slate")
    kit.box((0, -0.02), (width, 0.04, 0.85), 0.85, frame)
    kit.sheet((-width / 2 + 0.05, -0.045, 0.9), (width - 0.1, 0, 0), (0, 0, 0.75), face)


def _rug(kit: Kit, width: float) -> None:
    kit.box((0, 0), (width, 0.62 * width, 0.012), 0.0, kit.finish("cloth"))


def _pallet(kit: Kit, width: float) -> None:
    board, deep = kit.finish("timber"), 0.7
    for y in (-0.3, 0.0, 0.3):
        kit.box((0, y), (width, 0.09, 0.08), 0.0, board)
    for k in range(6):
        kit.box(((k - 2.5) * width / 6, 0), (width / 6 - 0.03, deep, 0.03), 0.08, board)
    kit.top((0, 0), (width, deep), 0.11)


def _crate(kit: Kit, width: float) -> None:
    side, slat = kit.finish("timber"), kit.finish("timber")
    high = float(kit.rng.uniform(0.32, 0.5))
    kit.box((0, 0), (0.5, 0.42, high), 0.0, side)
    for z in (0.02, high - 0.1):
        kit.box((0, 0), (0.53, 0.45, 0.08), z, slat)
    kit.top((0, 0), (0.5, 0.42), high)


def _log(kit: Kit, width: float) -> None:
    kit.box((0, 0), (width, 0.24, 0.24), 0.0, kit.finish("bark"))
    kit.top((0, 0), (width, 0.22), 0.24)


def _kerb(kit: Kit, width: float) -> None:
    kit.box((0, -0.3), (14.0, 0.6, 0.03), 0.0, kit.finish("paving"))


def _tree(kit: Kit, width: float) -> None:
    bark, leaves = kit.finish("bark"), kit.finish("leaves")
    kit.box((0, -0.3), (0.18, 0.18, 1.9), 0.0, bark)
    rng = kit.rng
    for _ in range(14):
        # A crown of loose crossed sprays, the wider the lower.
        z = float(rng.uniform(1.2, 2.5))
        wide = float(rng.uniform(0.4, 0.8) * (1.4 - 0.35 * z / 2.5))
        angle = float(rng.uniform(0, np.pi))
        a = (wide * np.cos(angle), 0.5 * wide * np.sin(angle), float(rng.uniform(-0.2, 0.2)))
        x, y = float(rng.uniform(-0.3, 0.3)), float(rng.uniform(-0.45, -0.1))
        b = (float(rng.uniform(-0.15, 0.15)), 0.0, 0.45)
        kit.sheet((x - a[0] / 2, y - a[1] / 2, z), a, b, leaves, frail=True)


# name -> (build, least and most width, depth of floor taken, from and to which height it is in the
# way, where: "wall" or "floor")
_Prop = tuple[Callable[[Kit, float], None], float, float, float, float, float, str]
PROPS: Mapping[str, _Prop] = {
    "worktop": (_worktop, 1.3, 2.2, 0.54, 0.0, 0.8, "wall"),
    "bar": (_bar, 1.3, 2.0, 0.54, 0.0, 0.8, "wall"),
    "workbench": (_workbench, 1.2, 1.9, 0.54, 0.0, 0.8, "wall"),
    "steel_bench": (_steel_bench, 1.3, 2.1, 0.54, 0.0, 0.8, "wall"),
    "sideboard": (_sideboard, 0.9, 1.5, 0.4, 0.0, 0.7, "wall"),
    "rack": (_rack, 0.9, 1.4, 0.46, 0.0, 1.65, "wall"),
    "shelf": (_shelf, 0.8, 1.4, 0.26, 1.05, 1.9, "wall"),
    "cupboard": (_cupboard, 0.9, 1.5, 0.34, 1.4, 2.0, "wall"),
    "window": (_window, 0.8, 1.2, 0.12, 0.8, 2.0, "wall"),
    "house_window": (_house_window, 0.7, 1.1, 0.12, 0.7, 1.9, "wall"),
    "door": (_door, 0.9, 0.9, 0.12, 0.0, 1.9, "wall"),
    "board": (_board, 1.2, 1.8, 0.06, 0.8, 1.75, "wall"),
    "tree": (_tree, 0.9, 0.9, 0.45, 0.0, 2.4, "wall"),
    "kerb": (_kerb, 0.1, 0.1, 0.0, 0.0, 0.0, "wall"),
    "rug": (_rug, 1.2, 1.9, 0.0, 0.0, 0.0, "floor"),
    "pallet": (_pallet, 0.8, 1.0, 0.7, 0.0, 0.2, "floor"),
    "crate": (_crate, 0.5, 0.5, 0.45, 0.0, 0.6, "floor"),
    "log": (_log, 0.9, 1.4, 0.26, 0.0, 0.3, "floor"),
}


def furnish(
    kit: Kit, wanted: Mapping[str, float], width: float, depth: float, height: float
) -> None:
    """Puts up props, each with its chance, where they are not in each other's way.

    Args:
      wanted: prop -> chance.
      width, depth: of the place, metres; its middle is the origin. height: of its walls.
    """
    rng = kit.rng
    for name, chance in wanted.items():
        build, least, most, deep, low, high, where = PROPS[name]
        if rng.random() >= chance or (high > height and name != "tree"):
            continue
        for attempt in range(12):
            wide = float(rng.uniform(least, most))
            if where == "floor":
                x = float(rng.uniform(-0.3, 0.3) * width)
                y = float(rng.uniform(-0.2, 0.25) * depth)
                kit.place(0.0, x, y)
                middle = (0.0, 0.0)
            else:
                # The wall that one looks at, or one of those beside it.
                turn = (0.0, 0.0, 0.0, 90.0, -90.0)[int(rng.integers(5))] if attempt else 0.0
                if name in ("tree", "kerb", "house_window"):
                    turn = 0.0
                span = width if turn == 0.0 else depth
                if wide > span - 0.1:
                    continue
                along = float(rng.uniform(-0.5, 0.5) * (span - wide - 0.1))
                if turn == 0.0:
                    kit.place(turn, along, depth / 2)
                else:
                    kit.place(turn, -np.sign(turn) * width / 2, along)
                middle = (0.0, -deep / 2)
            taken = ((wide + 0.08, deep), low, high)
            if high > low and not kit.free(middle, *taken):
                continue
            build(kit, wide)
            if high > low:
                kit.block(middle, *taken)
            break
    kit.place(0.0, 0.0, 0.0)
