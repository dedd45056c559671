"""The vocabulary: counts, closure, and what a damaged copy is refused for."""

from __future__ import annotations

import collections
import dataclasses
import re
import shutil
import time
from copy import deepcopy as copy_of
from pathlib import Path

import pytest

from trace_jax import taxonomy
from trace_jax.errors import FaultsError, UserError
from trace_jax.synthesis.procedural import palette, recipes
from trace_jax.taxonomy import __main__ as command
from trace_jax.taxonomy import checks, reading

FOLDER = Path(taxonomy.__file__).parent


def test_counts_and_groups():
    known = taxonomy.load()
    assert known.name == "trace-1"
    for name, wanted in checks.COUNTS.items():
        assert len(getattr(known, name)) == len(set(map(str, getattr(known, name)))) == wanted, name
    assert {known.group_of(t) for t in known.object_types} == {"hazard", "everyday"}
    assert known.group_of("gas_cylinder") == "hazard"
    assert known.group_of("teddy_bear") == "everyday"
    named_by_paper = {
        "seating", "lighting", "cooking_appliance", "food_storage", "general_storage",
        "safety_equipment", "communication_device",
    }  # fmt: skip
    assert named_by_paper < set(known.functions)
    assert {"residential", "commercial", "institutional", "outdoor"} == set(known.environments)


def test_every_function_and_material_is_used():
    known = taxonomy.load()
    assert {f for t in known.types.values() for f in t.functions} == set(known.functions)
    used = {m for t in known.types.values() for m in t.materials}
    assert used == set(known.materials)


def test_coco():
    known = taxonomy.load()
    assert known.coco_of("sofa") == "couch"
    assert known.coco_of("television") == "tv"
    assert known.coco_of("gas_cylinder") is None
    assert "gas_cylinder" in known.types_without_coco
    assert {known.coco_of(t) for t in known.object_types} - {None} == set(known.coco_categories)
    # Spot checks against COCO's own list: its ids run to 90 with ten left out.
    assert known.coco_id("person") == 1
    assert known.coco_id("stop sign") == 13
    assert known.coco_id("dining table") == 67
    assert known.coco_id("toothbrush") == 90
    unused = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
    assert set(known.coco_ids.values()) == set(range(1, 91)) - unused
    assert len(known.coco_excluded) == 25 and all(known.coco_excluded.values())
    assert known.coco_ids.keys() == {*known.coco_categories, *known.coco_excluded}
    with pytest.raises(UserError, match="spaceship"):
        known.coco_id("spaceship")


def test_scene_types():
    known = taxonomy.load()
    assert tuple(known.scene_type_of) == known.scene_types
    for row in known.scene_type_of.values():
        assert row.environment in known.environments and row.phrase and row.title
        assert len(set(row.objects)) == len(row.objects) >= 6
        for kind in row.objects:
            assert row.environment in known.types[kind].environments, (row.name, kind)


def test_identities():
    known = taxonomy.load()
    counts = collections.Counter(row.object_type for row in known.identities)
    assert set(counts) == set(known.object_types)
    assert set(counts.values()) <= {2, 3, 4}
    for row in known.identities:
        assert set(row.colourway) <= set(palette.COLOURS), row.name
        assert row.materials.keys() == known.types[row.object_type].parts.keys()
    looks = {(r.object_type, r.style) for r in known.identities}
    assert len(looks) == len(known.identities)


def test_identities_are_made_of_what_their_manufacturing_says():
    known = taxonomy.load()
    for row in known.identities:
        said = {known.normalise_material(word) for word in re.findall(r"[a-z]+", row.manufacturing)}
        assert said - {None} <= set(row.materials.values()), (row.name, row.manufacturing)


def test_every_type_has_a_recipe_with_its_parts():
    known = taxonomy.load()
    assert tuple(recipes.load()) == known.object_types


def test_types_are_described():
    known = taxonomy.load()
    for row in known.types.values():
        assert len(row.synonyms) >= 1, row.name
        assert row.failure.endswith("."), row.name
        assert 0 < row.size_m[0] < row.size_m[1] <= 10, row.name
    failures = [row.failure for row in known.types.values()]
    assert len(set(failures)) == len(failures)


def test_frozen():
    known = taxonomy.load()
    with pytest.raises(dataclasses.FrozenInstanceError):
        known.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        known.types["mug"] = None  # type: ignore[index]
    assert known is taxonomy.load()


def test_severity_is_table_6():
    known = taxonomy.load()
    assert [level.name for level in known.severity] == ["L0", "L1", "L2", "L3", "L4"]
    assert known.severity[0].ranges["soot_coverage"] == (0.30, 0.45)
    assert known.severity[2].ranges["surface_failure"] == (0.25, 0.40)
    assert known.severity[3].ranges["deformation"] == (0.55, 0.75)
    assert known.severity[4].ranges["structural_integrity"] == (0.04, 0.13)
    assert set(known.metrics) == set(taxonomy.METRICS)
    assert all("/" in text or "mean over" in text for text in known.metrics.values())
    assert len({level.description for level in known.severity}) == 5
    assert len(known.failure_steps) == 9 == max(known.failure_order.values())
    assert known.failure_order["paper"] == 1 and known.failure_order["gemstone"] == 9


def test_unknown_type_is_a_user_error():
    with pytest.raises(UserError, match="spaceship"):
        taxonomy.load().group_of("spaceship")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for path in [*FOLDER.rglob("*.toml"), FOLDER / "identities.jsonl"]:
        target = tmp_path / path.relative_to(FOLDER)
        target.parent.mkdir(exist_ok=True)
        shutil.copy(path, target)
    return tmp_path


def test_a_copy_reads_alike(copy: Path):
    (copy / "object_types" / ".hidden.toml").write_text("= nothing")
    assert taxonomy.read(copy) == taxonomy.load()


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("object_types/hazards.toml", 'group = "hazard"', 'group = "danger"', "group 'danger'"),
        ("object_types/hazards.toml", '"fuel_storage"', '"fuel"', "unknown function 'fuel'"),
        ("object_types/kitchen.toml", '["ceramic", "glass", "metal"]', '["bone"]', "rial 'bone'"),
        ("object_types/kitchen.toml", 'coco = "cup"', 'coco = "cups"', "mug: coco 'cups'"),
        ("object_types/kitchen.toml", 'coco = "cup"\n', "", "no type has the COCO category 'cup'"),
        ("object_types/kitchen.toml", "size_m = [0.08, 0.13]", "size_m = [0.1, 99]", "mug: size_m"),
        ("object_types/kitchen.toml", "[mug]", "[mug2]", "mug-001.*|type 'mug' is unknown"),
        ("object_types/kitchen.toml", "failure =", "failures =", "unknown field 'failures'"),
        ("object_types/kitchen.toml", 'placement = ["surface"]\n', "", "mug has no placement"),
        ("object_types/kitchen.toml", "[mug]", "[sofa]", "kitchen.toml: sofa is defined twice"),
        ("object_types/kitchen.toml", '"coffee mug"', '"couch"', "claimed by sofa and mug"),
        ("object_types/medical_tools.toml", 'functions = ["tool"]', "functions = []", "functions"),
        ("object_types/home.toml", 'placement = ["floor"]', 'placement = ["sky"]', "'sky'"),
        ("object_types/home.toml", '"residential"', '"lunar"', "lunar"),
        ("severity.toml", "deformation = [0.15, 0.30]", "deformation = [0.3, 0.15]", "L1.deform"),
        ("severity.toml", "soot_coverage = [0.30, 0.45]", "soot_coverage = [0.8, 0.9]", "one way"),
        ("severity.toml", "[levels.L4]", "[levels.L5]", "must be L0..L4"),
        ("severity.toml", "description =", "text =", "L0: unknown field 'text'"),
        ("materials.toml", "[gemstone]\nfailure_order = 9", "[gem]\nfailure_order = 1", "order"),
        ("materials.toml", '"pine"', '"cotton"', "'cotton' is claimed by fabric and wood"),
        ("functions.toml", "[decoration]", "[adornment]", "unknown function 'decoration'"),
        ("functions.toml", '"home decor"', '"seat"', "'seat' is claimed by seating and decor"),
        ("words.toml", "articles = [", "article = [", "unknown field 'article'"),
        ("words.toml", "plural_only = [", "#", "type has no plural_only"),
        ("coco.toml", "bicycle = 2", "bicycle = 3", "id 3 stands 2 times"),
        ("coco.toml", "bicycle = 2\n", "", "54 coco categories, the paper has 55"),
        (
            "coco.toml",
            'reason = "not an object',
            'why = "not an object',
            "unknown field 'why'",
        ),
        ("scenes.toml", 'environment = "outdoor"', 'environment = "space"', "'space' is unknown"),
        ("scenes.toml", '["sofa", ', '["throne", ', "object 'throne' is not a type"),
        ("scenes.toml", "[scene_types.kitchen]", "[scene_types.gym]", "is not readable TOML"),
        ("identities.jsonl", '"mug-001"', '"mug-007"', "the 1. mug is mug-001"),
        ("identities.jsonl", '"object_type": "mug"', '"object_type": "jug"', "'jug' is unknown"),
        ("identities.jsonl", '{"name": "mug-001"', '["mug-001"', "is not JSON"),
        ("identities.jsonl", '"body": "glass"', '"body": "wood"', "body of 'wood' is not one of"),
    ],
)
def test_damage_is_found(copy: Path, file: str, old: str, new: str, message: str):
    text = (copy / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new))
    with pytest.raises(UserError, match=message):
        taxonomy.read(copy)


