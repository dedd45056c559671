"""The law of the seam: resume(tap(x)) equals forward(x) bit for bit, and tap knows its own."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np
import pytest
from support import encoders

from trace_jax.errors import UserError
from trace_jax.hosts.base import EncoderHost

NANO = dict(hidden_size=192, intermediate_size=768, num_hidden_layers=6, num_attention_heads=3)


@functools.cache
def _tiny(name: str) -> EncoderHost:
    return encoders.build(name)


def _nano(name: str) -> EncoderHost:
    config = {
        **encoders.CONFIGS[name],
        "vision_config": {**NANO, "image_size": 96, "patch_size": 16},
    }
    if name == "siglip2":
        config["text_config"] = {**config["text_config"], "projection_size": 192}
    return encoders.build(name, config=config)


def _assert_law(host: EncoderHost, batch: int) -> None:
    inputs = encoders.pixels(host, batch)
    direct, resumed = host.forward(inputs), host.resume(host.tap(inputs))
    for field, a, b in zip(direct._fields, direct, resumed, strict=True):
        assert np.abs(np.asarray(a) - np.asarray(b)).max() == 0, field
        assert np.isfinite(np.asarray(a)).all(), field


@pytest.mark.parametrize("batch", [2, 8])
@pytest.mark.parametrize("name", encoders.NAMES)
def test_tiny(name, batch):
    _assert_law(_tiny(name), batch)


@pytest.mark.parametrize("name", encoders.NAMES)
def test_nano_size(name):
    _assert_law(_nano(name), 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", encoders.NAMES)
def test_full_size(name):
    vision = {"clip": {"patch_size": 14}, "siglip2": {}}[name]
    config = {
        **encoders.CONFIGS[name],
        "vision_config": vision,
        "text_config": {**encoders.CONFIGS[name]["text_config"], "hidden_size": 768},
    }
    _assert_law(encoders.build(name, config=config), 2)


@pytest.mark.parametrize("name", encoders.NAMES)
def test_features_carry_their_source(name):
    host = _tiny(name)
    features = host.tap(encoders.pixels(host, 2))
    assert features.source == host.spec.source
    assert features.tokens.shape == (2, host.spec.tap.tokens, host.spec.tap.dim)
    assert host.spec.num_params == sum(x.size for x in jax.tree.leaves(host.params))


@pytest.mark.parametrize("field", ["host", "tap", "weights_hash"])
@pytest.mark.parametrize("name", encoders.NAMES)
def test_resume_refuses_features_of_another_source(name, field):
    host = _tiny(name)
    features = host.tap(encoders.pixels(host, 2))
    other = features.replace(source=dataclasses.replace(features.source, **{field: "other"}))
    with pytest.raises(UserError, match=f"{field} 'other'"):
        host.resume(other)


@pytest.mark.parametrize("name", encoders.NAMES)
def test_resume_refuses_tokens_of_another_width(name):
    host = _tiny(name)
    features = host.tap(encoders.pixels(host, 2))
    with pytest.raises(UserError, match="wide"):
        host.resume(features.replace(tokens=features.tokens[..., :-1]))


def test_recovered_tokens_reach_siglips_embedding_but_never_clips():
    for name in encoders.NAMES:
        host = _tiny(name)
        features = host.tap(encoders.pixels(host, 2))
        changed = host.resume(features.replace(tokens=features.tokens + 1.0))
        plain = host.resume(features)
        assert np.abs(changed.pooled - plain.pooled).min() > 0.5
        moved = np.abs(np.asarray(changed.embedding - plain.embedding)).max()
        assert (moved > 1e-3) if name == "siglip2" else (moved == 0), name


def test_clip_says_that_cached_tokens_lack_the_cls_token():
    host = _tiny("clip")
    features = host.tap(encoders.pixels(host, 2))
    with pytest.raises(UserError, match="CLS"):
        host.resume(features.replace(carry=None))


@pytest.mark.parametrize("name", encoders.NAMES)
def test_wrong_image_sizes_are_refused(name):
    host = _tiny(name)
    with pytest.raises(UserError, match="pixel_values"):
        host.tap({"pixel_values": np.zeros((1, 14, 14, 3), np.float32)})


@pytest.mark.parametrize("name", encoders.NAMES)
def test_bfloat16_hosts_run(name):
    host, wide = encoders.build(name, dtype="bfloat16"), _tiny(name)
    inputs = encoders.pixels(host, 2)
    features = host.tap(inputs)
    assert features.tokens.dtype == "bfloat16"
    got, want = host.resume(features), wide.forward(inputs)
    error = np.abs(np.asarray(got.pooled, np.float32) - want.pooled).max()
    assert error < 0.1 * max(1.0, float(np.abs(want.pooled).max()))
