"""Checks of single JSON fields that rows of every kind share; each returns the faults it found."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from trace_jax.data.faults import Fault

# COCO writes coordinates with two decimals, so a box may stand over the edge by their rounding.
BOX_TOLERANCE = 0.01

_LARGEST = sys.float_info.max


def keys(raw: Mapping[str, Any], required: Sequence[str], known: Collection[str]) -> list[Fault]:
    """Fields that are missing or that no row has."""
    return [
        *(
            Fault("unknown-field", f"unknown field {name!r}")
            for name in sorted(set(raw) - set(known))
        ),
        *(
            Fault("missing-field", f"field {name!r} is missing")
            for name in required
            if name not in raw
        ),
    ]


def text(name: str, value: Any, *, empty: bool = True) -> list[Fault]:
    """Text that UTF-8 can hold; not blank unless `empty`."""
    if not isinstance(value, str):
        return [Fault("wrong-type", f"{name!r} must be text, is {value!r}")]
    if not empty and not value.strip():
        return [Fault("empty-field", f"{name!r} is empty")]
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        what = f"{name!r} {value!r} cannot be written as UTF-8; rename the file or the label"
        return [Fault("not-utf8", what)]
    return []


def count(name: str, value: Any, first: int = 0) -> list[Fault]:
    """A whole number from `first`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < first:
        what = f"{name!r} must be a whole number from {first}, is {value!r}"
        return [Fault("wrong-type", what)]
    return []


def choice(name: str, value: Any, known: Sequence[str]) -> list[Fault]:
    """One of a few words; what is no text is `text`'s to report."""
    if not isinstance(value, str) or value in known:
        return []
    what = f"unknown {name} {value!r}; known: {', '.join(known)}"
    return [Fault(f"unknown-{name}", what)]


def names(name: str, value: Any) -> list[Fault]:
    """A list of words."""
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        return [Fault("wrong-type", f"{name!r} must be a list of names, is {value!r}")]
    return []


def path(value: Any) -> list[Fault]:
    """A path below the data folder in its one plain spelling."""
    if not isinstance(value, str):
        return []
    fault = _path_fault(value)
    return [Fault("bad-path", f"path {value!r} {fault}")] if fault else []


def _path_fault(value: str) -> str:
    if "\0" in value or "\n" in value:
        return "has a control character"
    if value.startswith("/") or (len(value) > 1 and value[1] == ":"):
        return "is absolute; give it relative to the data folder"
    if "\\" in value:
        return "has a backslash; separate folders by '/'"
    parts = value.split("/")
    if ".." in parts:
        return "leaves the data folder"
    # Two spellings of one file would pass as two rows. (An empty path is told as an empty field.)
    if value and ("" in parts or "." in parts):
        return "is not in its plain form (an empty or '.' component)"
    return ""


def sha256(value: Any) -> list[Fault]:
    """Empty, or 64 lower-case hex digits."""
    if not isinstance(value, str) or not value:
        return []
    if len(value) != 64 or set(value) - set("0123456789abcdef"):
        return [Fault("bad-hash", f"'sha256' must be 64 lower-case hex digits, is {value!r}")]
    return []


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # Compared, not converted: a whole number of 400 digits has no float.
    return -_LARGEST <= value <= _LARGEST


def fraction(what: str, value: Any) -> list[Fault]:
    """A number of 0-1; `what` is how the message calls it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return [Fault("wrong-type", f"{what} must be a number, is {value!r}")]
    if not 0 <= value <= 1:  # NaN, too, is not
        return [Fault("outside-0-1", f"{what} must lie in 0-1, is {value!r}")]
    return []


def json_object(name: str, value: Any) -> list[Fault]:
    """A JSON object that holds no NaN and no infinity, which JSON does not know."""
    if not isinstance(value, dict):
        return [Fault("wrong-type", f"{name!r} must be an object, is {value!r}")]
    if not _finite(value):
        return [Fault("wrong-type", f"{name!r} holds a number that is not finite")]
    return []


def _finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_finite(item) for item in value.values())
    if isinstance(value, list):
        return all(_finite(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)
