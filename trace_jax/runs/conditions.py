"""The conditions of an evaluation: what is done to features before they are scored."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from trace_jax import assets, files, frm
from trace_jax.baselines import RECOVER
from trace_jax.errors import FaultsError, UserError
from trace_jax.runs.controls import Controls
from trace_jax.types import LEVELS, Features, FeatureSource

BASE, PRISTINE = "base", "pristine"
SHIPPED = assets.FOLDER / "frm"
TRAINED = Path("runs/train")
NO_FRM = "none"

_RESERVED = {*RECOVER, PRISTINE}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


@dataclasses.dataclass(frozen=True)
class Condition:
    """Attributes:
    name: as in results.
    kind: "base", "frm", "control", "oracle" or "pristine".
    about: one line for readers, "" where the report knows better.
    origin: where the parameters come from, for readers.
    sha256: of the parameters, "" where there are none.
    num_params: how many numbers those are.
    recover: (tokens [B, ..., N, D] float32, mask or None, severity [B]) -> recovered tokens, at
      one batch shape; None where features stay as they are.
    folder: the FRM's, or None.
    """

    name: str
    kind: str
    about: str = ""
    origin: str = ""
    sha256: str = ""
    num_params: int = 0
    recover: Callable[..., Any] | None = None
    folder: Path | None = None


def newest_host(default: str) -> str:
    """The host of the newest trained FRM, else `default`."""
    for folder in _trained():
        return frm.describe(folder).source.host
    return default


def source_of(given: str) -> FeatureSource:
    """Whose features an FRM given as `folder` or `name=folder` fits."""
    return frm.describe(_named(given)[1]).source


def trained_on(folder: Path) -> str:
    """Hash of the data an FRM was trained on, "" where it does not say."""
    dataset = frm.describe(folder).dataset
    return dataset["hash"] if "hash" in dataset else ""


def frm_folders(given: Sequence[str], source: FeatureSource) -> list[tuple[str, Path]]:
    """Names and folders of the FRMs to evaluate.

    Args:
      given: `folder`, `name=folder` or "none"; empty for the default: of each of "frm" and
        "frm_plus" the newest under runs/train that fits the features, else the shipped one.
      source: whose features are evaluated.

    Raises:
      UserError: a folder is no FRM, a name is taken or not allowed, or no FRM is there at all.
    """
    if list(given) == [NO_FRM]:
        return []
    if not given:
        return _default_folders(source)
    named = [_named(text) for text in given]
    seen: set[str] = set()
    for name, folder in named:
        if name in _RESERVED or not _NAME.fullmatch(name):
            raise UserError(f"--frm={name}={folder}: {name!r} cannot name an FRM; choose another.")
        if name in seen:
            raise UserError(f"two FRMs are called {name!r}: name one, --frm=NAME={folder}")
        seen.add(name)
    return named


def frm_condition(name: str, folder: Path, source: FeatureSource) -> Condition:
    """Loads one FRM as a condition.

    Raises:
      UserError: the folder is damaged, or its FRM fits other features.
    """
    recoverer = frm.load(folder)
    description = recoverer.description
    _check_source(folder, description.source, source)

    def pure(params: Any, tokens: Any, mask: Any, severity: Any) -> Any:
        del severity
        return recoverer.apply(params, Features(tokens, mask, None, source)).tokens

    return Condition(
        name=name,
        kind="frm",
        about=_about(description),
        origin=f"{folder}, step {description.step}",
        sha256=_digest(recoverer.params),
        num_params=description.num_params,
        recover=_bound(pure, recoverer.params),
        folder=folder,
    )


def stream_conditions(folders: Sequence[str], source: FeatureSource) -> list[Condition]:
    """FRMs of a host's DeepStack streams, one a stream in order.

    Args:
      folders: the FRMs, each trained on the tap `deepstack_0`, `deepstack_1`, ...
      source: whose main features are evaluated.

    Raises:
      UserError: a folder is no FRM, or its FRM fits another stream.
    """
    return [
        frm_condition(
            f"stream_{k}", Path(folder), dataclasses.replace(source, tap=f"deepstack_{k}")
        )
        for k, folder in enumerate(folders)
    ]


def control_conditions(fitted: Controls, origin: str) -> list[Condition]:
    """The fitted controls as conditions."""
    found = []
    for name, params in fitted.params.items():
        oracle = name.endswith("_oracle")

        def pure(
            params: Any,
            tokens: Any,
            mask: Any,
            severity: Any,
            name: str = name,
            oracle: bool = oracle,
        ) -> Any:
            features = Features(tokens, mask, None, fitted.source)
            extra = (severity,) if oracle else ()
            return RECOVER[name](params, features, *extra).tokens

        arrays = {leaf: np.asarray(a) for leaf, a in params.items() if leaf != "lambda"}
        strength = f", lambda {float(params['lambda']):g}" if "lambda" in params else ""
        found.append(
            Condition(
                name=name,
                kind="oracle" if oracle else "control",
                origin=f"{origin}{strength}",
                sha256=_digest(arrays),
                num_params=sum(a.size for a in arrays.values()),
                recover=_bound(pure, arrays),
            )
        )
    return found


def _bound(pure: Callable[..., Any], params: Any) -> Callable[..., Any]:
    jitted = jax.jit(pure)

    def recover(tokens: np.ndarray, mask: np.ndarray | None, severity: np.ndarray) -> np.ndarray:
        return np.asarray(jitted(params, tokens, mask, severity), np.float32)

    return recover


def _named(text: str) -> tuple[str, Path]:
    name, separator, rest = text.partition("=")
    if separator and rest and _NAME.fullmatch(name) and not Path(text).exists():
        folder = Path(rest)
        frm.describe(folder)
        return name, folder
    return frm.describe(text).condition, Path(text)


def _default_folders(source: FeatureSource) -> list[tuple[str, Path]]:
    found: dict[str, Path] = {}
    for folder in (*_trained(), *_shipped(source.host)):
        description = frm.describe(folder)
        if description.source == source:
            found.setdefault(description.condition, folder)
    if not found:
        raise UserError(
            f"no trained FRM fits {source.host}/{source.tap} with weights "
            f"{source.weights_hash[:12]}. Train one (bin/train), give one (--frm=DIR), or evaluate "
            f"without (--frm={NO_FRM})."
        )
    order = {"frm": 0, "frm_plus": 1}
    return sorted(found.items(), key=lambda item: (order.get(item[0], 2), item[0]))


def _trained() -> list[Path]:
    """Folders of FRMs under runs/train, newest first."""
    found = [path for path in TRAINED.glob("*/best/frm.json")]
    return [path.parent for path in sorted(found, key=lambda p: p.stat().st_mtime, reverse=True)]


def _shipped(host: str) -> Iterator[Path]:
    for path in sorted((SHIPPED / host).glob("*/frm.json")):
        yield path.parent


def _about(description: frm.Description) -> str:
    """One line on an FRM: its size and, by name, whatever its training has beyond the paper."""
    shape, training = description.config, description.training
    loss, data, contrast = (_section(training, name) for name in ("loss", "data", "contrast"))
    parts = [f"{shape.depth} block{'s' if shape.depth > 1 else ''}"]
    if "name" in loss:
        weight = f" (cosine weight {loss['cos_weight']:g})" if "cos_weight" in loss else ""
        parts.append(f"loss {loss['name']}{weight}")
    beyond = []
    if "pristine_fraction" in data and data["pristine_fraction"]:
        beyond.append(f"{data['pristine_fraction']:.0%} pristine pairs")
    if "level_balanced" in data and data["level_balanced"]:
        beyond.append("level-balanced sampling")
    if "weight" in contrast and contrast["weight"]:
        beyond.append(f"contrastive term {contrast['weight']:g}")
    if beyond:
        parts.append("beyond the paper: " + ", ".join(beyond))
    if "levels" in data and list(data["levels"]) != list(LEVELS):
        parts.append(f"trained on {', '.join(data['levels'])} alone")
    return "; ".join(parts)


def _section(training: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = training[name] if name in training else {}
    return found if isinstance(found, Mapping) else {}


def _check_source(folder: Path, wanted: FeatureSource, found: FeatureSource) -> None:
    faults = [
        f"{f.name}: trained on {getattr(wanted, f.name)!r}, features are {getattr(found, f.name)!r}"
        for f in dataclasses.fields(FeatureSource)
        if getattr(wanted, f.name) != getattr(found, f.name)
    ]
    if faults:
        raise FaultsError(
            f"{folder}: this FRM fits other features",
            faults,
            "Give the cache it was trained on (--cache), or train one for these (bin/train).",
        )


def _digest(params: Any) -> str:
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return files.sha256_json(
        [
            [jax.tree_util.keystr(path), str(a.dtype), list(a.shape), _bytes_hash(a)]
            for path, a in ((path, np.asarray(leaf)) for path, leaf in leaves)
        ]
    )


def _bytes_hash(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
