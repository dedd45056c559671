"""Rows as JSON and back, whatever they hold (trace_jax/data/{rows,scene_rows}.py)."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_jax.data import manifest, rows
from trace_jax.runs.cache import EMBEDDED_DATA
from trace_jax.types import SEVERITIES, SPLITS, Example, PartMaterial, SceneBox, SceneExample

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
NAME = TEXT.filter(lambda text: text.strip())
PATH = (
    st.lists(
        st.text("aé中 #%.-_0", min_size=1, max_size=6).filter(lambda p: p not in (".", "..")),
        min_size=1,
        max_size=3,
    )
    .map("/".join)
    .filter(str.strip)
)
FRACTION = st.floats(0, 1)
COMMON = {
    "path": PATH,
    "severity": st.sampled_from(SEVERITIES),
    "split": st.sampled_from(SPLITS),
    "caption": TEXT,
    "sha256": st.sampled_from(["", "0123456789abcdef" * 4]),
}
WORDS = st.lists(st.text("abc_", min_size=1, max_size=5), max_size=3).map(tuple)
EXAMPLES = st.builds(
    Example,
    **COMMON,
    identity=NAME,
    object_type=NAME,
    variant=TEXT,
    materials=st.lists(
        st.builds(PartMaterial, part=st.text("ab", min_size=1), material=st.text("cd", min_size=1)),
        max_size=3,
    ).map(tuple),
    functions=WORDS,
    view=st.integers(0, 9),
    draw=st.integers(0, 9),
    metrics=st.dictionaries(TEXT, FRACTION, max_size=3),
    description=TEXT,
    failure_notes=TEXT,
)
BOXES = st.builds(
    SceneBox,
    box=st.tuples(st.floats(0, 50), st.floats(0, 50), st.floats(0.01, 50), st.floats(0.01, 40)),
    object_type=NAME,
    coco=TEXT,
    materials=WORDS,
    state=TEXT,
    visible=FRACTION,
    identity=TEXT,
    crowd=st.booleans(),
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
SCENES = st.builds(
    SceneExample,
    **COMMON,
    layout=NAME,
    environment=TEXT,
    scene_type=TEXT,
    width=st.just(100),
    height=st.just(90),
    boxes=st.lists(BOXES, max_size=3).map(tuple),
    generation=st.dictionaries(TEXT, JSON, max_size=2),
)


@given(EXAMPLES)
def test_objects_come_back(example):
    line = rows.dumps(example)
    assert "\n" not in line and rows.loads(line) == (example, [])
    assert rows.kind_of(json.loads(line)) == "objects"


@given(SCENES)
def test_scenes_come_back(scene):
    line = rows.dumps(scene)
    assert "\n" not in line and rows.loads(line, "scenes") == (scene, [])
    assert rows.kind_of(json.loads(line)) == "scenes"


@given(JSON, st.sampled_from(manifest.KINDS))
def test_any_json_value_is_a_row_or_has_faults(value, kind):
    row, faults = rows.from_json(value, None, kind)
    assert (row is None) == bool(faults)
    assert all(fault.name and str(fault) for fault in faults)


@given(SCENES, st.data())
def test_any_field_of_a_scene_may_be_damaged(scene, data):
    raw = rows.to_json(scene)
    where = data.draw(st.sampled_from(sorted(raw)))
    raw[where] = data.draw(JSON)
    if scene.boxes and data.draw(st.booleans()):
        raw["boxes"] = rows.to_json(scene)["boxes"]
        raw["boxes"][0][data.draw(st.sampled_from(sorted(raw["boxes"][0])))] = data.draw(JSON)
    row, faults = rows.from_json(raw, None, "scenes")
    assert (row is None) == bool(faults)


def test_new_fields_are_left_out_where_empty():
    plain = Example("a.png", "m", "mug", "", "L0", "test")
    assert not {"description", "failure_notes"} & set(rows.to_json(plain))
    told = dataclasses.replace(plain, description="charred", failure_notes="The handle snaps.")
    assert rows.to_json(told)["failure_notes"] == "The handle snaps."


def test_shipped_manifest_keeps_its_bytes():
    data = manifest.read(EMBEDDED_DATA)
    text = "".join(rows.dumps(row) + "\n" for row in data.rows)
    assert text == (EMBEDDED_DATA / manifest.ROWS_FILE).read_text(encoding="utf-8")


SCENE = {
    "path": "a.png", "layout": "one", "environment": "", "scene_type": "", "severity": "L1",
    "split": "test", "width": 40, "height": 30,
}  # fmt: skip
BOX = {"box": [1, 2, 3, 4], "object_type": "mug"}


@pytest.mark.parametrize(
    ("changes", "name", "wanted"),
    [
        ({"layout": " "}, "empty-field", "'layout' is empty"),
        ({"width": 0}, "wrong-type", "'width' must be a whole number from 1, is 0"),
        ({"height": 30.0}, "wrong-type", "'height' must be a whole number"),
        ({"severity": "L7"}, "unknown-severity", "unknown severity 'L7'"),
        ({"identity": "x"}, "unknown-field", "unknown field 'identity'"),
        ({"generation": []}, "wrong-type", "'generation' must be an object"),
        ({"generation": {"a": [float("nan")]}}, "wrong-type", "not finite"),
        ({"boxes": {}}, "wrong-type", "'boxes' must be a list"),
        ({"boxes": ["mug"]}, "wrong-type", "box 0: must be a JSON object"),
        ({"boxes": [{"object_type": "mug"}]}, "missing-field", "box 0: field 'box' is missing"),
        ({"boxes": [BOX, BOX | {"box": [1, 2, 3]}]}, "wrong-type", "box 1: 'box' must be four"),
        ({"boxes": [BOX | {"box": [1, 2, 3, True]}]}, "wrong-type", "must be four finite"),
        ({"boxes": [BOX | {"box": [1, 2, 3, 1e999]}]}, "wrong-type", "must be four finite"),
        ({"boxes": [BOX | {"box": [1, 2, 3, 10**400]}]}, "wrong-type", "must be four finite"),
        ({"boxes": [BOX | {"visible": 10**400}]}, "outside-0-1", "must lie in 0-1"),
        ({"boxes": [BOX | {"box": [1, 2, 0, 4]}]}, "box-empty", "box 0: [1, 2, 0, 4] has no area"),
        ({"boxes": [BOX | {"box": [1, 2, 3, -4]}]}, "box-empty", "has no area"),
        ({"boxes": [BOX | {"box": [-1, 2, 3, 4]}]}, "box-outside", "outside the image of 40 x 30"),
        ({"boxes": [BOX | {"box": [1, 2, 39.5, 4]}]}, "box-outside", "outside"),
        ({"boxes": [BOX | {"visible": 1.01}]}, "outside-0-1", "'visible' must lie in 0-1"),
        ({"boxes": [BOX | {"crowd": 1}]}, "wrong-type", "'crowd' must be true or false"),
        ({"boxes": [BOX | {"materials": "wood"}]}, "wrong-type", "'materials' must be a list"),
        ({"boxes": [BOX | {"colour": "red"}]}, "unknown-field", "box 0: unknown field 'colour'"),
    ],
)
def test_faults_of_scenes(changes, name, wanted):
    row, faults = rows.from_json(SCENE | changes, None, "scenes")
    assert row is None and [fault.name for fault in faults] == [name], faults
    assert wanted in faults[0]


def test_a_box_may_stand_over_the_edge_by_rounding():
    scene, faults = rows.from_json(
        SCENE | {"boxes": [BOX | {"box": [0, 0, 40.005, 30]}]}, None, "scenes"
    )
    assert not faults and scene.boxes[0].box == (0.0, 0.0, 40.005, 30.0)
