"""The pristine body of a mesh."""

from __future__ import annotations

import numpy as np

from trace_jax.synthesis.procedural.mesh import Mesh
from trace_jax.synthesis.procedural.raster import SOLID
from trace_jax.synthesis.procedural.render import Body

# Scores of a surface that no fire has touched.
_COLD, _CLEAN, _WHOLE = 0.0, -9.0, 9.0
# Voronoi cells a unit, for shards and cracks.
SHARD_SCALE = 6.5


def undamaged(mesh: Mesh, seed: int) -> Body:
    """`mesh` as it was made; `seed` only numbers the noise of a later fire."""
    state = np.tile(np.array([_COLD, _CLEAN, _CLEAN, _WHOLE], np.float32), (len(mesh.points), 1))
    return Body(
        points=mesh.points,
        rest=mesh.points,
        uv=mesh.uv,
        st=mesh.st,
        faces=mesh.faces,
        weld=mesh.weld,
        finish=mesh.finish,
        table=mesh.table,
        kinds=np.full(len(mesh.faces), SOLID, np.int64),
        keep=np.ones(len(mesh.faces), bool),
        state=state,
        opacity=0.0,
        shard_scale=SHARD_SCALE,
        seed=seed,
    )
