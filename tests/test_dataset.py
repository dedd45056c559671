"""bin/data's library: a copy damaged by hand in twenty ways, splits, reviews, COCO, statistics."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trace_jax import files, taxonomy
from trace_jax.data import coco, manifest
from trace_jax.errors import FaultsError, UserError
from trace_jax.metrics.agreement import agreement
from trace_jax.report import statistics
from trace_jax.runs import dataset, review
from trace_jax.types import LEVELS, Example, PartMaterial, SceneBox, SceneExample

BIN = Path(__file__).parents[1] / "bin"
PER_IDENTITY = 1 + len(LEVELS)


def picture(path, colour=(120, 80, 40), size=(24, 24)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def objects(folder, identities=24):
    """A sound set of objects with real types, metrics and pinned pictures."""
    known = taxonomy.load()
    rows = []
    for number in range(identities):
        kind = known.types[known.object_types[number % 9]]
        split = ("train", "train", "val", "test")[number % 4]
        for state in ("pristine", *LEVELS):
            path = f"images/{number:03d}/{state}.png"
            picture(folder / path, (number * 7 % 256, 90, len(rows) % 256))
            level = {lv.name: lv for lv in known.severity}.get(state)
            metrics = {m: sum(r) / 2 for m, r in level.ranges.items()} if level else {}
            parts = tuple(PartMaterial(p, m[0]) for p, m in kind.parts.items())
            rows.append(
                Example(
                    path, f"thing-{number}", kind.name, "plain", state, split, parts,
                    kind.functions, metrics=metrics, caption="a thing",
                    sha256=files.sha256_file(folder / path),
                )
            )  # fmt: skip
    return manifest.write(
        folder, manifest.DatasetInfo("objects", "small", "1.0.0", known.name), rows
    )


def scenes(folder, layouts=4):
    known = taxonomy.load()
    kind = next(iter(known.scene_types))
    chair, can = "chair", "aerosol_can"
    rows = []
    for number in range(layouts):
        for state in ("pristine", "L2"):
            path = f"images/{number}/{state}.png"
            picture(folder / path, (number * 30, 60, 90), (64, 48))
            boxes = (
                SceneBox((4.0, 5.0, 20.0, 30.5), chair, "chair", ("wood",), "charred", 0.8),
                SceneBox((30.0, 10.0, 8.0, 12.0), can, "", ("metal",), "intact"),
            )
            rows.append(
                SceneExample(
                    path, f"layout-{number}", known.scene_type_of[kind].environment, kind, state,
                    ("train", "test")[number % 2], 64, 48, boxes, "a room",
                    {"engine": "test"},
                )
            )  # fmt: skip
    return manifest.write(
        folder, manifest.DatasetInfo("scenes", "rooms", "1.0.0", known.name), rows
    )


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    objects(folder)
    return folder


def test_sound_sets_have_no_fault(sound, tmp_path):
    assert manifest.inspect(sound) == []
    scenes(tmp_path)
    assert manifest.inspect(tmp_path) == []


def test_twenty_kinds_of_damage_are_twenty_named_faults(sound, tmp_path):
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    lines = (tmp_path / "manifest.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]

    def at(identity, state):
        return identity * PER_IDENTITY + ("pristine", *LEVELS).index(state)

    def change(identity, state, **fields):
        rows[at(identity, state)] |= fields

    change(0, "L0", severity="L9")
    change(1, "L1", split="dev")
    change(2, "L2", object_type="spaceship")
    change(3, "L3", functions=["flying"])
    change(4, "L4", materials=[{"part": "hull", "material": "unobtainium"}])
    change(5, "L0", metrics={"soot_coverage": 1.4})
    change(6, "L1", view=-1)
    (tmp_path / rows[at(7, "L2")]["path"]).unlink()
    change(7, "L2", path="../outside.png")
    change(8, "L3", sha256="xyz")
    change(9, "L4", colour="red")
    change(11, "L1", split="train" if rows[at(11, "L1")]["split"] != "train" else "val")
    change(12, "L2", object_type=rows[at(13, "L2")]["object_type"])
    (tmp_path / rows[at(14, "L0")]["path"]).unlink()
    (tmp_path / rows[at(15, "L1")]["path"]).write_bytes(b"not a picture")
    picture(tmp_path / rows[at(16, "L2")]["path"], (1, 2, 3))
    picture(tmp_path / "images" / "nobody.png")
    picture(tmp_path / "images" / "nameless.png")
    nameless = {k: v for k, v in rows[0].items() if k != "identity"}
    rows.append(nameless | {"path": "images/nameless.png", "sha256": ""})
    rows.append(rows[at(17, "L0")])
    lines = [json.dumps(row) for row in rows]
    (tmp_path / rows[at(18, "L3")]["path"]).unlink()
    lines[at(18, "L3")] = ""  # a level that is simply not there
    lines.append("{nonsense")
    (tmp_path / "manifest.jsonl").write_text("\n".join(lines) + "\n")
    faults = manifest.inspect(tmp_path)
    assert sorted(fault.name for fault in faults) == [
        "bad-hash", "bad-path", "duplicate-path", "hash-disagrees", "identity-in-two-splits",
        "missing-field", "missing-file", "missing-level", "mixed-identity", "not-json",
        "outside-0-1", "stray-image", "unknown-field", "unknown-function", "unknown-material",
        "unknown-severity", "unknown-split", "unknown-type", "unreadable-image", "wrong-type",
    ]  # fmt: skip
    assert all(fault.named.startswith(f"{fault.name}: ") for fault in faults)
    done = subprocess.run([BIN / "data", "check", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [fault.named for fault in faults]


def test_splits_are_by_identity_and_eighty_ten_ten(tmp_path):
    objects(tmp_path, identities=40)
    path = tmp_path / "manifest.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in r.items() if k != "split"}) + "\n"
                            for r in rows))  # fmt: skip
    assert dataset.assign_splits(tmp_path, None, seed=3) == {"train": 32, "val": 4, "test": 4}
    assert manifest.inspect(tmp_path) == []
    first = path.read_bytes()
    dataset.assign_splits(tmp_path, None, seed=3)
    assert path.read_bytes() == first
    held = [e.object_type for e in manifest.read(tmp_path).examples
            if e.split != "train" and e.severity == "pristine"]  # fmt: skip
    assert len(set(held)) == len(held)  # as many types as can be


def test_review_sample_and_agreement(sound, tmp_path):
    rows = review.sample(sound, 40, seed=1)
    assert len(rows) == 40 and len({r.path for r in rows}) == 40
    counts = np.array([sum(r.severity == level for r in rows) for level in LEVELS])
    assert counts.min() == counts.max() == 8
    assert review.sample(sound, 40, seed=1) == rows
    sheet, page = review.write_sheet(sound, rows, tmp_path)
    text = sheet.read_text()
    assert page.read_text().count("<figure>") == 40
    for name, every in (("a", 10), ("b", 5)):
        lines = text.splitlines()
        done = [lines[0]] + [
            line + ("reject" if k % every == 0 else "accept") for k, line in enumerate(lines[1:])
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(done) + "\n")
    found = review.compare(tmp_path / "a.csv", tmp_path / "b.csv")
    assert found.agreement == pytest.approx(36 / 40)
    # a rejects 4, b 8, both 4: expected agreement .9 * .8 + .1 * .2
    assert found.kappa == pytest.approx((0.9 - 0.74) / (1 - 0.74))
    assert found.kappa_low < found.kappa < found.kappa_high
    with pytest.raises(FaultsError, match="not accept or reject"):
        review.read_verdicts(sheet)
    (tmp_path / "c.csv").write_text("path,verdict\nother.png,accept\n")
    with pytest.raises(UserError, match="different images"):
        review.compare(tmp_path / "a.csv", tmp_path / "c.csv")


def test_kappa_by_hand():
    first = ["accept"] * 20 + ["reject"] * 5 + ["accept"] * 10 + ["reject"] * 15
    second = ["accept"] * 20 + ["accept"] * 5 + ["reject"] * 10 + ["reject"] * 15
    # The textbook table 20/5/10/15: observed .7, expected .5, kappa .4
    assert agreement(first, second).kappa == pytest.approx(0.4)
    same = agreement(["accept"] * 4, ["accept"] * 4)
    assert same.agreement == 1.0 and np.isnan(same.kappa) and same.kappa_low is None
    with pytest.raises(ValueError):
        agreement(["accept"], [])


def test_coco_round_trip(tmp_path):
    data = scenes(tmp_path / "scenes")
    count = dataset.export_coco(data.folder, tmp_path / "out.json")
    raw = json.loads((tmp_path / "out.json").read_text())
    assert count == len(raw["annotations"]) == 16
    names = {c["id"]: c["name"] for c in raw["categories"]}
    assert names[62] == "chair" and max(names) > 1000  # COCO's own id, and a type without one
    again = coco.read(raw, data.folder)
    assert [row.boxes for row in again] == [row.boxes for row in data.scenes]
    assert [row.severity for row in again] == [row.severity for row in data.scenes]


@pytest.mark.parametrize("ids", [(0, 1, 2), (1, 5, 90), ("a", "b", "c")])
def test_foreign_coco_files(tmp_path, ids):
    """Ids from 0, with gaps, as text; no `info`; an image turned by EXIF (handed cases 2, 6)."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20), (200, 0, 0)).save(tmp_path / "turned.jpg", exif=exif)
    raw = {
        "images": [{"id": 0, "file_name": "turned.jpg", "width": 40, "height": 20}],
        "categories": [
            {"id": ids[0], "name": "chair"},
            {"id": ids[1], "name": "gas cylinder"},
            {"id": ids[2], "name": "unheard of"},
        ],
        "annotations": [
            {"id": k, "image_id": 0, "category_id": i, "bbox": [0, 0, 20, 40]}
            for k, i in enumerate(ids)
        ],
    }
    (scene,) = coco.read(raw, tmp_path)
    assert (scene.width, scene.height) == (20, 40)
    assert [(b.object_type, b.coco) for b in scene.boxes] == [
        ("chair", "chair"), ("gas_cylinder", ""), ("unheard_of", ""),
    ]  # fmt: skip
    raw["annotations"] += [
        {"id": 7, "image_id": 5, "category_id": ids[0], "bbox": [0, 0, 1, 1]},
        {"id": 8, "image_id": 0, "category_id": "none", "bbox": [0, 0, 1, 1]},
        {"id": 9, "image_id": 0, "category_id": ids[0], "bbox": [0, 0, 40, 20]},
    ]
    with pytest.raises(FaultsError) as caught:
        coco.read(raw, tmp_path)
    assert len(caught.value.faults) == 3


