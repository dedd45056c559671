"""What `dataset.json` says of a data folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

from trace_jax.data.faults import Fault
from trace_jax.types import DatasetKind

INFO_FILE = "dataset.json"
KINDS: tuple[str, ...] = get_args(DatasetKind)


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """What `dataset.json` says.

    Attributes:
      kind: "objects", "scenes" or "crops".
      name: short name, used in default output folders and in results.
      version: version of the data, e.g. "1.0.0".
      taxonomy: name of the vocabulary its labels come from, or "" where it follows none.
      provenance: how it was made (command, seed, ...), any JSON object.
      pairs: whether every layout of scenes is there pristine and degraded. Released scenes are not
        paired; a folder of them says false, and a missing pair is a warning then (`warnings`), no
        fault. Scenes alone may say so: objects are always paired, crops never need to be.
      embeddings: feature caches of these images, each {"host", "tap", "cache": folder}, the folder
        relative to this one or absolute; features are named, never copied into rows. They are no
        part of the data and of its `Dataset.hash`, which the cache in turn names.
    """

    kind: str
    name: str
    version: str
    taxonomy: str
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pairs: bool = True
    embeddings: tuple[Mapping[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; what older folders lack is left out where it says nothing."""
        raw = dataclasses.asdict(self)
        if self.pairs:
            del raw["pairs"]
        if not self.embeddings:
            del raw["embeddings"]
        return raw


def faults(raw: Any) -> list[Fault]:
    """What is wrong with the file's JSON value; each fault is of kind "bad-info"."""
    return [Fault("bad-info", f"{INFO_FILE}: {text}") for text in _texts(raw)]


def _texts(raw: Any) -> list[str]:
    if not isinstance(raw, dict):
        return [f"must be a JSON object, is {type(raw).__name__}"]
    found = []
    known = {field.name for field in dataclasses.fields(DatasetInfo)}
    for name in ("kind", "name", "version", "taxonomy"):
        if name not in raw:
            found.append(f"field {name!r} is missing")
        elif not isinstance(raw[name], str):
            found.append(f"{name!r} must be text, is {raw[name]!r}")
    found += [f"unknown field {name!r}" for name in sorted(set(raw) - known)]
    if not isinstance(raw.get("provenance", {}), Mapping):
        found.append(f"'provenance' must be an object, is {raw['provenance']!r}")
    if not isinstance(raw.get("pairs", True), bool):
        found.append(f"'pairs' must be true or false, is {raw['pairs']!r}")
    caches = raw.get("embeddings", [])
    if not isinstance(caches, list | tuple) or not all(
        isinstance(c, Mapping)
        and set(c) == {"host", "tap", "cache"}
        and all(isinstance(text, str) and text for text in c.values())
        for c in caches
    ):
        found.append(
            f"'embeddings' must list objects with host, tap and cache, is {raw['embeddings']!r}"
        )
    kind = raw.get("kind")
    if raw.get("pairs", True) is False and kind in ("objects", "crops"):
        found.append("'pairs' may be false for kind 'scenes' alone")
    if isinstance(kind, str) and kind not in KINDS:
        found.append(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
    title = raw.get("name")
    if isinstance(title, str) and (not title.strip() or "/" in title or title in (".", "..")):
        found.append(f"'name' {title!r} cannot name a folder")
    return found
