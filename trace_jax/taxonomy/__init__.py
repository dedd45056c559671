"""The vocabulary: object types, materials, functions, COCO map, scene types, identities, severity.

Data files beside this module name their sources. `load()` reads and checks them once.
"""

from trace_jax.taxonomy.reading import load, read
from trace_jax.taxonomy.vocabulary import (
    GROUPS,
    METRICS,
    IdentityRow,
    ObjectType,
    SceneType,
    SeverityLevel,
    Taxonomy,
)

__all__ = [
    "GROUPS", "METRICS", "IdentityRow", "ObjectType", "SceneType", "SeverityLevel", "Taxonomy",
    "load", "read",
]  # fmt: skip
