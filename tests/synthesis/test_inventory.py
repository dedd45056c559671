"""The taxonomy's identities rendered: materials and colourways kept, split, resumption, words."""

from __future__ import annotations

import collections
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from configs import trace_objects
from trace_jax import taxonomy
from trace_jax.data import manifest
from trace_jax.runs import generate, rendering
from trace_jax.runs.inventory import split_inventory
from trace_jax.synthesis import procedural
from trace_jax.synthesis.procedural import captions, palette, recipes, world
from trace_jax.types import LEVELS, SPLITS

KNOWN = taxonomy.load().identities


def _request(index: int, **changes) -> procedural.Request:
    return procedural.Request(world.INVENTORY, index, size=64, **changes)


def _config(identities: int) -> generate.GenerateConfig:
    return generate.from_sizes(
        "inventory", identities, [], engine="procedural", kind="objects", seed=0, size=64,
        views=1, draws=1, format="webp", quality=85,
    )  # fmt: skip


def _bytes(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


@pytest.mark.parametrize("index", range(0, len(KNOWN), 7))
def test_identity_is_made_of_what_its_row_says(index: int):
    row, made = KNOWN[index], world.make_identity(_request(index))
    assert (made.name, made.object_type) == (row.name, row.object_type)
    for part, finish in zip(made.mesh.parts, made.mesh.finishes, strict=True):
        assert finish.material == row.materials[part], (row.name, part)
    assert row.style in made.variant and row.manufacturing in made.variant
    assert all(colour in made.variant for colour in row.colourway)


def test_colourways_are_words_of_the_palette():
    words = {*palette.COLOURS, *palette.WOODS, *palette.METALS, *palette.GLASSES}
    assert {colour for row in KNOWN for colour in row.colourway} <= words


def test_build_keeps_given_materials_and_colours():
    recipe = recipes.load()["mug"]
    parts = taxonomy.load().types["mug"].parts
    for material in parts["body"]:
        for colour in ("red", "teal"):
            mesh, _ = recipes.build(
                recipe, np.random.default_rng(4), {"body": material}, (colour, "white")
            )
            body = mesh.finishes[mesh.parts.index("body")]
            assert body.material == material
            if material in ("ceramic", "plastic"):  # metal may show itself
                assert body.colour == colour


def test_pictures_carry_the_levels_words():
    shown = procedural.pictures(_request(3, levels=LEVELS))
    kind = taxonomy.load().types[shown[0].object_type]
    assert shown[0].description == ""
    assert len({p.description for p in shown}) == 1 + len(LEVELS)
    titles = {level.name: level.title for level in taxonomy.load().severity}
    for picture in shown:
        assert kind.failure in picture.failure_notes
        assert picture.failure_notes == shown[0].failure_notes
        if picture.severity == "pristine":
            continue
        assert titles[picture.severity] in picture.description
        for material in {m for _, m in picture.materials}:
            assert f"{material} " in picture.description


def test_words_know_every_material_at_every_level():
    known = taxonomy.load()
    for name in known.object_types:
        used = [m for options in known.types[name].parts.values() for m in options]
        said = [captions.describe(name, used, level) for level in LEVELS]
        assert len(set(said)) == len(LEVELS)
        assert known.types[name].failure in captions.failure_notes(name, used)
    # Earliest failing first (paper B.1), whatever the order of parts.
    assert captions.failure_notes("mug", ["metal", "paper", "glass", "paper"]).endswith(
        "Order of failure: paper, glass, metal."
    )
    # Materials of equal rank too: a set's order differs from process to process.
    for materials in (known.materials, known.materials[::-1]):
        assert captions.failure_notes("mug", materials).endswith(
            "Order of failure: paper, fabric, foam, leather, wood, plastic, rubber, glass, "
            "ceramic, metal, gemstone."
        )
    assert captions.describe("mug", ["metal", "wood"], "L3") == captions.describe(
        "mug", ["wood", "metal", "wood"], "L3"
    )


def test_full_size_is_the_papers():
    config = generate.GenerateConfig.from_page(trace_objects.get_config())
    wanted = config.requests()
    assert len(wanted) == len(KNOWN) == 499
    assert {r.index for _, r in wanted} == set(range(499))
    counts = collections.Counter(s.split for s, _ in wanted)
    assert counts == {"train": 399, "val": 50, "test": 50}
    types = [KNOWN[r.index].object_type for _, r in wanted]
    assert set(types) == set(taxonomy.load().object_types)
    assert sum(len(r.views) + len(r.levels) * r.draws for _, r in wanted) == 2994
    # As spread as can be: no type twice among the held out, and training has every one of them.
    held = [KNOWN[r.index].object_type for s, r in wanted if s.split != "train"]
    trained = {KNOWN[r.index].object_type for s, r in wanted if s.split == "train"}
    assert len(set(held)) == len(held) == 100
    assert set(held) <= trained


def test_fewer_and_more_than_the_inventory():
    first = [r.index for _, r in _config(189).requests()]
    assert len({KNOWN[k].object_type for k in first}) == 189
    assert [s.count for s in _config(189).series] == [151, 19, 19]
    more = _config(len(KNOWN) + 20)
    extra = [r for _, r in more.requests() if r.series != world.INVENTORY]
    assert len(extra) == 20 and {r.series for r in extra} == {"train"}
    assert len(more.requests()) == len(KNOWN) + 20


def test_split_depends_on_its_seed_and_shares_nothing():
    splits = [split_inventory(KNOWN, 300, seed) for seed in (0, 0, 1)]
    assert splits[0] == splits[1] != splits[2]
    for split in splits:
        assert [len(split[s]) for s in SPLITS] == [240, 30, 30]
        assert len({k for s in SPLITS for k in split[s]}) == 300


def test_killed_inventory_resumes_to_the_same_bytes(tmp_path, monkeypatch):
    class Kill(BaseException):
        pass

    config = _config(5)
    generate.run(config, tmp_path / "whole", workers=1)
    write, count = rendering.write_picture, 0

    def dying(path: Path, data: bytes) -> None:
        nonlocal count
        if count == 15:  # in the middle of the third identity
            raise Kill
        count += 1
        write(path, data)

    monkeypatch.setattr(rendering, "write_picture", dying)
    with pytest.raises(Kill):
        generate.run(config, tmp_path / "killed", workers=1)
    monkeypatch.setattr(rendering, "write_picture", write)
    assert generate.run(config, tmp_path / "killed", workers=1).rendered == 18
    assert _bytes(tmp_path / "killed") == _bytes(tmp_path / "whole")
    data = manifest.read(tmp_path / "whole")
    assert manifest.check(tmp_path / "whole") == []
    assert {e.identity for e in data.examples} <= {row.name for row in KNOWN}
    assert all(e.failure_notes for e in data.examples)
    assert all(bool(e.description) == (e.severity != "pristine") for e in data.examples)


@pytest.mark.slow
def test_two_processes_render_the_inventory_alike(tmp_path):
    config = dataclasses.replace(_config(6), series=_config(6).series[:1])
    for workers in (1, 2):
        generate.run(config, tmp_path / str(workers), workers=workers)
    assert _bytes(tmp_path / "1") == _bytes(tmp_path / "2")


_PRINT = """
import dataclasses, hashlib
from trace_jax.synthesis import procedural
for index in (0, 60, 430):
    request = procedural.Request("inventory", index, size=64, levels=("L1", "L4"))
    for picture in procedural.pictures(request):
        row = dataclasses.replace(picture, pixels=None)
        print(hashlib.sha256(picture.pixels.tobytes()).hexdigest(), row)
"""


@pytest.mark.slow
def test_pixels_and_words_are_the_same_in_every_process():
    said = {
        subprocess.run(
            [sys.executable, "-c", _PRINT],
            env=os.environ | {"PYTHONHASHSEED": number},
            check=True,
            capture_output=True,
        ).stdout
        for number in ("1", "2", "3")
    }
    assert len(said) == 1
    assert said.pop().count(b"failure_notes=") == 9
