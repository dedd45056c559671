"""The vocabulary: counts, closure, and what a damaged copy is refused for."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from trace_jax import taxonomy
from trace_jax.errors import FaultsError, UserError

FOLDER = Path(taxonomy.__file__).parent


def test_counts_and_groups():
    known = taxonomy.load()
    assert len(known.materials) == 11
    assert len(known.functions) == 20
    assert len(known.object_types) >= 32
    assert {known.group_of(t) for t in known.object_types} == {"hazard", "everyday"}
    assert known.group_of("gas_cylinder") == "hazard"
    assert known.group_of("teddy_bear") == "everyday"
    named_by_paper = {
        "seating", "lighting", "cooking_appliance", "food_storage", "general_storage",
        "safety_equipment", "communication_device",
    }  # fmt: skip
    assert named_by_paper < set(known.functions)


def test_every_function_and_material_is_used():
    known = taxonomy.load()
    assert {f for t in known.types.values() for f in t.functions} == set(known.functions)
    used = {m for t in known.types.values() for made in t.parts.values() for m in made}
    assert used == set(known.materials)


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


def test_unknown_type_is_a_user_error():
    with pytest.raises(UserError, match="spaceship"):
        taxonomy.load().group_of("spaceship")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for path in FOLDER.rglob("*.toml"):
        target = tmp_path / path.relative_to(FOLDER)
        target.parent.mkdir(exist_ok=True)
        shutil.copy(path, target)
    return tmp_path


def test_a_copy_reads_alike(copy: Path):
    assert taxonomy.read(copy).object_types == taxonomy.load().object_types


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("object_types/hazards.toml", 'group = "hazard"', 'group = "danger"', "group 'danger'"),
        ("object_types/hazards.toml", '"fuel_storage"', '"fuel"', "unknown function 'fuel'"),
        (
            "object_types/kitchen.toml",
            '["ceramic", "glass", "metal"]',
            '["bone"]',
            "material 'bone'",
        ),
        (
            "object_types/medical_tools.toml",
            'functions = ["tool"]',
            "functions = []",
            "0 function tags",
        ),
        ("severity.toml", "deformation = [0.15, 0.30]", "deformation = [0.3, 0.15]", "L1.deform"),
        ("severity.toml", "soot_coverage = [0.30, 0.45]", "soot_coverage = [0.8, 0.9]", "one way"),
        ("severity.toml", "[levels.L4]", "[levels.L5]", "must be L0..L4"),
        ("materials.toml", "[gemstone]\nfailure_order = 9", "[gem]\nfailure_order = 1", "order"),
        ("functions.toml", "decoration =", "adornment =", "unknown function 'decoration'"),
    ],
)
def test_damage_is_found(copy: Path, file: str, old: str, new: str, message: str):
    text = (copy / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new))
    with pytest.raises(FaultsError, match=message):
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
