"""A host's parameters by path: "vision/blocks/mlp/fc1/kernel"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts to leaves by path."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {"/".join(entry.key for entry in path): leaf for path, leaf in flat}


def unflatten(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """And back."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *parents, last = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree
