"""Scenes: truth equals the picture, severities share a layout, runs repeat and resume exactly."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from trace_jax import taxonomy
from trace_jax.data import manifest
from trace_jax.errors import UserError
from trace_jax.runs import rendering, scenes
from trace_jax.synthesis.procedural.render import SUPERSAMPLING
from trace_jax.synthesis.procedural.scenes import (
    SceneRequest,
    inventory,
    layout,
    places,
    props,
    render_scene,
    room,
    scene,
    scene_type_of,
    view,
)
from trace_jax.types import LEVELS, PRISTINE

SMALL = {"width": 128, "height": 96}
CONFIG = scenes.ScenesConfig(
    "few", "1.0.0", 0, 128, 96, "png", 90,
    (scenes.SceneSeries("test", "test", 2, (PRISTINE, "L2")),),
)  # fmt: skip


@pytest.fixture(scope="module")
def pictures():
    return render_scene(SceneRequest("sample", 0, **SMALL, severities=(PRISTINE, "L0", "L4")))


def test_boxes_are_those_of_the_pixels(monkeypatch):
    owners = []
    look = scene.look

    def watched(*args):
        seen = look(*args)
        owners.append(seen.owner)
        return seen

    monkeypatch.setattr(scene, "look", watched)
    (picture,) = render_scene(SceneRequest("sample", 3, **SMALL, severities=("L2",)))
    (owner,) = owners
    assert owner.shape == (96 * SUPERSAMPLING, 128 * SUPERSAMPLING)
    inventory = picture.generation["intended_inventory"]
    assert 1 <= len(picture.boxes) <= len(inventory)
    found = []
    for number in range(1, len(inventory) + 1):
        rows, columns = np.nonzero(owner == number)
        if len(rows):
            x, y = columns.min() / SUPERSAMPLING, rows.min() / SUPERSAMPLING
            found.append((x, y, (columns.max() + 1) / SUPERSAMPLING - x,
                          (rows.max() + 1) / SUPERSAMPLING - y))  # fmt: skip
    assert {box.box for box in picture.boxes} <= set(found)
    for box in picture.boxes:
        x, y, w, h = box.box
        assert x >= 0 and y >= 0 and x + w <= 128 and y + h <= 96 and w > 0 and h > 0
        assert scene.LEAST_VISIBLE <= box.visible <= 1


def test_severities_share_one_layout(pictures):
    assert [p.severity for p in pictures] == [PRISTINE, "L0", "L4"]
    assert len({p.layout for p in pictures}) == 1
    pristine, mild, severe = pictures
    assert pristine.generation == severe.generation
    before = {box.identity: box.box for box in pristine.boxes}
    moved = [
        np.abs(np.array(box.box) - before[box.identity]).max()
        for box in mild.boxes
        if box.identity in before
    ]
    assert moved and np.median(moved) < 8  # L0 leaves things where they were
    darkness = [p.pixels.mean() for p in pictures]
    assert darkness[0] > darkness[1] > darkness[2]
    assert all(box.state == "intact" for box in pristine.boxes)
    assert any(box.state != "intact" for box in severe.boxes)
    assert "after a fire" in severe.caption and "after a fire" not in pristine.caption


def test_labels_are_the_vocabularys(pictures):
    known = taxonomy.load()
    for picture in pictures:
        assert known.scene_type_of[picture.scene_type].environment == picture.environment
        for box in picture.boxes:
            assert box.coco == (known.coco_of(box.object_type) or "")
            assert set(box.materials) <= set(known.materials)


def test_every_scene_type_once_before_any_twice():
    types = taxonomy.load().scene_types
    assert sorted(scene_type_of(k) for k in range(len(types))) == sorted(types)


def test_a_render_depends_on_its_request_alone(pictures):
    (again,) = render_scene(SceneRequest("sample", 0, **SMALL, severities=("L4",)))
    severe = pictures[2]
    assert np.array_equal(again.pixels, severe.pixels)
    assert (again.boxes, again.caption, again.generation) == (
        severe.boxes, severe.caption, severe.generation,
    )  # fmt: skip
    (other,) = render_scene(SceneRequest("sample", 0, 1, **SMALL, severities=("L4",)))
    assert not np.array_equal(other.pixels, severe.pixels)


@pytest.mark.parametrize("index", range(0, 30, 6))
def test_layouts_hold_four_to_twelve_objects_in_their_place(index):
    kind = taxonomy.load().scene_type_of[scene_type_of(index)]
    rng = np.random.default_rng(index)
    place = room.make_room(kind.name, kind.environment, rng)
    shot = view.make_view(place, 192, 192, rng)
    items = layout.arrange(place, shot, kind.name, "sample", 0, rng)
    assert inventory.FEWEST <= len(items) <= inventory.MOST
    for item in items:
        assert abs(item.x) <= place.width / 2 and abs(item.y) <= place.depth / 2 + 0.3
        if item.place == "floor":
            assert item.height == 0.0 and item.support == -1
        if item.support >= 0:
            assert items[item.support].place == "floor"
    floor = [item for item in items if item.place == "floor"]
    for k, one in enumerate(floor):
        for other in floor[:k]:
            assert abs(one.x - other.x) > 0.2 or abs(one.y - other.y) > 0.2


def test_scenes_meet_every_coco_category():
    known = taxonomy.load()
    rng = np.random.default_rng(0)
    found = set()
    for number in range(240):
        found |= {
            known.coco_of(name) for name in inventory.draw_types(scene_type_of(number), 9, rng)[:9]
        }
    assert found - {None} == set(known.coco_categories)


def test_fire_is_worst_high_up_and_near_its_origin():
    place = room.make_room("bedroom", "residential", np.random.default_rng(3))
    here = np.tile(place.origin, (3, 1))
    far = here + np.array([-np.sign(place.origin[0]) * place.width, 0, 0])
    heights = np.array([0.1, 1.2, 2.2])
    here[:, 2] = far[:, 2] = heights
    near, away = room.hotness(place, here), room.hotness(place, far)
    assert (near > away).all() and away[2] > away[0]
    dark = [float(room.film(place, level).mean()) for level in range(5)]
    assert dark == sorted(dark) and dark[0] > 0 and not room.film(place, None).any()


def test_every_scene_type_has_a_place():
    assert set(places.places()) == set(taxonomy.load().scene_types)
    for place in places.places().values():
        assert set(place.props) <= set(props.PROPS)
        assert {*place.floor, *place.wall, place.ceiling} <= set(places.surfaces())


def test_splits_share_no_identity():
    found = {}
    for series in ("train", "val", "test"):
        (picture,) = render_scene(SceneRequest(series, 1, **SMALL, severities=(PRISTINE,)))
        found[series] = {box.identity for box in picture.boxes}
        assert all(f"-{series}-" in name for name in found[series])


def test_a_killed_run_resumes_to_the_same_folder(tmp_path, monkeypatch):
    whole = scenes.run(CONFIG, tmp_path / "whole", workers=1)
    assert whole.rendered == 4 and manifest.inspect(tmp_path / "whole") == []
    write, count = rendering.write_picture, 0

    def dying(path, data):
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        write(path, data)

    monkeypatch.setattr(rendering, "write_picture", dying)
    with pytest.raises(KeyboardInterrupt):
        scenes.run(CONFIG, tmp_path / "broken", workers=1)
    monkeypatch.setattr(rendering, "write_picture", write)
    scenes.run(CONFIG, tmp_path / "broken", workers=1)
    for path in sorted((tmp_path / "whole").rglob("*")):
        if path.is_file():
            twin = tmp_path / "broken" / path.relative_to(tmp_path / "whole")
            assert path.read_bytes() == twin.read_bytes(), path.name
    with pytest.raises(UserError, match="holds another data set"):
        scenes.run(dataclasses.replace(CONFIG, seed=1), tmp_path / "whole", workers=1)


def test_what_cannot_be_rendered_is_refused():
    for changes in ({"width": 64}, {"height": 200}, {"format": "gif"}, {"series": ()}):
        with pytest.raises(UserError):
            dataclasses.replace(CONFIG, **changes).check()
    assert set(LEVELS) < set(scenes.SceneSeries("a", "train", 1).severities)
