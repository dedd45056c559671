"""Scenes as COCO JSON and back.

Out: categories are COCO's official ones (ids 1..90 with their gaps) for boxes whose type maps to
one; the rest go under categories of their own, ids from 1001, named by type, so that nothing is
lost. Annotations carry our further fields beside COCO's. In: any file with `images`,
`annotations` and `categories` (nothing else is needed); ids may be any integers or texts, with gaps
or from 0. Boxes are in pixels of the image with its EXIF orientation applied, as our readers see
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_jax import images, taxonomy
from trace_jax.data.scene_rows import box_faults
from trace_jax.errors import FaultsError
from trace_jax.types import PRISTINE, SceneBox, SceneExample

FIRST_OWN_ID = 1001


def export(scenes: Sequence[SceneExample]) -> dict[str, Any]:
    """Scenes as one COCO object; image ids are 1, 2, ... in order."""
    known = taxonomy.load()
    own = {name: FIRST_OWN_ID + k for k, name in enumerate(known.object_types)}
    categories: dict[int, dict[str, Any]] = {}
    annotations: list[dict[str, Any]] = []
    pictures = []
    for number, scene in enumerate(scenes, start=1):
        pictures.append(
            {
                "id": number,
                "file_name": scene.path,
                "width": scene.width,
                "height": scene.height,
                "layout": scene.layout,
                "severity": scene.severity,
                "environment": scene.environment,
                "scene_type": scene.scene_type,
                "split": scene.split,
                "caption": scene.caption,
            }
        )
        for box in scene.boxes:
            if box.coco:
                category, name, group = known.coco_id(box.coco), box.coco, "coco"
            else:
                category = own.get(box.object_type, FIRST_OWN_ID + len(own))
                name, group = box.object_type, "trace"
            categories[category] = {"id": category, "name": name, "supercategory": group}
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": category,
                    "bbox": [float(v) for v in box.box],
                    "area": float(box.box[2] * box.box[3]),
                    "iscrowd": int(box.crowd),
                    "object_type": box.object_type,
                    "materials": list(box.materials),
                    "state": box.state,
                    "visible": box.visible,
                    "identity": box.identity,
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
      root: folder that `file_name` is relative to; a picture there says the image's size where the
        file does not, and is what boxes are checked against.

    Returns:
      One scene an image, in the file's order. Without further fields each is a layout of its own,
      pristine, in split "test"; a category's name is looked up among types, then COCO's names.

    Raises:
      FaultsError: everything that is wrong with the file.
    """
    faults: list[str] = []
    if not isinstance(raw, Mapping):
        raise FaultsError("this is no COCO file", ["the top level must be an object"])
    for name in ("images", "annotations", "categories"):
        if not isinstance(raw.get(name), list):
            faults.append(f"{name!r} must be a list")
    if faults:
        raise FaultsError("this is no COCO file", faults)
    labels = {}
    for category in raw["categories"]:
        if category.get("id") in labels:
            faults.append(f"category id {category['id']!r} stands twice")
        labels[category.get("id")] = _labels(str(category.get("name", "")))
    by_image: dict[Any, list[SceneBox]] = {}
    sizes: dict[Any, tuple[int, int]] = {}
    for image in raw["images"]:
        key = image.get("id")
        if key in by_image:
            faults.append(f"image id {key!r} stands twice")
        by_image[key] = []
        try:
            sizes[key] = _size(image, Path(root))
        except images.BadImageError as error:
            faults.append(f"{image.get('file_name')}: {error}")
        except KeyError as error:
            faults.append(f"image {key!r} lacks {error}")
    for number, annotation in enumerate(raw["annotations"]):
        where = f"annotation {annotation.get('id', number)!r}"
        key, category = annotation.get("image_id"), annotation.get("category_id")
        if key not in by_image:
            faults.append(f"{where}: no image has id {key!r}")
            continue
        if category not in labels:
            faults.append(f"{where}: no category has id {category!r}")
            continue
        box = annotation.get("bbox")
        if key in sizes:
            faults += [f"{where}: {fault}" for fault in box_faults(box, *sizes[key])]
        if not isinstance(box, list) or len(box) != 4:
            continue
        object_type, coco = labels[category]
        by_image[key].append(
            SceneBox(
                tuple(float(v) for v in box),  # type: ignore[arg-type]
                str(annotation.get("object_type", object_type)),
                coco,
                tuple(annotation.get("materials", ())),
                str(annotation.get("state", "")),
                float(annotation.get("visible", 1.0)),
                str(annotation.get("identity", "")),
                bool(annotation.get("iscrowd", 0)),
            )
        )
    if faults:
        raise FaultsError("the COCO file cannot be used", faults)
    return [
        SceneExample(
            path=str(image["file_name"]),
            layout=str(image.get("layout", image["file_name"])),
            environment=str(image.get("environment", "")),
            scene_type=str(image.get("scene_type", "")),
            severity=str(image.get("severity", PRISTINE)),
            split=str(image.get("split", "test")),
            width=sizes[image["id"]][0],
            height=sizes[image["id"]][1],
            boxes=tuple(by_image[image["id"]]),
            caption=str(image.get("caption", "")),
        )
        for image in raw["images"]
    ]


def _labels(name: str) -> tuple[str, str]:
    """Type and COCO name of a category; a COCO name stands for the first type that maps to it."""
    known = taxonomy.load()
    folded = name.strip().lower()
    own = folded.replace(" ", "_")
    if own in known.types:
        return own, known.coco_of(own) or ""
    for object_type in known.object_types:
        if known.coco_of(object_type) == folded:
            return object_type, folded
    return own, ""


def _size(image: Mapping[str, Any], root: Path) -> tuple[int, int]:
    path = root / str(image["file_name"])
    if path.is_file():
        # The picture decides: files often state the size before EXIF orientation is applied.
        width, height = images.open_rgb(path).size
        return width, height
    return int(image["width"]), int(image["height"])
