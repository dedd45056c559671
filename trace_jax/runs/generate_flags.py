"""Flags of bin/generate, and what they make: configs, and the command that a data set records."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags
from ml_collections import config_flags

from trace_jax.errors import UserError
from trace_jax.synthesis.settings import Settings

if TYPE_CHECKING:
    from trace_jax.runs.generate import GenerateConfig
    from trace_jax.runs.scenes import ScenesConfig

# What a data set does not depend on, or what lies elsewhere on another machine.
_UNSAID = {
    "config", "workers", "out", "sheet", "dry_run", "show", "rehearse", "base_url", "budget",
    "concurrency", "max_requests", "prices", "references", "templates", "timeout", "attempts",
    "backoff", "backoff_max",
}  # fmt: skip
_MAKERS: dict[type, Any] = {
    bool: flags.DEFINE_bool, int: flags.DEFINE_integer, float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}  # fmt: skip


def define() -> None:
    """Defines every flag; those of the pipeline's settings from the settings themselves."""
    config_flags.DEFINE_config_file("config", None, "Page of configs/ instead of flags.")
    flags.DEFINE_string("subset", "", "A subset that the page names.")
    flags.DEFINE_string("engine", "procedural", "procedural or gemini.")
    flags.DEFINE_string("kind", "objects", "objects or scenes.")
    flags.DEFINE_string("name", "", "Name of the data set; its kind by default.")
    flags.DEFINE_list("split_sizes", [], "procedural: identities of train,val,test.")
    flags.DEFINE_integer("size", 96, "procedural: side of an object's picture, 64-448 pixels.")
    flags.DEFINE_integer("views", 1, "procedural: pristine views of every identity.")
    flags.DEFINE_integer("draws", 1, "procedural: fires of every identity.")
    flags.DEFINE_string("format", "webp", "procedural: webp or png.")
    flags.DEFINE_integer("quality", 85, "procedural: WebP quality.")
    flags.DEFINE_integer("workers", 0, "procedural: processes; 0 for one a core.")
    flags.DEFINE_string("out", None, "Folder; a page has its own default.")
    flags.DEFINE_string("sheet", None, "Write a contact sheet to this file instead.")
    flags.DEFINE_bool("dry_run", False, "gemini: print prompts and cost; send nothing.")
    flags.DEFINE_integer("show", 3, "gemini: subjects that --dry_run prints; 0 for all.")
    flags.DEFINE_bool("rehearse", False, "gemini: offline, by the procedural engine.")
    for field in dataclasses.fields(Settings):
        if field.name not in flags.FLAGS:
            shared = field.name in ("identities", "scenes", "width", "height", "seed")
            help = field.metadata["help"] if shared else f"gemini: {field.metadata['help']}"
            _MAKERS[type(field.default)](field.name, field.default, help)


def settings() -> Settings:
    """The pipeline's settings; a data set without a name is called by its kind."""
    given: dict[str, Any] = {
        f.name: flags.FLAGS[f.name].value for f in dataclasses.fields(Settings)
    }
    return Settings(**given | {"name": given["name"] or given["kind"]})


def objects() -> GenerateConfig:
    """What the procedural engine renders: the page's, or what the numbers say.

    Raises:
      UserError: see `generate.from_sizes` and `GenerateConfig.from_page`.
    """
    from trace_jax.runs import generate

    given = flags.FLAGS
    if given.config is not None:
        return generate.GenerateConfig.from_page(given.config, given.subset)
    return generate.from_sizes(
        given.name or given.kind, given.identities, given.split_sizes, engine=given.engine,
        kind=given.kind, seed=given.seed, size=given.size, views=given.views, draws=given.draws,
        format=given.format, quality=given.quality,
    )  # fmt: skip


def scenes() -> ScenesConfig:
    """What the procedural engine renders of kind scenes.

    Raises:
      UserError: see `runs.scenes`; also where neither a page nor a folder is given, and --sheet.
    """
    from trace_jax.runs import scenes

    given = flags.FLAGS
    if given.sheet:
        raise UserError("--sheet shows objects; it has no form for scenes.")
    if given.config is not None:
        return scenes.ScenesConfig.from_page(given.config, given.subset)
    if not given.out:
        raise UserError("give the folder to write with --out=DIR.")
    return scenes.from_number(
        given.name or given.kind, given.scenes, seed=given.seed, width=given.width,
        height=given.height, format=given.format, quality=given.quality,
    )  # fmt: skip


def command(root: Path) -> str:
    """The command that makes the same data set again, from the repository.

    It leaves out this machine's folders and whatever the result does not depend on.
    """
    given = flags.FLAGS
    said = []
    if given["config"].present:
        page = Path(config_flags.get_config_filename(given["config"])).resolve()
        inside = page.relative_to(root).as_posix() if page.is_relative_to(root) else page.name
        said.append(f"--config={inside}")
    own = {flag.name for flag in given.flags_by_module_dict()[__name__]} - _UNSAID
    for name in given:
        if given[name].present and (name in own or name.startswith("config.")):
            said.append(given[name].serialize())
    return shlex.join(["bin/generate", *said])
