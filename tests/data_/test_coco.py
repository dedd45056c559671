"""Scenes as COCO JSON and back; other people's COCO files (trace_jax/data/coco.py)."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from trace_jax.data import coco, manifest
from trace_jax.errors import FaultsError
from trace_jax.types import SceneBox, SceneExample

BIN = Path(__file__).parents[2] / "bin"


def scene(path, *boxes, **changes):
    fields = {
        "layout": path, "environment": "", "scene_type": "", "severity": "L2", "split": "test",
        "width": 40, "height": 30,
    }  # fmt: skip
    return SceneExample(path, **fields | changes, boxes=tuple(boxes))


SCENES = [
    scene(
        "light/0001.jpg",
        SceneBox((1, 2, 10, 12.5), "office_chair", "chair", ("metal",), "charred", 0.7, "c-1"),
        SceneBox((20, 3, 5, 6), "aerosol_can", "", ("metal",)),
        caption="Soot.",
        generation={"engine": "procedural", "inventory": ["piano"]},
        sha256="ab" * 32,
    ),
    scene("heavy/0001.jpg", SceneBox((0, 0, 40, 30), "mug", "cup", crowd=True)),
    scene("empty.jpg"),
    scene(
        "other.jpg", SceneBox((1, 1, 2, 2), "time_machine"), SceneBox((5, 5, 2, 2), "hovercraft")
    ),
]


def test_nothing_is_lost(tmp_path):
    raw = json.loads(json.dumps(coco.export(SCENES)))
    assert coco.read(raw, tmp_path) == SCENES
    names = {c["id"]: (c["name"], c["supercategory"]) for c in raw["categories"]}
    assert names[62] == ("chair", "coco") and names[47] == ("cup", "coco")
    own = {name for number, (name, group) in names.items() if number >= coco.FIRST_OWN_ID}
    assert own == {"aerosol_can", "time_machine", "hovercraft"}  # each under a number of its own
    assert all(group == "trace" for n, (_, group) in names.items() if n >= coco.FIRST_OWN_ID)
    # The vocabulary's types have the same numbers in every file.
    again = coco.export(SCENES[:1])
    assert [c for c in again["categories"] if c["name"] == "aerosol_can"] == [
        c for c in raw["categories"] if c["name"] == "aerosol_can"
    ]


def test_pycocotools_reads_and_scores_it(tmp_path):
    path = tmp_path / "truth.json"
    path.write_text(json.dumps(coco.export(SCENES)))
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(path)
        perfect = [
            {k: a[k] for k in ("image_id", "category_id", "bbox")} | {"score": 0.9}
            for a in truth.anns.values()
        ]
        found = COCOeval(truth, truth.loadRes(perfect), "bbox")
        found.evaluate()
        found.accumulate()
        found.summarize()
    assert found.stats[0] == pytest.approx(1.0)
    assert truth.getCatIds(catNms=["chair"]) == [62]
    assert sorted(truth.imgs) == [1, 2, 3, 4]


def foreign(ids=(0, 1, 2), **changes):
    return {
        "images": [
            {"id": 0, "file_name": "light/0001.png", "width": 12, "height": 9},
            {"id": 7, "file_name": "heavy/0001.png", "width": 12, "height": 9},
        ],
        "categories": [
            {"id": ids[0], "name": "cell phone"},
            {"id": ids[1], "name": "Gas Cylinder"},
            {"id": ids[2], "name": "person"},
        ],
        "annotations": [
            {"id": 0, "image_id": image, "category_id": kind, "bbox": [0, 0, 3, 4]}
            for image in (0, 7)
            for kind in ids
        ],
    } | changes


@pytest.mark.parametrize("ids", [(0, 1, 2), (1, 2, 3), (5, 9, 90), ("a", "b", "c")])
def test_ids_are_names_not_positions(tmp_path, ids):
    for folder, colour in (("light", 250), ("heavy", 20)):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (12, 9), (colour, 0, 0)).save(tmp_path / folder / "0001.png")
    (tmp_path / "coco.json").write_text(json.dumps(foreign(ids)))
    done = subprocess.run(
        [BIN / "data", "from_coco", tmp_path / "coco.json", f"--images={tmp_path}", "--name=mine"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    data = manifest.read(tmp_path)
    # One file name in two folders: two scenes, each with its own boxes (handed case 5).
    assert [row.path for row in data.scenes] == ["light/0001.png", "heavy/0001.png"]
    for row in data.scenes:
        assert [(box.object_type, box.coco) for box in row.boxes] == [
            ("smartphone", "cell phone"), ("gas_cylinder", ""), ("person", ""),
        ]  # fmt: skip
    # A category that the vocabulary lacks is no fault of the file's.
    assert data.info.taxonomy == "" and data.info.pairs is False
    assert data.info.provenance["categories"] == {
        str(ids[0]): "cell phone", str(ids[1]): "Gas Cylinder", str(ids[2]): "person",
    }  # fmt: skip
    assert manifest.inspect(tmp_path) == []


def test_exif_decides_the_size(tmp_path):
    """Handed case 6: a 40x20 picture whose left half is red, turned by Orientation 6."""
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, :20, 0] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "turned.jpg", exif=exif, quality=95)
    raw = foreign()
    raw["images"] = [{"id": 0, "file_name": "turned.jpg", "width": 40, "height": 20}]
    raw["annotations"] = [{"id": 1, "image_id": 0, "category_id": 0, "bbox": [0, 0, 20, 20]}]
    (row,) = coco.read(raw, tmp_path)
    assert (row.width, row.height) == (20, 40)
    x, y, w, h = (int(v) for v in row.boxes[0].box)
    from trace_jax import images

    inside = np.asarray(images.open_rgb(tmp_path / "turned.jpg"))[y : y + h, x : x + w]
    assert inside[..., 0].min() > 200 and inside.shape == (20, 20, 3)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"images": "x"}, ["'images' must be a list of objects"]),
        ({"categories": [3]}, ["'categories' must be a list of objects"]),
        ({"categories": [{"id": 0, "name": "mug"}] * 2}, ["category id 0 stands twice"]),
        ({"categories": [{"name": "mug"}]}, ["id None is neither a whole number nor text"]),
        ({"images": [{"id": 0}]}, ["'file_name' must be text"]),
        ({"images": [{"id": 0, "file_name": "../up.png"}]}, ["leaves the data folder"]),
        ({"images": [{"id": 0, "file_name": "a.png"}]}, ["'width' must", "'height' must"]),
        (
            {"images": [{"id": 0, "file_name": "a.png", "width": 5, "height": 5, "split": "dev"}]},
            ["unknown split 'dev'"],
        ),
        ({"annotations": [{"image_id": [], "category_id": 0}]}, ["no image has id []"]),
        ({"annotations": [{"image_id": 0, "category_id": {}}]}, ["no category has id {}"]),
        ({"annotations": [{"image_id": 0, "category_id": 0}]}, ["'box' must be four"]),
        (
            {"annotations": [{"image_id": 0, "category_id": 0, "bbox": [0, 0, 13, 1]}]},
            ["outside the image of 12 x 9"],
        ),
        (
            {"annotations": [{"image_id": 0, "category_id": 0, "bbox": [0, 0, 1, 0]}]},
            ["has no area"],
        ),
        (
            {
                "annotations": [
                    {"id": 4, "image_id": 0, "category_id": 0, "bbox": [0, 0, 1, 1],
                     "materials": 3, "visible": "all", "iscrowd": 2}
                ]
            },
            ["'iscrowd' must be 0", "'materials' must be a list", "'visible' must be a number"],
        ),
    ],
)  # fmt: skip
def test_faults_of_foreign_files(tmp_path, changes, wanted):
    raw = foreign(**{"annotations": []} | changes)
    with pytest.raises(FaultsError) as caught:
        coco.read(raw, tmp_path)
    assert len(caught.value.faults) == len(wanted), caught.value.faults
    for fault, text in zip(caught.value.faults, wanted, strict=True):
        assert text in fault


def test_it_is_no_coco_file(tmp_path):
    for raw in (None, [], {"images": []}):
        with pytest.raises(FaultsError, match="no COCO file"):
            coco.read(raw, tmp_path)


def test_a_damaged_picture_is_named(tmp_path):
    (tmp_path / "light").mkdir()
    (tmp_path / "light" / "0001.png").write_bytes(b"text")
    with pytest.raises(FaultsError, match=r"image 0: light/0001.png is not an image"):
        coco.read(foreign(), tmp_path)
