"""Scenes as COCO JSON and back.

Out: categories are COCO's official ones (ids 1..90 with their gaps) for boxes whose type maps to
one; the rest go under categories of their own, ids from 1001, named by type, so that nothing is
lost. Images and annotations carry our further fields beside COCO's, which its tools ignore.

In: any file with `images`, `annotations` and `categories` (nothing else is needed); ids may be any
integers or texts, with gaps or from 0. A category's name is looked up among the vocabulary's types
and their other names, COCO's among them; an unknown one stays as it is, as a type without COCO
category. Boxes are in pixels of the image with its EXIF orientation applied, as our readers see it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_jax import images, taxonomy
from trace_jax.data import fields, scene_rows
from trace_jax.data.faults import Fault
from trace_jax.errors import FaultsError
from trace_jax.types import PRISTINE, SceneBox, SceneExample

FIRST_OWN_ID = 1001

_IMAGE_FIELDS = (
    "layout", "severity", "environment", "scene_type", "split", "caption", "generation", "sha256",
)  # fmt: skip
_BOX_FIELDS = ("object_type", "materials", "state", "visible", "identity")


def export(scenes: Sequence[SceneExample]) -> dict[str, Any]:
    """Scenes as one COCO object; image ids are 1, 2, ... in order."""
    known = taxonomy.load()
    found = {box.object_type for scene in scenes for box in scene.boxes if not box.coco}
    # The vocabulary's types keep their numbers in every file; strangers follow.
    own_names = [*known.object_types, *sorted(found - set(known.object_types))]
    own = {name: FIRST_OWN_ID + k for k, name in enumerate(own_names)}
    categories: dict[int, dict[str, Any]] = {}
    annotations: list[dict[str, Any]] = []
    pictures = []
    for number, scene in enumerate(scenes, start=1):
        row = scene_rows.to_json(scene)
        pictures.append(
            {
                "id": number,
                "file_name": scene.path,
                "width": scene.width,
                "height": scene.height,
                **{name: row[name] for name in _IMAGE_FIELDS},
            }
        )
        for box, raw in zip(scene.boxes, row["boxes"], strict=True):
            if box.coco:
                category, name, group = known.coco_id(box.coco), box.coco, "coco"
            else:
                category, name, group = own[box.object_type], box.object_type, "trace"
            categories[category] = {"id": category, "name": name, "supercategory": group}
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": category,
                    "bbox": raw["box"],
                    "area": float(box.box[2] * box.box[3]),
                    "iscrowd": int(box.crowd),
                    **{name: raw[name] for name in _BOX_FIELDS},
                }
            )
    return {
        "info": {"description": "TRACE scenes", "taxonomy": known.name},
        "licenses": [],
        "images": pictures,
        "annotations": annotations,
        "categories": [categories[k] for k in sorted(categories)],
    }


def read(raw: Any, root: str | Path) -> list[SceneExample]:
    """A COCO object as scenes.

    Args:
      raw: the parsed file.
      root: folder that `file_name` is relative to. A picture there says the image's size, for
        files often state the one before EXIF orientation is applied; without it the file does.

    Returns:
      One scene an image, in the file's order. Without further fields each is a layout of its own,
      pristine, in split "test".

    Raises:
      FaultsError: everything that is wrong with the file.
    """
    if not isinstance(raw, Mapping):
        raise FaultsError("this is no COCO file", ["the top level must be an object"])
    faults: list[str] = []
    tables = {}
    for name in ("images", "annotations", "categories"):
        value = raw.get(name)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            faults.append(f"{name!r} must be a list of objects")
        else:
            tables[name] = value
    if faults:
        raise FaultsError("this is no COCO file", faults)
    labels = {
        key: _labels(str(category.get("name", "")))
        for key, category in _by_id(tables["categories"], "category", faults).items()
    }
    pictures = _by_id(tables["images"], "image", faults)
    sizes = {key: _size(image, Path(root), faults) for key, image in pictures.items()}
    boxes: dict[Hashable, list[SceneBox]] = {key: [] for key in pictures}
    for number, annotation in enumerate(tables["annotations"]):
        where = f"annotation {annotation.get('id', number)!r}"
        key, category = annotation.get("image_id"), annotation.get("category_id")
        if not _is_id(key) or key not in pictures:
            faults.append(f"{where}: no image has id {key!r}")
        elif not _is_id(category) or category not in labels:
            faults.append(f"{where}: no category has id {category!r}")
        else:
            row, found = _box_row(annotation, *labels[category])
            # Where the size is at fault, boxes are not blamed for it.
            found += scene_rows.box_row_faults(row, sizes[key] or (math.inf, math.inf))
            faults += [f"{where}: {fault}" for fault in found]
            if not found:
                boxes[key].append(scene_rows.box_from_json(row))
    scenes = []
    for key, image in pictures.items():
        size = sizes[key]
        if size is None:
            continue
        scene, found = scene_rows.from_json(_scene_row(image, size), [])
        faults += [f"image {key!r}: {fault}" for fault in found]
        if scene is not None:
            scenes.append(dataclasses.replace(scene, boxes=tuple(boxes[key])))
    if faults:
        raise FaultsError("the COCO file cannot be used", faults)
    return scenes


def _by_id(items: Sequence[dict[str, Any]], what: str, faults: list[str]) -> dict[Hashable, Any]:
    found: dict[Hashable, Any] = {}
    for number, item in enumerate(items):
        key = item.get("id")
        if not _is_id(key):
            faults.append(f"{what} number {number}: id {key!r} is neither a whole number nor text")
        elif key in found:
            faults.append(f"{what} id {key!r} stands twice")
        else:
            found[key] = item
    return found


def _is_id(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _labels(name: str) -> tuple[str, str]:
    """Type and COCO name of a category."""
    known = taxonomy.load()
    folded = name.strip().lower()
    own = folded.replace(" ", "_")
    if own not in known.types:
        own = known.normalise_type(folded) or own
    return own, (known.coco_of(own) or "") if own in known.types else ""


def _box_row(
    annotation: Mapping[str, Any], object_type: str, coco: str
) -> tuple[dict[str, Any], list[Fault]]:
    row = {"object_type": object_type, "coco": coco, "box": annotation.get("bbox")}
    row |= {name: annotation[name] for name in _BOX_FIELDS if name in annotation}
    crowd = annotation.get("iscrowd", 0)
    row["crowd"] = bool(crowd)
    if crowd not in (0, 1):
        return row, [Fault("wrong-type", f"'iscrowd' must be 0 or 1, is {crowd!r}")]
    return row, []


def _scene_row(image: Mapping[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    plain = {
        "path": image["file_name"], "layout": image["file_name"], "environment": "",
        "scene_type": "", "severity": PRISTINE, "split": "test",
        "width": size[0], "height": size[1],
    }  # fmt: skip
    return plain | {name: image[name] for name in _IMAGE_FIELDS if name in image}


def _size(image: Mapping[str, Any], root: Path, faults: list[str]) -> tuple[int, int] | None:
    """Width and height, or None and a fault more."""
    name = image.get("file_name")
    where = f"image {image['id']!r}"
    wrong = [*fields.text("file_name", name, empty=False), *fields.path(name)]
    if wrong:
        faults += [f"{where}: {fault}" for fault in wrong]
        return None
    path = root / str(name)
    if path.is_file():
        try:
            picture = images.open_rgb(path)
            return picture.width, picture.height
        except images.BadImageError as error:
            faults.append(f"{where}: {name} {error}")
            return None
    stated = {side: image.get(side) for side in ("width", "height")}
    wrong = [fault for side, value in stated.items() for fault in fields.count(side, value, 1)]
    if wrong:
        faults += [f"{where}: {fault}" for fault in wrong]
        return None
    return int(image["width"]), int(image["height"])