def test_several_faults_come_together(copy: Path):
    path = copy / "object_types" / "hazards.toml"
    path.write_text(path.read_text().replace('group = "hazard"', 'group = "x"'))
    with pytest.raises(FaultsError) as caught:
        taxonomy.read(copy)
    assert len(caught.value.faults) > 5


def test_missing_and_broken_files(copy: Path):
    (copy / "functions.toml").write_text("= nothing")
    with pytest.raises(UserError, match=r"functions\.toml: is not readable TOML"):
        taxonomy.read(copy)
    (copy / "functions.toml").unlink()
    with pytest.raises(UserError, match="not found"):
        taxonomy.read(copy)


def test_a_users_own_short_list(copy: Path):
    for path in (copy / "object_types").glob("*.toml"):
        if path.name != "kitchen.toml":
            path.unlink()
    (copy / "identities.jsonl").write_text("")
    with pytest.raises(FaultsError, match="the paper has 189"):
        taxonomy.read(copy)
    own = taxonomy.read(copy, {})
    assert "mug" in own.types and "sofa" not in own.types
    assert all(set(row.objects) <= set(own.types) for row in own.scene_type_of.values())


def test_command(copy: Path, capsys: pytest.CaptureFixture[str]):
    assert command.main([]) == 0
    assert "  189 object types" in capsys.readouterr().out
    (copy / "coco.toml").unlink()
    assert command.main([str(copy)]) == 1
    assert "not found" in capsys.readouterr().out


def test_loading_is_fast():
    # 50 ms on the build machine; the bound is loose for a busy one.
    start = time.process_time()
    taxonomy.read(FOLDER)
    assert time.process_time() - start < 0.5


@pytest.mark.parametrize("junk", [None, float("nan"), [], ["x", 3], {"a": 1}])
def test_junk_in_any_place_is_a_fault_not_a_crash(junk: object):
    tables, _ = reading.read_tables(FOLDER)
    places = [
        ("words", "function"), ("words", "type"), ("materials", "wood"), ("functions", "tool"),
        ("materials", "wood", "includes"), ("materials", "wood", "failure_order"),
        ("severity", "levels"), ("severity", "levels", "L0", "deformation"),
        ("severity", "failure_order"), ("coco", "mapped"), ("coco", "excluded", "person"),
        ("coco", "mapped", "bicycle"), ("scenes", "scene_types", "kitchen"),
        ("scenes", "scene_types", "kitchen", "environment"), ("object_types", "mug"),
        ("object_types", "mug", "parts"), ("object_types", "mug", "parts", "body"),
        ("object_types", "mug", "size_m"), ("object_types", "mug", "coco"), ("identities", 0),
        ("identities", 0, "materials"), ("identities", 0, "colourway"),
    ]  # fmt: skip
    for *path, last in places:
        damaged = {**tables, path[0]: copy_of(tables[path[0]])}
        node = damaged
        for key in path:
            node = node[key]
        node[last] = junk
        faults = checks.shape_faults(damaged) or checks.content_faults(damaged, checks.COUNTS)
        assert faults, (path, last)
