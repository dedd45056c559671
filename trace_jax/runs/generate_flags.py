"""Flags of bin/generate that an image model's pipeline adds, and the command a run records."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from trace_jax.synthesis.settings import Settings

# Flags that the engines share; bin/generate defines them itself.
SHARED = ("kind", "name", "identities", "scenes", "width", "height", "seed")
# What a data set does not depend on, or what lies elsewhere on another machine.
_UNSAID = {
    "base_url", "budget", "concurrency", "max_requests", "prices", "references", "templates",
    "timeout", "attempts", "backoff", "backoff_max",
}  # fmt: skip
_OBJECTS = ("engine", "subset", "split_sizes", "size", "views", "draws", "format", "quality")


def define() -> None:
    """Defines a flag for every setting of the pipeline that is not shared."""
    makers = {
        bool: flags.DEFINE_bool, int: flags.DEFINE_integer, float: flags.DEFINE_float,
        str: flags.DEFINE_string,
    }  # fmt: skip
    for field in dataclasses.fields(Settings):
        if field.name not in SHARED:
            make = makers[type(field.default)]
            make(field.name, field.default, f"gemini: {field.metadata['help']}")


def settings() -> Settings:
    """The pipeline's settings as the flags say; a data set without a name is called by its kind."""
    values = {field.name: flags.FLAGS[field.name].value for field in dataclasses.fields(Settings)}
    return Settings(**values | {"name": values["name"] or values["kind"]})


def command(root: Path) -> str:
    """The command that makes the same data set again, from the repository.

    It leaves out this machine's folders and whatever the result does not depend on.
    """
    values = flags.FLAGS
    said = []
    if values["config"].present:
        page = Path(config_flags.get_config_filename(values["config"])).resolve()
        inside = page.relative_to(root).as_posix() if page.is_relative_to(root) else page.name
        said.append(f"--config={inside}")
    own = {field.name for field in dataclasses.fields(Settings)} - _UNSAID
    for name in values:
        if name.startswith("config.") or name in own or name in _OBJECTS:
            if values[name].present:
                said.append(values[name].serialize())
    return shlex.join(["bin/generate", *said])