def test_statistics_pages(sound, tmp_path):
    page = statistics.write(manifest.read(sound), tmp_path / "objects.html").read_text()
    assert "Table 6" in page and page.count("<img") > 40 and "http" not in page
    data = scenes(tmp_path / "scenes")
    page = statistics.write(data, tmp_path / "scenes.html").read_text()
    assert "COCO categories" in page and "chair" in page
    assert "Part of the object that is seen" in page


def test_bars_of_a_page():
    found = statistics.shares([0, 5, 9.9, 10, 100], range(0, 101, 10), "%")
    assert [(bar.label, bar.value) for bar in found][:2] == [("0 to 10%", 3), ("10 to 20%", 1)]
    assert found[-1].value == 1 and sum(bar.value for bar in found) == 5
    many = {f"type_{k:02d}": 100 - k for k in range(50)}
    shown = statistics.counted(many, {"type_00": "paper: 7"})
    assert (shown[0].label, shown[0].note) == ("type 00", "paper: 7") and len(shown) == 41
    assert shown[-1].label == "10 more" and "51 to 60 each" in shown[-1].note


def test_corruptions_keep_size_and_change_the_picture():
    from trace_jax.report import corruptions

    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (40, 60, 3), dtype=np.uint8))
    for name, change in corruptions.CORRUPTIONS.items():
        spoiled = change(image)
        assert spoiled.size == image.size and spoiled.mode == "RGB", name
        assert np.abs(np.asarray(spoiled, int) - np.asarray(image, int)).mean() > 5, name
        assert spoiled.tobytes() == change(image).tobytes(), name  # the same every time


