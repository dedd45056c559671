"""What every host must keep to, whatever its family: the ninth one is judged by the same laws.

Families are those registered in trace_jax.hosts; each runs at toy size, random weights, at every
tap. The law of the seam is exact; batches may round differently, answers may not differ.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

pytest.importorskip("torch")
from support import tiny_hosts as tiny
from support import vision_language

import converters
from trace_jax import hosts
from trace_jax.hosts import VisionLanguageHost

FAMILIES = tiny.families()
ANSWERING = [name for name in FAMILIES if issubclass(hosts.lookup(name).family, VisionLanguageHost)]
_ROUNDING = 2e-5


def _taps(names: list[str]) -> list[tuple[str, str]]:
    found = []
    for name in names:
        own = hosts.lookup(name).family.taps
        # Of the DeepStack streams, which are alike, the first.
        found += [(name, tap) for tap in own if tap not in ("deepstack_1", "deepstack_2")]
    return found


def _end(host, features, prompts=None, images=None):
    """The host's output from features, as arrays."""
    out = (
        host.resume(features, prompts, images=images)
        if isinstance(host, VisionLanguageHost)
        else host.resume(features)
    )
    return [np.asarray(leaf) for leaf in jax.tree.leaves(out)]


def _whole(host, inputs, prompts=None, images=None):
    out = (
        host.forward(inputs, prompts, images=images)
        if isinstance(host, VisionLanguageHost)
        else host.forward(inputs)
    )
    return [np.asarray(leaf) for leaf in jax.tree.leaves(out)]


def _prompts(name, count, images=None):
    if name not in ANSWERING:
        return None
    return tiny.prompts(name, [3 + 4 * k for k in range(count)], images or [1] * count)


def _tokens_of(features, index):
    """Real tokens of one picture."""
    tokens = np.asarray(features.tokens[index])
    return tokens if features.mask is None else tokens[np.asarray(features.mask[index])]


def test_every_family_has_a_tiny_host():
    assert set(FAMILIES) == set(tiny.TINY)


@pytest.mark.parametrize(("name", "tap"), _taps(FAMILIES))
def test_seam_and_determinism(name, tap):
    host = tiny.build(name, tap)
    inputs = host.preprocess(tiny.pictures(2))
    prompts = _prompts(name, 2)
    features = host.tap(inputs)
    assert features.source == host.spec.source
    resumed, direct = _end(host, features, prompts), _whole(host, inputs, prompts)
    assert len(resumed) == len(direct) > 0
    for a, b in zip(resumed, direct, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.isfinite(a).all()
    again = _end(host, host.tap(host.preprocess(tiny.pictures(2))), prompts)
    for a, b in zip(resumed, again, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("name", "tap"), _taps(FAMILIES))
def test_recovery_reaches_the_end(name, tap):
    """What changes the tap's tokens changes the output: nothing reads around the tap."""
    if (name, tap) == ("clip", "last_hidden_state"):
        pytest.skip("CLIP's embedding comes from its class token: test_seam.py says so")
    host = tiny.build(name, tap)
    features = host.tap(host.preprocess(tiny.pictures(1)))
    prompts = _prompts(name, 1)
    # No scale or shift alone: a norm behind the tap would undo it.
    noise = np.random.default_rng(3).normal(size=features.tokens.shape).astype(np.float32)
    changed = features.replace(tokens=features.tokens + noise)
    plain, moved = _end(host, features, prompts), _end(host, changed, prompts)
    assert max(np.abs(a - b).max() for a, b in zip(plain, moved, strict=True)) > 1e-4


@pytest.mark.parametrize("name", FAMILIES)
def test_a_picture_does_not_depend_on_its_batch(name):
    host = tiny.build(name)
    pictures = tiny.pictures(4)
    together = host.tap(host.preprocess(pictures))
    for index in (0, 3):
        alone = host.tap(host.preprocess([pictures[index]]))
        a, b = _tokens_of(together, index), _tokens_of(alone, 0)
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=_ROUNDING * max(1.0, np.abs(b).max()))


