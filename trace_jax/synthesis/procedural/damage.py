"""Fire: cumulative, uneven, material-aware damage of one object at the levels L0 to L4.

One set of noise fields an object serves all levels, and every threshold moves one way, so damage
only accumulates. A level is fitted to Table 6 (paper A.2) for each object: severity `s` (how hot)
to structural integrity and to a share of lost surface, then the amplitude of bending to
deformation, then the thresholds of failure and soot as exact quantiles. The four measured numbers
follow taxonomy/severity.toml; "surface area" is that of the pristine mesh, carried by its vertices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from numba import njit

from trace_jax import taxonomy
from trace_jax.synthesis.procedural import ash, behaviour
from trace_jax.synthesis.procedural.camera import Camera
from trace_jax.synthesis.procedural.joints import find_joints, glue
from trace_jax.synthesis.procedural.mesh import Mesh, vertex_areas, vertex_normals
from trace_jax.synthesis.procedural.noise import fractal_at
from trace_jax.synthesis.procedural.raster import cut_margin
from trace_jax.synthesis.procedural.render import Body
from trace_jax.synthesis.procedural.settle import Settled, settle
from trace_jax.synthesis.procedural.undamaged import SHARD_SCALE

# Displacement at which a point counts as wholly deformed, in diagonals (see severity.toml).
DEFORMED_AT = 0.12
# Share of surface lost by level that the fit aims at beside Table 6, and how hot a level usually
# is. Ours: enough survives at L4 for an object to be known by its remains.
_LOST = (0.01, 0.06, 0.17, 0.34, 0.52)
_LOST_SLACK = (0.03, 0.07, 0.12, 0.15, 0.15)
_HEAT = (0.30, 0.40, 0.53, 0.68, 0.82)
OPACITY = (0.62, 0.73, 0.81, 0.87, 0.90)
_LEVELS = ("L0", "L1", "L2", "L3", "L4")
_STEP = 0.03  # least rise of heat from level to level
_MOST_BENDING = 3.4


@dataclasses.dataclass(frozen=True)
class State:
    """The object at one level: what is drawn, and the measured metrics."""

    level: str
    body: Body
    metrics: dict[str, float]


@njit(cache=True)
def _cuts(
    kinds: np.ndarray, margin: np.ndarray, rest: np.ndarray, shard_scale: float, seed: int
) -> np.ndarray:
    out = np.empty(margin.shape[0], np.float64)
    for v in range(margin.shape[0]):
        if kinds[v] == 0:
            out[v] = margin[v]
        else:
            out[v] = cut_margin(
                kinds[v], margin[v], rest[v, 0], rest[v, 1], rest[v, 2], shard_scale, seed
            )
    return out


@njit(cache=True)
def _bend(
    rest: np.ndarray,
    normals: np.ndarray,
    middles: np.ndarray,
    heat: np.ndarray,
    rates: np.ndarray,
    noise: np.ndarray,
    amount: float,
    tall: float,
    diagonal: float,
    out: np.ndarray,
) -> None:
    """Bent positions of every vertex.

    Args:
      middles: [V, 3] middle of each vertex's piece.
      rates: [V, 7] weakens from, to, collapse, warp, shrink, melt, blister.
      noise: [V, 5] three of warp, one of collapse, one of blisters.
    """
    lying = max(1.0 - tall / (0.25 * diagonal), 0.0)
    for v in range(rest.shape[0]):
        w0, w1 = rates[v, 0] - 0.06, rates[v, 1]
        t = min(max((heat[v] - w0) / (w1 - w0), 0.0), 1.0)
        soft = amount * t * t * (3.0 - 2.0 * t)
        x, y, z = rest[v, 0], rest[v, 1], rest[v, 2]
        shrink = min(0.38 * soft * rates[v, 4], 0.6)
        x += (middles[v, 0] - x) * shrink
        y += (middles[v, 1] - y) * shrink
        z += (middles[v, 2] - z) * shrink * 0.6
        # What stands is held at its foot; what lies flat moves with its whole thickness, upwards.
        lift = min(z / (0.3 * tall) + 0.25, 1.0)
        lift += (1.0 - lift) * lying
        bend = soft * rates[v, 3] * 0.15 * diagonal * lift
        x += bend * noise[v, 0]
        y += bend * noise[v, 1]
        z += 0.5 * bend * (max(noise[v, 2], 0.0) * lying + noise[v, 2] * (1.0 - lying))
        bump = soft * rates[v, 6] * 0.016 * diagonal * noise[v, 4]
        x += bump * normals[v, 0]
        y += bump * normals[v, 1]
        z += bump * normals[v, 2]
        sink = min(0.62 * soft * rates[v, 2] * (0.7 + 0.5 * noise[v, 3]), 0.86)
        sink = max(sink, 0.0)
        low = max(1.0 - z / max(tall, 1e-6), 0.0)
        spread = 1.0 + 0.45 * sink * rates[v, 5] * low * low
        out[v, 0] = x * spread
        out[v, 1] = y * spread
        out[v, 2] = max(z * (1.0 - sink), 0.0)


class Fire:
    """One fire of one object; `states` gives its levels.

    Args:
      mesh: the pristine object.
      rng: draws the fire.
    """

    def __init__(self, mesh: Mesh, rng: np.random.Generator) -> None:
        self._mesh = mesh
        self._ladder = taxonomy.load().severity
        self._seed = int(rng.integers(1, 1 << 20))
        points = mesh.points.astype(np.float64)
        area = vertex_areas(mesh.points, mesh.faces)
        self._area = area / area.sum()
        self._normals = vertex_normals(mesh.points, mesh.faces, mesh.weld)
        self._joints = find_joints(mesh, self._area)
        self._tall = float(points[:, 2].max())
        q = ((points - points.mean(0)) / mesh.diagonal).astype(np.float32)
        low = fractal_at(q, 2.3, self._seed, 2)
        middle = fractal_at(q, 6.5, self._seed + 1000, 2)
        azimuth = rng.uniform(0, 2 * np.pi)
        side = 2 * (q[:, 0] * np.cos(azimuth) + q[:, 1] * np.sin(azimuth))
        height = 2 * points[:, 2] / max(self._tall, 1e-6) - 1
        pieces = rng.normal(0, 0.035, int(mesh.piece.max()) + 1)
        self._uneven = (
            0.21 * low + 0.06 * middle + 0.11 * side + 0.06 * height + pieces[mesh.piece]
        ).astype(np.float64)
        self._uneven -= float((self._uneven * self._area).sum())
        table = behaviour.load()
        kind = mesh.materials
        self._kind, self._table = kind, table
        self._cut = table.cut[kind]
        self._rates = np.column_stack(
            [table.weakens[kind], table.collapse[kind], table.warp[kind], table.shrink[kind],
             table.melt[kind], table.blister[kind]]
        )  # fmt: skip
        # Heat at which a vertex goes, shard or rag included.
        base = table.vanishes[kind] - self._uneven
        self._life = _cuts(self._cut, base, mesh.points.astype(np.float64), SHARD_SCALE, self._seed)
        self._noise = np.column_stack(
            [fractal_at(q, 2.6, self._seed + 2000 + 37 * k, 2) for k in range(4)]
            + [fractal_at(q, 15.0, self._seed + 2500, 1)]
        ).astype(np.float64)
        middles = np.zeros((len(pieces), 3))
        counts = np.bincount(mesh.piece)
        for axis in range(3):
            middles[:, axis] = np.bincount(mesh.piece, points[:, axis]) / counts
        self._middles = middles[mesh.piece]
        up = self._normals[:, 2]
        soot = fractal_at(q, 3.1, self._seed + 3000, 2) + 0.45 * fractal_at(
            q, 9.0, self._seed + 3500, 2
        )
        self._soot = soot + 1.1 * side + 0.35 * height + 0.25 * up
        # Earlier failing materials are further gone at the same heat.
        self._fail = self._uneven + 0.06 * fractal_at(q, 9.0, self._seed + 4000, 2)
        self._fail = self._fail + 0.5 * (0.8 - np.minimum(table.vanishes[kind], 1.1))
        self._aim = {
            metric: np.array([np.mean(level.ranges[metric]) for level in self._ladder])
            + rng.uniform(-0.02, 0.02)
            for metric in taxonomy.METRICS
        }
        self._aim["structural_integrity"][4] = 0.075 + rng.uniform(-0.01, 0.01)
        # One share of failure fits L0, L1 and L2 of Table 6 alike, so failed surface need not heal.
        self._aim["surface_failure"][:3] = np.minimum(self._aim["surface_failure"][:3], 0.37)
        self._aim["surface_failure"][:2] = np.maximum(self._aim["surface_failure"][:2], 0.345)

    def states(self, levels: Sequence[str], camera: Camera) -> Iterator[State]:
        """The levels asked for, mildest first; milder ones are always computed on the way.

        Args:
          levels: any of L0..L4. camera: the shared view; debris stays inside its picture.
        """
        heat, amount = -1.0, 0.0
        fail_at, soot_at = np.inf, np.inf
        for number, level in enumerate(_LEVELS):
            heat, amount, settled = self._fit(number, heat + _STEP, amount, camera)
            local = heat + self._uneven
            kept = settled.alive
            weight = self._area * kept
            fail_at = min(
                fail_at, _quantile(self._fail, weight, self._aim["surface_failure"][number])
            )
            soot_at = min(
                soot_at, _quantile(self._soot, weight, self._aim["soot_coverage"][number])
            )
            if level in levels:
                metrics = {
                    "soot_coverage": _share(self._soot > soot_at, weight),
                    "surface_failure": _share(self._fail > fail_at, weight),
                    "deformation": self._deformation(settled.present, kept),
                    "structural_integrity": float((weight * self._strength(local)).sum()),
                }
                metrics = {name: round(float(value), 4) for name, value in metrics.items()}
                body = self._body(number, local, settled, fail_at, soot_at, camera)
                yield State(level, body, metrics)
            if level == levels[-1]:
                return

    def _strength(self, local: np.ndarray) -> np.ndarray:
        low, high = self._rates[:, 0], self._rates[:, 1]
        t = np.clip((local - low) / (high - low), 0, 1)
        return 1 - t * t * (3 - 2 * t)

    def _fit(
        self, number: int, least_heat: float, least_bending: float, camera: Camera
    ) -> tuple[float, float, Settled]:
        """Heat, bending and the settled scene of a level.

        The best heat comes first; where falling parts then leave the range of deformation, the
        next ones whose integrity is still in range are tried.
        """
        low, high = self._ladder[number].ranges["deformation"]
        best: tuple[float, float, float, Settled] | None = None
        for heat in self._heats(number, least_heat):
            local = heat + self._uneven
            amount, settled = self._fit_bending(
                number, local, self._life > heat, least_bending, camera
            )
            reached = self._deformation(settled.present, settled.alive)
            miss = max(low - reached, reached - high, 0.0)
            if best is None or miss < best[0] - 1e-9:
                best = (miss, heat, amount, settled)
            if miss == 0.0:
                break
        assert best is not None
        return best[1:]

    def _heats(self, number: int, least: float) -> list[float]:
        """Heats to try, best first: nearest to the level's integrity and loss."""
        grid = np.maximum(np.linspace(0.02, 1.25, 64), least)
        alive = self._life[None] > grid[:, None]
        low, high = self._rates[:, 0], self._rates[:, 1]
        t = np.clip((grid[:, None] + self._uneven[None] - low) / (high - low), 0, 1)
        sound = (1 - t * t * (3 - 2 * t)) * alive @ self._area
        lost = 1 - alive @ self._area
        bottom, top = self._ladder[number].ranges["structural_integrity"]
        aim = self._aim["structural_integrity"][number]
        cost = ((sound - aim) / (0.3 * (top - bottom))) ** 2
        # Metal loses no surface however hot: loss may only bend the choice, not rule it.
        cost += np.minimum(((lost - _LOST[number]) / _LOST_SLACK[number]) ** 2, 2.0)
        cost += 0.25 * ((grid - _HEAT[number]) / 0.15) ** 2
        ranked = np.argsort(cost, kind="stable")
        inside = (sound > bottom) & (sound < top)
        others = [k for k in ranked[1:] if inside[k] and grid[k] != grid[ranked[0]]]
        return [float(grid[ranked[0]]), *(float(grid[k]) for k in others[1:8:2])]

    def _bent(self, local: np.ndarray, amount: float) -> np.ndarray:
        out = np.empty((len(local), 3))
        _bend(
            self._mesh.points.astype(np.float64), self._normals, self._middles, local,
            self._rates, self._noise, amount, self._tall, self._mesh.diagonal, out,
        )  # fmt: skip
        j = self._joints
        rest = self._mesh.points.astype(np.float64)
        glue(rest, out, j.roots, j.first, j.ties, j.skin, j.members, j.member_first)
        return out

    def _deformation(self, present: np.ndarray, kept: np.ndarray) -> float:
        moved = np.linalg.norm(present - self._mesh.points, axis=1)
        share = np.minimum(moved / (DEFORMED_AT * self._mesh.diagonal), 1.0)
        return float((self._area * np.where(kept, share, 1.0)).sum())

    def _fit_bending(
        self, number: int, local: np.ndarray, alive: np.ndarray, least: float, camera: Camera
    ) -> tuple[float, Settled]:
        """Bends to the level's deformation; less where falling has moved much already."""
        aim = self._aim["deformation"][number]
        top = self._ladder[number].ranges["deformation"][1]
        least = min(least, _MOST_BENDING)
        for attempt in range(3):
            low, high = least, _MOST_BENDING
            for _ in range(9):
                amount = (low + high) / 2
                if self._deformation(self._bent(local, amount), alive) < aim:
                    low = amount
                else:
                    high = amount
            settled = settle(
                self._mesh, self._joints, self._bent(local, amount), alive, self._area, camera,
                self._noise[:, 3], number > 0,
            )  # fmt: skip
            reached = self._deformation(settled.present, settled.alive)
            if reached <= top or attempt == 2 or amount <= least + 0.02:
                break
            aim = max(aim - 1.1 * (reached - top) - 0.02, 0.0)
        return amount, settled

    def _body(
        self,
        number: int,
        local: np.ndarray,
        settled: Settled,
        fail_at: float,
        soot_at: float,
        camera: Camera,
    ) -> Body:
        mesh, source = self._mesh, settled.source
        margin = self._table.vanishes[self._kind] - local
        state = np.column_stack([local, self._fail - fail_at, self._soot - soot_at, margin])
        state = state[source].astype(np.float32)
        state[:, 0] = np.maximum(state[:, 0], 1e-3)
        faces = settled.faces
        body = Body(
            points=settled.points.astype(np.float32),
            rest=mesh.points[source],
            uv=mesh.uv[source],
            st=mesh.st[source],
            faces=faces,
            weld=_reweld(mesh.weld, source),
            finish=mesh.finish[source],
            table=mesh.table,
            kinds=self._cut[source[faces[:, 0]]],
            keep=np.ones(len(faces), bool),
            state=state,
            opacity=OPACITY[number],
            shard_scale=SHARD_SCALE,
            seed=self._seed,
        )
        lost = self._area * ~settled.alive
        return ash.add(body, mesh, lost, self._kind, camera, self._seed)


def _quantile(score: np.ndarray, weight: np.ndarray, share: float) -> float:
    """The threshold above which `share` of the weight lies."""
    order = np.argsort(-score, kind="stable")
    total = np.cumsum(weight[order])
    position = int(np.searchsorted(total, share * total[-1]))
    return float(score[order[min(position, len(order) - 1)]])


def _share(mask: np.ndarray, weight: np.ndarray) -> float:
    return float((mask * weight).sum() / max(weight.sum(), 1e-12))


def _reweld(weld: np.ndarray, source: np.ndarray) -> np.ndarray:
    """Weld numbers after copying: copies of the main body's vertices get numbers of their own."""
    count = len(weld)
    out = np.empty(len(source), np.int64)
    out[:count] = weld[source[:count]]
    out[count:] = np.arange(count, len(source))
    return out