def test_order_of_rows_does_not_matter_to_faults(sound, tmp_path):
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "manifest.jsonl"
    lines = path.read_text().splitlines()
    random.Random(0).shuffle(lines)
    path.write_text("\n".join(lines) + "\n")
    assert manifest.inspect(tmp_path) == []


def test_faults_of_a_manifest_to_split(tmp_path):
    path = tmp_path / "manifest.jsonl"
    path.write_bytes(b'{"identity": "a"}\n{\n[1]\n{"identity": 3}\n\n{"path": "x"}\n\xff\n')
    with pytest.raises(FaultsError) as caught:
        dataset.assign_splits(tmp_path, None)
    lines = [fault.split(": ")[0] for fault in caught.value.faults]
    assert lines == [f"manifest.jsonl:{n}" for n in (2, 3, 4, 6, 7)]
    path.write_text("\n")
    with pytest.raises(FaultsError, match="has no rows"):
        dataset.assign_splits(tmp_path, None)


def test_the_papers_split(tmp_path):
    """499 identities of 189 types: 399, 50 and 50, no identity in two, held-out types apart."""
    rows = [
        {"identity": row.name, "object_type": row.object_type, "severity": state}
        for row in taxonomy.load().identities
        for state in ("pristine", *LEVELS)
    ]
    path = tmp_path / "manifest.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert dataset.assign_splits(tmp_path, None, seed=1) == {"train": 399, "val": 50, "test": 50}
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(told) == 2994
    splits = {row["identity"]: set() for row in told}
    for row in told:
        splits[row["identity"]].add(row["split"])
    assert all(len(found) == 1 for found in splits.values())
    # Another seed, another split; one seed, one split.
    first = path.read_bytes()
    dataset.assign_splits(tmp_path, None, seed=2)
    assert path.read_bytes() != first
    dataset.assign_splits(tmp_path, None, seed=1)
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("path,verdict\n", "no line but the header"),
        ("path,verdict\na.png,accept\na.png,reject\n", "a.png stands twice"),
        ("path,verdict\na.png\n", "is not accept or reject"),
        ("verdict,path\naccept\n", "has no path"),
        ("path,opinion\na.png,accept\n", "needs columns path and verdict"),
    ],
)
def test_reviews_that_are_none(tmp_path, text, wanted):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UserError, match=wanted):
        review.read_verdicts(tmp_path / "a.csv")
