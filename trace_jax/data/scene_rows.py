"""Rows of kind "scenes" as JSON and back: `types.SceneExample` with its boxes.

Boxes are COCO's: x, y, width, height in pixels of the image as opened, x to the right and y down
from its top left corner, fractions of a pixel allowed.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from trace_jax.data import fields
from trace_jax.data.faults import Fault
from trace_jax.types import SEVERITIES, SPLITS, SceneBox, SceneExample

_REQUIRED = (
    "path", "layout", "environment", "scene_type", "severity", "split", "width", "height",
)  # fmt: skip
_TEXT = ("path", "layout", "environment", "scene_type", "severity", "split", "caption", "sha256")
# Environment and scene type may be empty: a scene set from elsewhere need not know them.
_NEVER_EMPTY = ("path", "layout")
_KNOWN = {field.name for field in dataclasses.fields(SceneExample)}
_BOX_REQUIRED = ("box", "object_type")
_BOX_TEXT = ("object_type", "coco", "state", "identity")
_LARGEST_SIDE = 2**31  # of an image, in comparisons: nothing that opens is larger
_BOX_KNOWN = {field.name for field in dataclasses.fields(SceneBox)}


def to_json(row: SceneExample) -> dict[str, Any]:
    """A scene as a JSON object; every field is spelled out."""
    return {
        "path": row.path,
        "layout": row.layout,
        "environment": row.environment,
        "scene_type": row.scene_type,
        "severity": row.severity,
        "split": row.split,
        "width": row.width,
        "height": row.height,
        "boxes": [box_to_json(box) for box in row.boxes],
        "caption": row.caption,
        "generation": dict(row.generation),
        "sha256": row.sha256,
    }


def box_to_json(box: SceneBox) -> dict[str, Any]:
    """One box as a JSON object."""
    return {
        "box": [float(value) for value in box.box],
        "object_type": box.object_type,
        "coco": box.coco,
        "materials": list(box.materials),
        "state": box.state,
        "visible": float(box.visible),
        "identity": box.identity,
        "crowd": box.crowd,
    }


def from_json(raw: dict[str, Any], found: list[Fault]) -> tuple[SceneExample | None, list[Fault]]:
    """Turns a JSON object into a scene; see `rows.from_json`."""
    faults = [*found, *fields.keys(raw, _REQUIRED, _KNOWN)]
    for name in _TEXT:
        if name in raw:
            faults += fields.text(name, raw[name], empty=name not in _NEVER_EMPTY)
    for name in ("width", "height"):
        if name in raw:
            faults += fields.count(name, raw[name], first=1)
    faults += fields.choice("severity", raw.get("severity"), SEVERITIES)
    faults += fields.choice("split", raw.get("split"), SPLITS)
    faults += fields.path(raw.get("path"))
    faults += fields.sha256(raw.get("sha256", ""))
    faults += fields.json_object("generation", raw.get("generation", {}))
    boxes = raw.get("boxes", [])
    if not isinstance(boxes, list):
        faults.append(Fault("wrong-type", f"'boxes' must be a list, is {boxes!r}"))
        boxes = []
    size = _size(raw)
    for number, box in enumerate(boxes):
        faults += [Fault(f.name, f"box {number}: {f}") for f in box_row_faults(box, size)]
    if faults:
        return None, faults
    known = dict(raw) | {"boxes": tuple(box_from_json(box) for box in boxes)}
    return SceneExample(**known), []


def box_faults(box: Any, width: float, height: float) -> list[Fault]:
    """Faults of four numbers x, y, width, height against an image's size."""
    if not isinstance(box, list | tuple) or len(box) != 4 or not all(map(fields.is_number, box)):
        return [Fault("wrong-type", f"'box' must be four finite numbers x, y, w, h, is {box!r}")]
    x, y, w, h = box
    if w <= 0 or h <= 0:
        return [Fault("box-empty", f"{list(box)} has no area")]
    slack = fields.BOX_TOLERANCE
    if x < -slack or y < -slack or x + w > width + slack or y + h > height + slack:
        what = f"{list(box)} reaches outside the image of {width:g} x {height:g} pixels"
        return [Fault("box-outside", what)]
    return []


def _size(raw: dict[str, Any]) -> tuple[float, float]:
    """What boxes are held against; where the size itself is at fault, they are not blamed."""
    sides = [
        math.inf if fields.count(name, raw.get(name), 1) else min(raw[name], _LARGEST_SIDE)
        for name in ("width", "height")
    ]
    return sides[0], sides[1]


def box_row_faults(raw: Any, size: tuple[float, float]) -> list[Fault]:
    """Faults of one box as JSON, in an image of that width and height."""
    if not isinstance(raw, dict):
        return [Fault("wrong-type", f"must be a JSON object, is {raw!r}")]
    faults = fields.keys(raw, _BOX_REQUIRED, _BOX_KNOWN)
    for name in _BOX_TEXT:
        if name in raw:
            faults += fields.text(name, raw[name], empty=name != "object_type")
    if "box" in raw:
        faults += box_faults(raw["box"], *size)
    faults += fields.names("materials", raw.get("materials", []))
    faults += fields.fraction("'visible'", raw.get("visible", 1.0))
    if not isinstance(raw.get("crowd", False), bool):
        faults.append(Fault("wrong-type", f"'crowd' must be true or false, is {raw['crowd']!r}"))
    return faults


def box_from_json(raw: dict[str, Any]) -> SceneBox:
    """A box without faults from its JSON object."""
    x, y, w, h = (float(value) for value in raw["box"])
    return SceneBox(
        **raw
        | {
            "box": (x, y, w, h),
            "materials": tuple(raw.get("materials", ())),
            "visible": float(raw.get("visible", 1.0)),
        }
    )
