"""From a ConfigDict at the edge to frozen dataclasses inside, strictly."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from ml_collections import ConfigDict

from trace_jax.errors import FaultsError

T = TypeVar("T")


def build(kind: type[T], section: ConfigDict | Mapping[str, Any], name: str, **given: Any) -> T:
    """A dataclass from a section of a config page; sections may hold sections.

    Args:
      kind: a dataclass; fields that are dataclasses are built from sub-sections.
      section: names and values.
      name: where the section stands, for messages, e.g. "config.loop".
      **given: fields decided by the caller; the section may not name them.

    Raises:
      FaultsError: unknown names, missing names or values of another type, all listed with what is
        allowed.
    """
    faults: list[str] = []
    values = _values(kind, section, name, faults, given)
    if faults:
        raise FaultsError(f"{name} cannot be used", faults, "Mend the config page or the flag.")
    return kind(**values, **given)


def plain(config: Any) -> Any:
    """A dataclass tree as JSON-able dicts and lists."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, tuple | list):
        return [plain(value) for value in config]
    return config


def _values(
    kind: type, section: Any, name: str, faults: list[str], given: Mapping[str, Any]
) -> dict[str, Any]:
    items = section.items() if isinstance(section, ConfigDict | Mapping) else None
    if items is None:
        faults.append(f"{name}: must be a section, is {section!r}")
        return {}
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind) if f.name not in given}
    values = {}
    for key, value in items:
        if key not in fields:
            faults.append(f"{name}.{key}: unknown; allowed: {', '.join(sorted(fields))}")
        else:
            values[key] = _value(hints[key], value, f"{name}.{key}", faults)
    for key, field in fields.items():
        required = field.default is dataclasses.MISSING
        if required and field.default_factory is dataclasses.MISSING and key not in values:
            faults.append(f"{name}.{key}: missing")
    return values


def _value(hint: Any, value: Any, name: str, faults: list[str]) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        before = len(faults)
        values = _values(hint, value, name, faults, {})
        return hint(**values) if len(faults) == before else None
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        base = typing.get_origin(option) or option
        if base is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if base is tuple and isinstance(value, list | tuple):
            return _tuple(option, value, name, faults)
        if isinstance(value, base) and not (isinstance(value, bool) and base is not bool):
            return value
    wanted = " or ".join(getattr(o, "__name__", str(o)) for o in options)
    faults.append(f"{name}: must be {wanted}, is {value!r}")
    return value


def _tuple(hint: Any, value: Any, name: str, faults: list[str]) -> tuple:
    element = typing.get_args(hint)[0]
    return tuple(_value(element, item, f"{name}[{i}]", faults) for i, item in enumerate(value))
