"""The procedural engine: part-based objects, a software renderer, cumulative fire damage."""

from trace_jax.synthesis.procedural.world import (
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
