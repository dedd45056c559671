"""Boards and sheets that a place and its props are built of, and what can stand on them."""

from __future__ import annotations

import dataclasses

import numpy as np

from trace_jax.synthesis.procedural import behaviour
from trace_jax.synthesis.procedural import patterns as pt
from trace_jax.synthesis.procedural.raster import SOLID
from trace_jax.synthesis.procedural.scenes.places import surfaces
from trace_jax.synthesis.procedural.shapes import NO_LABEL

_CELL = 0.22  # metres between vertices, which carry the fire's marks
_NEVER = 9.0
SKY = "sky"


@dataclasses.dataclass(frozen=True)
class Top:
    """A level face that things may stand on: its middle and half sides, and its height, metres."""

    x: float
    y: float
    half_x: float
    half_y: float
    height: float


@dataclasses.dataclass(frozen=True)
class Block:
    """Floor or wall that a prop takes up: its middle and half sides, from `low` to `high`."""

    x: float
    y: float
    half_x: float
    half_y: float
    low: float
    high: float


class Kit:
    """Gathers pieces. `turn` and `move` say where the next ones go: props are built as if against
    a wall at y = 0 with the room at y < 0.

    Args:
      rng: draws finishes and sizes.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.tops: list[Top] = []
        self.blocks: list[Block] = []
        self._rows: list[np.ndarray] = []
        self._stretch: list[tuple[float, float]] = []
        self._pieces: list[tuple[np.ndarray, ...]] = []
        self._turn, self._move = np.eye(3), np.zeros(3)

    def place(self, turn: float, x: float, y: float) -> None:
        """Props that follow stand at (x, y), turned by 0, 90 or -90 degrees."""
        c, s = np.cos(np.radians(turn)), np.sin(np.radians(turn))
        self._turn = np.round(np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]))
        self._move = np.array([x, y, 0.0])

    def finish(self, name: str) -> int:
        """Draws a finish of the surface of that name; its number for `sheet` and `box`."""
        if name == SKY:
            row = surfaces()["plaster"].finish(self.rng)
            pale = np.array([0.62, 0.70, 0.78]) * self.rng.uniform(0.8, 1.05)
            row[pt.C1 : pt.C1 + 3] = pale
            row[pt.C2 : pt.C2 + 3] = pale * np.array([0.45, 0.62, 0.92])
            row[pt.PATTERN], row[pt.GLOSS] = pt.NUMBER["gradient"], 0.0
            self._stretch.append((1.0, 1.0))
        else:
            row = surfaces()[name].finish(self.rng)
            row[pt.ANGLE] = 0.0
            self._stretch.append(surfaces()[name].stretch)
        self._rows.append(row)
        return len(self._rows) - 1

    def sheet(
        self,
        corner: tuple[float, ...],
        along: tuple[float, ...],
        up: tuple[float, ...],
        finish: int,
        *,
        burns: bool = True,
        frail: bool = False,
    ) -> None:
        """A flat grid.

        Args:
          corner: one corner; along, up: its two sides.
          finish: from `finish`.
          burns: takes soot and heat (the sky does not).
          frail: loses pieces where its material would: panes, curtains, boards.
        """
        a, b = np.array(along, float), np.array(up, float)
        wide, tall = float(np.linalg.norm(a)), float(np.linalg.norm(b))
        columns = int(np.clip(np.ceil(wide / _CELL), 1, 60))
        rows = int(np.clip(np.ceil(tall / _CELL), 1, 60))
        s, t = np.meshgrid(np.linspace(0, 1, columns + 1), np.linspace(0, 1, rows + 1))
        points = np.array(corner, float) + s.reshape(-1, 1) * a + t.reshape(-1, 1) * b
        points = points @ self._turn.T + self._move
        k, m = self._stretch[finish]
        uv = np.column_stack([s.ravel() * wide * k, t.ravel() * tall * m])
        st = np.column_stack([s.ravel(), t.ravel()])
        index = np.arange((rows + 1) * (columns + 1)).reshape(rows + 1, columns + 1)
        p, q = index[:-1, :-1].ravel(), index[:-1, 1:].ravel()
        u, v = index[1:, :-1].ravel(), index[1:, 1:].ravel()
        faces = np.concatenate([np.stack([p, q, v], 1), np.stack([p, v, u], 1)])
        count = len(points)
        kind = int(self._rows[finish][pt.MATERIAL])
        table = behaviour.load()
        cut = table.cut[kind] if frail else SOLID
        vanishes = table.vanishes[kind] if frail else _NEVER
        label = st if self._rows[finish][pt.PATTERN] == pt.NUMBER["gradient"] else NO_LABEL
        self._pieces.append(
            (
                points,
                uv,
                np.broadcast_to(label, (count, 2)),
                faces,
                np.full(count, finish),
                np.full(count, vanishes),
                np.full(len(faces), cut),
                np.full(count, burns),
            )
        )

    def box(
        self,
        middle: tuple[float, float],
        size: tuple[float, float, float],
        low: float,
        finish: int,
        *,
        frail: bool = False,
    ) -> None:
        """A box with its middle above (x, y), from the height `low`; no underside on the floor."""
        (x, y), (w, d, h) = middle, size
        x0, y0, z1 = x - w / 2, y - d / 2, low + h
        faces = [
            ((x0, y0, low), (w, 0, 0), (0, 0, h)),
            ((x0 + w, y0 + d, low), (-w, 0, 0), (0, 0, h)),
            ((x0, y0 + d, low), (0, -d, 0), (0, 0, h)),
            ((x0 + w, y0, low), (0, d, 0), (0, 0, h)),
            ((x0, y0, z1), (w, 0, 0), (0, d, 0)),
        ]
        if low > 0.02:
            faces.append(((x0, y0 + d, low), (w, 0, 0), (0, -d, 0)))
        for corner, along, up in faces:
            self.sheet(corner, along, up, finish, frail=frail)

    def top(self, middle: tuple[float, float], size: tuple[float, float], height: float) -> None:
        """Things may stand here."""
        x, y, hx, hy = self._flat(middle, size)
        self.tops.append(Top(x, y, hx, hy, height))

    def block(
        self, middle: tuple[float, float], size: tuple[float, float], low: float, high: float
    ) -> None:
        """Nothing else may stand or hang here."""
        x, y, hx, hy = self._flat(middle, size)
        self.blocks.append(Block(x, y, hx, hy, low, high))

    def free(
        self, middle: tuple[float, float], size: tuple[float, float], low: float, high: float
    ) -> bool:
        """Whether no block lies there."""
        x, y, hx, hy = self._flat(middle, size)
        return not any(
            abs(x - b.x) < hx + b.half_x
            and abs(y - b.y) < hy + b.half_y
            and low < b.high
            and b.low < high
            for b in self.blocks
        )

    def _flat(
        self, middle: tuple[float, float], size: tuple[float, float]
    ) -> tuple[float, float, float, float]:
        at = self._turn @ np.array([*middle, 0.0]) + self._move
        half = np.abs(self._turn[:2, :2] @ np.array(size)) / 2
        return float(at[0]), float(at[1]), float(half[0]), float(half[1])

    def gathered(self) -> dict[str, np.ndarray]:
        """Everything as the arrays of a Room."""
        first = np.cumsum([0, *(len(piece[0]) for piece in self._pieces)])
        columns = list(zip(*self._pieces, strict=True))
        return {
            "points": np.concatenate(columns[0]),
            "uv": np.concatenate(columns[1]),
            "st": np.concatenate(columns[2]),
            "faces": np.concatenate([f + n for f, n in zip(columns[3], first, strict=False)]),
            "finish": np.concatenate(columns[4]).astype(np.int32),
            "vanishes": np.concatenate(columns[5]),
            "cut": np.concatenate(columns[6]),
            "burns": np.concatenate(columns[7]),
            "table": np.stack(self._rows),
        }
