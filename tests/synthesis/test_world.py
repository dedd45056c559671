"""The world: determinism, cumulative damage in Table 6's ranges, the studio."""

from __future__ import annotations

import numpy as np
import pytest

from trace_jax import taxonomy
from trace_jax.synthesis import procedural
from trace_jax.synthesis.procedural import behaviour, camera, world
from trace_jax.synthesis.procedural.damage import Fire
from trace_jax.synthesis.procedural.joints import find_joints, islands
from trace_jax.types import LEVELS

LADDER = {level.name: level.ranges for level in taxonomy.load().severity}
SAMPLE = range(40, 64)


@pytest.fixture(scope="module")
def trajectories() -> list[list[world.Picture]]:
    return [
        procedural.pictures(procedural.Request("sample", k, size=64, views=(0, 1), levels=LEVELS))
        for k in SAMPLE
    ]


def test_same_request_same_pixels_in_any_order(trajectories):
    again = procedural.pictures(
        procedural.Request("sample", SAMPLE[3], size=64, views=(0, 1), levels=LEVELS)
    )
    for first, second in zip(trajectories[3], again, strict=True):
        np.testing.assert_array_equal(first.pixels, second.pixels)
        assert first.metrics == second.metrics and first.caption == second.caption


def test_one_level_alone_equals_its_place_in_the_ladder(trajectories):
    alone = procedural.pictures(
        procedural.Request("sample", SAMPLE[0], size=64, views=(), levels=("L3",))
    )
    np.testing.assert_array_equal(alone[0].pixels, trajectories[0][5].pixels)


def test_seed_series_index_and_draw_matter():
    base = procedural.Request("sample", 5, size=64, levels=("L2",))
    pixels = [p.pixels for p in procedural.pictures(base)]
    for other in (
        procedural.Request("sample", 5, seed=1, size=64, levels=("L2",)),
        procedural.Request("train", 5, size=64, levels=("L2",)),
        procedural.Request("sample", 5 + len(world.type_order()), size=64, levels=("L2",)),
    ):
        assert np.abs(pixels[0].astype(int) - procedural.pictures(other)[0].pixels).mean() > 1
    draws = procedural.pictures(
        procedural.Request("sample", 5, size=64, views=(), levels=("L2",), draws=2)
    )
    np.testing.assert_array_equal(draws[0].pixels, pixels[1])
    assert np.abs(draws[1].pixels.astype(int) - pixels[1]).mean() > 0.5
    assert [p.draw for p in draws] == [0, 1]


def test_types_are_balanced_and_names_unique():
    order = world.type_order()
    assert sorted(order) == sorted(taxonomy.load().object_types)
    names = [procedural.identity_name("train", k) for k in range(2 * len(order))]
    assert len(set(names)) == len(names)
    assert [procedural.type_of(k) for k in range(len(order))] == list(order)


def test_metrics_lie_in_table_6(trajectories):
    for level in LEVELS:
        for metric, (low, high) in LADDER[level].items():
            values = [p.metrics[metric] for t in trajectories for p in t if p.severity == level]
            inside = np.mean([low - 1e-3 <= v <= high + 1e-3 for v in values])
            # Ceramics keep their form (paper B.1): a few types cannot follow deformation.
            needed = 0.75 if metric == "deformation" else 0.9
            assert inside >= needed, (level, metric, np.round(values, 2))
            assert low <= np.median(values) <= high


def test_damage_only_accumulates(trajectories):
    for pictures in trajectories:
        levels = [p.metrics for p in pictures if p.severity != "pristine"]
        assert len(levels) == 5
        soot = [m["soot_coverage"] for m in levels]
        sound = [m["structural_integrity"] for m in levels]
        assert soot == sorted(soot)
        assert sound == sorted(sound, reverse=True)
        assert levels[0]["deformation"] < levels[4]["deformation"]


def test_lost_and_failed_surface_never_heals():
    identity = world.make_identity(procedural.Request("sample", 47))
    view, _ = world.viewpoint(procedural.Request("sample", 47), identity, 0)
    fire = Fire(identity.mesh, np.random.default_rng(3))
    count = len(identity.mesh.points)
    before = np.zeros(count, bool)
    for state in fire.states(LEVELS, view):
        fail = state.body.state[:count, 1] > 0
        gone = state.body.state[:count, 3] < -0.1
        assert not (before & ~(fail | gone)).any()
        before = fail | gone


def test_studio_is_white_and_the_object_inside(trajectories):
    for pictures in trajectories:
        for picture in pictures:
            pixels = picture.pixels
            assert (pixels[[0, 0, -1, -1], [0, -1, 0, -1]] == 255).all()
            border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
            assert border.min() >= 250, picture.identity
            assert (pixels.min(-1) < 200).mean() > 0.005, (picture.identity, picture.severity)


def test_levels_get_darker_and_smaller_but_keep_evidence(trajectories):
    def dark(picture):
        return float((255 - picture.pixels.astype(float)).mean())

    pristine = np.mean([dark(t[0]) for t in trajectories])
    middle = np.mean([dark(t[4]) for t in trajectories])
    last = np.mean([dark(t[6]) for t in trajectories])
    assert pristine < middle
    assert 0.3 * pristine < last


def test_view_0_is_shared_and_view_1_is_another():
    request = procedural.Request("sample", 44)
    identity = world.make_identity(request)
    first, light = world.viewpoint(request, identity, 0)
    again, _ = world.viewpoint(request, identity, 0)
    other, _ = world.viewpoint(request, identity, 1)
    np.testing.assert_array_equal(first.axes, again.axes)
    assert np.abs(first.axes - other.axes).max() > 0.1
    assert np.linalg.norm(light.direction) == pytest.approx(1)
    seen = first.project(identity.mesh.points.astype(float))[:, :2]
    assert seen.min() > 0.05 and seen.max() < 0.95


def test_failure_order_is_the_papers():
    table, known = behaviour.load(), taxonomy.load()
    rank = np.array([known.failure_order[m] for m in known.materials])
    ends = table.weakens[:, 1]
    for later in range(len(rank)):
        for earlier in range(later):
            if rank[earlier] < rank[later]:
                assert ends[earlier] < ends[later]
                assert table.vanishes[earlier] < table.vanishes[later]


def test_pristine_objects_are_one_island():
    for index in range(0, len(world.type_order()), 3):
        mesh = world.make_identity(procedural.Request("sample", index)).mesh
        joints = find_joints(mesh, np.ones(len(mesh.points)))
        label = islands(np.ones(len(mesh.points), bool), mesh.faces, joints.links)
        sizes = np.bincount(label)
        assert sizes.max() / sizes.sum() > 0.98, (world.type_of(index), sizes)


def test_frame_fills_the_asked_share():
    points = np.random.default_rng(0).uniform(-1, 1, (500, 3))
    view = camera.frame(points, 30.0, 20.0, 0.7)
    seen = view.project(points)
    assert np.ptp(seen[:, :2], axis=0).max() == pytest.approx(0.7)
    np.testing.assert_allclose((seen[:, :2].max(0) + seen[:, :2].min(0)) / 2, 0.5, atol=1e-9)


def test_captions_and_variants(trajectories):
    for pictures in trajectories:
        pristine, burnt = pictures[0], pictures[-1]
        assert pristine.caption.startswith("a photo of a")
        assert pristine.object_type.replace("_", " ") in pristine.caption
        assert burnt.caption == f"{pristine.caption} after a fire, near-total destruction"
        assert " a orange" not in pristine.caption
        assert pristine.variant
        assert {m for _, m in pristine.materials} <= set(taxonomy.load().materials)