@pytest.mark.parametrize("name", ANSWERING)
def test_an_answer_does_not_depend_on_its_batch(name):
    """Handed case 9: unequal prompts, pictures of different sizes."""
    host = tiny.build(name)
    pictures = tiny.pictures(3)
    prompts = tiny.prompts(name, [5, 9, 17], [1, 1, 1])
    features = host.tap(host.preprocess(pictures))
    together = host.generate(features, prompts, max_new_tokens=16, return_tokens=True)
    logits = np.asarray(host.resume(features, prompts).logits)
    # The shortest prompt, most padded, and the longest.
    for index in (0, 2):
        own = host.tap(host.preprocess([pictures[index]]))
        (alone,) = host.generate(own, [prompts[index]], max_new_tokens=16, return_tokens=True)
        assert together[index] == alone
        want = np.asarray(host.resume(own, [prompts[index]]).logits)[0]
        assert np.abs(logits[index] - want).max() < 1e-4 * max(1.0, np.abs(want).max())


@pytest.mark.parametrize("name", ANSWERING)
def test_a_prompt_may_have_several_pictures_or_none(name):
    host = tiny.build(name)
    pictures = tiny.pictures(3)
    features = host.tap(host.preprocess(pictures))
    counts = np.asarray(host.token_counts(np.asarray(features.carry["grid"])))
    for index in range(3):
        assert len(_tokens_of(features, index)) == counts[index]
    three = tiny.prompts(name, [4], [3])
    one = np.asarray(host.resume(features, three, images=[3]).logits)
    # The same three in a call with another prompt before them.
    more = host.tap(host.preprocess([pictures[1], *pictures]))
    both = tiny.prompts(name, [4, 4], [1, 3])
    both[1] = three[0]
    two = np.asarray(host.resume(more, both, images=[1, 3]).logits)
    assert np.abs(one[0] - two[1]).max() < 1e-4 * max(1.0, np.abs(one).max())
    bare = host.resume(None, tiny.prompts(name, [6], [0]), images=[0]).logits
    assert np.isfinite(np.asarray(bare)).all()


@pytest.mark.parametrize("name", FAMILIES)
def test_save_and_load_is_a_round_trip(name, tmp_path):
    host = tiny.build(name)
    converters.save_host(host, tmp_path)
    read = converters.load_host(name, tmp_path)
    a, b = (dict(jax.tree_util.tree_leaves_with_path(h.params)) for h in (host, read))
    assert a.keys() == b.keys()
    for path, leaf in a.items():
        np.testing.assert_array_equal(np.asarray(leaf), np.asarray(b[path]), err_msg=str(path))
    inputs, prompts = host.preprocess(tiny.pictures(1)), _prompts(name, 1)
    same = read.preprocess(tiny.pictures(1))
    for x, y in zip(jax.tree.leaves(inputs), jax.tree.leaves(same), strict=True):
        np.testing.assert_array_equal(x, y)
    features = read.tap(same)
    for x, y in zip(
        _end(host, host.tap(inputs), prompts), _end(read, features, prompts), strict=True
    ):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", FAMILIES)
def test_bfloat16_is_close(name):
    narrow, wide = tiny.build(name, None, "bfloat16"), tiny.build(name)
    inputs = wide.preprocess(tiny.pictures(2))
    features = narrow.tap(inputs)
    assert features.tokens.dtype == "bfloat16"
    for index in range(2):
        got = np.asarray(_tokens_of(features, index), np.float32)
        want = _tokens_of(wide.tap(inputs), index)
        # Eight bits of mantissa through a few blocks: direction is kept.
        cosine = (got * want).sum() / (np.linalg.norm(got) * np.linalg.norm(want))
        assert cosine > 0.98, cosine
    for leaf in _end(narrow, features, _prompts(name, 2)):
        assert np.isfinite(np.asarray(leaf, np.float32)).all()


@pytest.mark.parametrize("size", [(1, 1), (1000, 20), (20, 1000), (336, 337), (4000, 3000)])
@pytest.mark.parametrize("name", ANSWERING)
def test_placeholders_and_tower_count_alike(name, size):
    """One function tells how many tokens an image has, to the prompt and to the tower."""
    host = tiny.build(name)
    inputs = host.preprocess([vision_language.picture(*size)])
    shapes = jax.eval_shape(host.apply_tap, host.params, inputs)
    features = shapes.replace(carry={"grid": host._grid(inputs)})
    (count,) = np.asarray(host.token_counts(np.asarray(features.carry["grid"])))
    assert shapes.tokens.shape[1] == count
    text = host.arrange(features, tiny.prompts(name, [3], [1]))
    slots = text["slots"][text["slots"] >= 0]
    assert sorted(slots.tolist()) == list(range(count))
