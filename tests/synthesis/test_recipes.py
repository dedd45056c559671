"""Recipes: every type builds sound meshes; expressions and faults."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from trace_jax import taxonomy
from trace_jax.errors import FaultsError
from trace_jax.synthesis.procedural import palette, recipes
from trace_jax.synthesis.procedural.expressions import ExpressionError, evaluate, names_in
from trace_jax.synthesis.procedural.mesh import vertex_areas, vertex_normals

FOLDER = Path(recipes.__file__).parent / "recipes"


@pytest.mark.parametrize("name", taxonomy.load().object_types)
def test_every_recipe_builds(name: str):
    kind = taxonomy.load().type(name)
    looks = set()
    for seed in range(3):
        mesh, _ = recipes.build(recipes.load()[name], np.random.default_rng(seed))
        assert np.isfinite(mesh.points).all() and np.isfinite(mesh.uv).all()
        assert np.isfinite(mesh.table).all()
        assert mesh.faces.min() >= 0 and mesh.faces.max() < len(mesh.points)
        assert mesh.weld.max() < len(mesh.points)
        assert mesh.points[:, 2].min() == pytest.approx(0, abs=1e-6)
        assert 200 < len(mesh.faces) < 20_000
        assert 0.4 < mesh.diagonal < 3.0
        assert vertex_areas(mesh.points, mesh.faces).sum() > 0
        normals = vertex_normals(mesh.points, mesh.faces, mesh.weld)
        np.testing.assert_allclose(np.linalg.norm(normals, axis=1), 1, atol=1e-4)
        for part, finish in zip(mesh.parts, mesh.finishes, strict=True):
            assert finish.material in kind.parts[part]
        looks.add((tuple(np.round(np.ptp(mesh.points, axis=0), 3)), mesh.table.tobytes()))
    assert len(looks) == 3


def test_materials_stand_in_the_taxonomys_order():
    assert palette.MATERIALS == taxonomy.load().materials


def test_expressions():
    names = {"w": 2.0, "style": "round"}
    assert evaluate("w/2 - 1", names) == 0
    assert evaluate(["w", "1 if style=='round' else 2"], names) == [2.0, 1]
    assert names_in("cos(tau*i/n)") == {"i", "n"}


@pytest.mark.parametrize(
    "text", ["__import__('os')", "w.real", "[w]", "lambda: 1", "max(w, key=1)", "w +", "f'{w}'"]
)
def test_expressions_are_arithmetic_only(text: str):
    with pytest.raises(ExpressionError):
        evaluate(text, {"w": 1.0})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[mug]", "[mugg]", "mugg: is not a type"),
        ('part = "lid", shape', 'part = "cover", shape', "part 'cover' is not in the taxonomy"),
        ('shape = "loft"', 'shape = "loaf"', "unknown shape 'loaf'"),
        ('"r*flare-t"', '"q*flare-t"', "unknown 'q'"),
        ('"rings"', '"swirls"', "unknown pattern 'swirls'"),
        ('slot = "second"', 'slot = "fourth"', "unknown colour slot 'fourth'"),
        ("size = [", "sizes = [", "needs 'size'"),
    ],
)
def test_faults_of_recipes(tmp_path: Path, old: str, new: str, message: str):
    for path in FOLDER.glob("*.toml"):
        shutil.copy(path, tmp_path)
    path = tmp_path / "kitchen.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(FaultsError, match=message):
        recipes.read(tmp_path, taxonomy.load())
