"""Where arrays lie: the (data, model) mesh, and one documented rule for every leaf.

The rule. A leaf with fewer than `min_shard_size` elements is replicated: moving it costs more
than keeping it. Of any other leaf, the largest axis that the size of the mesh's "data" axis
divides is cut over "data" (the last such axis where several are equally large), and if "model" is
larger than 1, the largest remaining axis that it divides is cut over "model". A leaf without such
an axis is replicated. Optimizer moments have their parameter's shape, hence its placement: with
more than one device, parameters and optimizer are fully sharded and XLA gathers a layer's weights
where it needs them. Batches are cut over "data" along their leading axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from trace_jax.errors import UserError

DATA, MODEL = "data", "model"


def make_mesh(model: int = 1, devices: int | None = None) -> Mesh:
    """The (data, model) mesh over all devices of all processes, or the first `devices`.

    Axis types are `Auto`, spelled out: under `make_mesh`'s own default (Explicit) embedding
    look-ups and the concatenation of a class token raise.

    Raises:
      UserError: `model` does not divide the number of devices.
    """
    chosen = jax.devices()[:devices]
    if model < 1 or len(chosen) % model:
        raise UserError(
            f"mesh: {len(chosen)} devices cannot be cut into a model axis of {model}. "
            "Choose a divisor with --config.loop.model_axis."
        )
    shape = (len(chosen) // model, model)
    return jax.make_mesh(shape, (DATA, MODEL), axis_types=(AxisType.Auto,) * 2, devices=chosen)


def leaf_spec(shape: tuple[int, ...], mesh: Mesh, min_shard_size: int) -> P:
    """The module's rule for one leaf."""
    names: list[str | None] = [None] * len(shape)
    if int(np.prod(shape)) < min_shard_size:
        return P()
    for axis_name in (DATA, MODEL):
        ways = mesh.shape[axis_name]
        fits = [i for i, n in enumerate(shape) if names[i] is None and n % ways == 0]
        if ways > 1 and fits:
            names[max(fits, key=lambda i: (shape[i], i))] = axis_name
    while names and names[-1] is None:
        names.pop()
    return P(*names)


def tree_shardings(tree: Any, mesh: Mesh, min_shard_size: int) -> Any:
    """A tree of NamedSharding for a tree of arrays or ShapeDtypeStructs."""
    return jax.tree.map(
        lambda leaf: NamedSharding(mesh, leaf_spec(leaf.shape, mesh, min_shard_size)), tree
    )


def replicated(mesh: Mesh) -> NamedSharding:
    """The placement that keeps a whole copy on every device."""
    return NamedSharding(mesh, P())


def batch_shardings(batch: Mapping[str, Any], mesh: Mesh) -> dict[str, NamedSharding]:
    """Leading axis over "data"; scalars replicated.

    Raises:
      UserError: the leading axis of an array is not divisible by the data axis.
    """
    ways = mesh.shape[DATA]
    shardings = {}
    for name, array in batch.items():
        shape = np.shape(array)
        if shape and shape[0] % ways:
            raise UserError(
                f"batch array {name!r} has {shape[0]} rows, which the {ways} devices of the data "
                "axis do not divide. Choose another --config.data.batch_size."
            )
        shardings[name] = NamedSharding(mesh, P(DATA) if shape else P())
    return shardings


def place(tree: Any, shardings: Any) -> Any:
    """Puts host arrays on their devices; every process holds the same global arrays."""

    def put(leaf: Any, sharding: NamedSharding) -> jax.Array:
        if isinstance(leaf, jax.Array) and leaf.sharding == sharding:
            return leaf
        if jax.process_count() == 1:
            return jax.device_put(leaf, sharding)
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(put, tree, shardings)


def to_host(tree: Any, mesh: Mesh) -> Any:
    """Whole numpy copies of sharded arrays, on every process (a collective call)."""
    whole = jax.jit(lambda x: x, out_shardings=replicated(mesh))(tree)
    return jax.tree.map(np.asarray, jax.device_get(whole))
