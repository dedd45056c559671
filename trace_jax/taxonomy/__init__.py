"""The vocabulary: materials, functions, object types, severity ladder."""

from trace_jax.taxonomy.vocabulary import (
    GROUPS,
    METRICS,
    ObjectType,
    SeverityLevel,
    Taxonomy,
    load,
    read,
)

__all__ = ["GROUPS", "METRICS", "ObjectType", "SeverityLevel", "Taxonomy", "load", "read"]
