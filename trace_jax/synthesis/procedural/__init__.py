"""The procedural engine: part-based objects, a software renderer, cumulative fire damage."""

import importlib.util

from trace_jax.errors import UserError

if importlib.util.find_spec("numba") is None:
    raise UserError(
        "the procedural engine needs numba, which is not installed. "
        "Run bin/setup, or install the package with its extra: trace-jax[synthesis]."
    )

from trace_jax.synthesis.procedural.world import (  # noqa: E402
    WORLD,
    Identity,
    Picture,
    Request,
    identity_name,
    make_identity,
    pictures,
    type_of,
)

__all__ = [
    "WORLD",
    "Identity",
    "Picture",
    "Request",
    "identity_name",
    "make_identity",
    "pictures",
    "type_of",
]
