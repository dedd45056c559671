"""A stored FRM: whole, itself, and refusing what it does not fit."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

import trace_jax.frm
from trace_jax import frm
from trace_jax.errors import UserError
from trace_jax.types import Features, FeatureSource

CONFIG = frm.FRMConfig(dim=16, depth=2, num_heads=4, alpha_init=0.3)
SOURCE = FeatureSource("siglip2_nano", "last_hidden_state", "0123abcd")
DESCRIPTION = frm.Description(
    config=CONFIG,
    source=SOURCE,
    condition="frm",
    dataset={"name": "nano_trace", "hash": "ff"},
    taxonomy="trace-1",
    training={"seed": 0},
    step=40,
    metrics={"r_at_1": 0.5},
)


@pytest.fixture
def folder(tmp_path):
    frm.save(tmp_path / "best", frm.init(jax.random.key(0), CONFIG), DESCRIPTION)
    return tmp_path / "best"


def _features(source=SOURCE):
    return Features(jax.random.normal(jax.random.key(1), (3, 5, 16)), None, {"grid": 1}, source)


def test_round_trip(folder) -> None:
    recover = trace_jax.frm.load(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["frm.json", "params.safetensors"]
    jax.tree.map(np.testing.assert_array_equal, recover.params, frm.init(jax.random.key(0), CONFIG))
    d = recover.description
    assert (d.source, d.config, d.condition, d.step) == (SOURCE, CONFIG, "frm", 40)
    assert d.num_params == frm.num_params(dim=16, depth=2, mlp_ratio=4)
    assert frm.describe(folder) == d
    features = _features()
    recovered = recover(features)
    np.testing.assert_allclose(
        recovered.tokens, recover.apply(recover.params, features).tokens, atol=1e-6
    )
    assert recovered.carry == {"grid": 1}
    assert not np.allclose(recovered.tokens, features.tokens)


def test_saving_again_gives_the_same_bytes(folder) -> None:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    frm.save(folder, frm.init(jax.random.key(0), CONFIG), DESCRIPTION)
    assert before == {p.name: p.read_bytes() for p in folder.iterdir()}
    assert [p.name for p in folder.parent.iterdir()] == ["best"]


@pytest.mark.parametrize(
    "source",
    [
        FeatureSource("clip_nano", SOURCE.tap, SOURCE.weights_hash),
        FeatureSource(SOURCE.host, "pre_merger", SOURCE.weights_hash),
        FeatureSource(SOURCE.host, SOURCE.tap, "other"),
    ],
)
def test_features_of_another_source_are_refused(folder, source) -> None:
    recover = frm.load(folder)
    with pytest.raises(UserError, match="fits other features"):
        recover(_features(source))
    with pytest.raises(UserError, match="fits other features"):
        recover.apply(recover.params, _features(source))
    assert frm.load(folder, any_source=True)(_features(source)).source == source


def test_damage_is_named(folder) -> None:
    path = folder / "params.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match="SHA-256"):
        frm.load(folder)
    path.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        frm.load(folder)
    with pytest.raises(UserError, match="frm.json: not found"):
        frm.load(folder / "nowhere")


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 9}', '{"schema": 1}'])
def test_a_bad_description_is_named(folder, text) -> None:
    (folder / "frm.json").write_text(text)
    with pytest.raises(UserError, match=r"frm\.json"):
        frm.load(folder)


def test_unknown_geometry_fields_are_refused(folder) -> None:
    raw = json.loads((folder / "frm.json").read_text())
    raw["config"]["dropout"] = 0.1
    (folder / "frm.json").write_text(json.dumps(raw))
    with pytest.raises(UserError, match="dropout"):
        frm.load(folder)


def test_parameters_of_another_geometry_are_refused(tmp_path) -> None:
    other = frm.init(jax.random.key(0), frm.FRMConfig(dim=16, depth=1, num_heads=4))
    with pytest.raises(UserError, match=r"blocks/down/kernel: shape \(1, 64, 16\)"):
        frm.save(tmp_path / "x", other, DESCRIPTION)
