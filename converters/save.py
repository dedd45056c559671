"""Hosts to folders in Hugging Face layout."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from converters import folder
from converters.leaves import flatten
from converters.load import FAMILIES
from converters.rules import Piece
from converters.tensors import INDEX, SINGLE, dtype_name, write
from trace_jax.errors import UserError
from trace_jax.files import require_space, write_bytes, write_json
from trace_jax.hosts import Host


def save_host(host: Host, to: str | os.PathLike[str]) -> str:
    """Writes config.json, model.safetensors, preprocessor_config.json and the tokenizer's files.

    The tensors are bit-equal to the host's parameters and have their dtype: a host loaded in its
    files' dtype gives those files' tensors back. transformers opens the folder with
    `CLIPModel` / `SiglipModel.from_pretrained`, no key missing or unexpected.

    Args:
      host: any host; its parameters may be sharded.
      to: folder, made if need be. Each file is written atomically, the weights last.

    Returns:
      The weights hash that loading the folder will find.

    Raises:
      UserError: the disk is full, the folder cannot be written, or it holds sharded weights, whose
        index would hide the new file.
    """
    target = Path(to)
    if (target / INDEX).exists():
        raise UserError(f"{target}: holds sharded weights ({INDEX}). Choose another folder.")
    leaves = flatten(host.params)
    rules = FAMILIES[host.spec.family](host.model).rules
    sources: dict[str, dict[int, tuple[str, Piece]]] = {}
    for path, leaf in leaves.items():
        for piece in rules[path].pieces(leaf.shape):
            sources.setdefault(piece.key, {})[piece.part] = (path, piece)
    dtype = dtype_name(jax.tree.leaves(host.params)[0].dtype)
    shapes = {}
    for key in sorted(sources):
        path, piece = sources[key][0]
        shapes[key] = (dtype, piece.source_shape(leaves[path].shape))
    size = sum(leaf.nbytes for leaf in leaves.values())
    require_space(target, size, f"writing host {host.spec.name}")
    target.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in host.config.items() if key != "torch_dtype"}
    write_json(target / folder.CONFIG, {**config, "dtype": host.spec.dtype})
    write_json(target / folder.PREPROCESSOR, host.preprocessor.hub_config)
    for file in host.tokenizer.files:
        if file.resolve() != (target / file.name).resolve():
            write_bytes(target / file.name, file.read_bytes())

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        for key in shapes:
            parts = [sources[key][part] for part in range(len(sources[key]))]
            values = [
                piece.transform.inverse(np.asarray(leaves[path][piece.into]))
                for path, piece in parts
            ]
            whole = values[0] if len(values) == 1 else np.concatenate(values)
            yield key, whole

    return write(target / SINGLE, shapes, tensors())
