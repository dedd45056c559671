"""The shared decoder against transformers' Qwen3 and Qwen2: states, logits, greedy tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

pytest.importorskip("torch")
import torch
from support import decoders
from support.references import BLOCK, END, error

from trace_jax.hosts import decoding
from trace_jax.hosts.decoding import GreedySettings, Prompt, greedy, greedy_by_layer
from trace_jax.hosts.text_decoder import causal

LENGTHS = (5, 9, 17)
CASES = [
    ("qwen3", {}, True),
    ("qwen3", {"num_key_value_heads": 4}, False),
    ("qwen2", {"head_dim": 8}, True),
]


def _batch(lengths=LENGTHS, seed: int = 0, pad: int = 0):
    rng = np.random.default_rng(seed)
    longest = max(lengths)
    ids = np.full((len(lengths), longest), pad, np.int32)
    real = np.zeros((len(lengths), longest), bool)
    for row, length in enumerate(lengths):
        ids[row, longest - length :] = rng.integers(1, 100, length)
        real[row, longest - length :] = True
    return ids, real


def _positions(real):
    return jnp.broadcast_to(jnp.maximum(jnp.cumsum(real, -1) - 1, 0), (3, *real.shape))


def _prompt(decoder, ids, real, by_layer=False):
    x = decoder.tokens(ids)
    run = decoding.prefill_by_layer if by_layer else type(decoder).prefill
    x, keys, values = run(decoder, x, _positions(real), causal(jnp.asarray(real)))
    return Prompt(x[:, -1], keys, values, jnp.asarray(real), jnp.asarray(real.sum(-1)), ids)


@pytest.mark.parametrize(("kind", "changes", "tied"), CASES)
def test_decoder_equals_the_reference(kind, changes, tied, tmp_path):
    sizes = {**decoders.SIZES, **changes}
    model = decoders.reference(kind, sizes, tied=tied)
    model.save_pretrained(tmp_path)
    decoder, config = decoders.ours(kind, sizes, tied=tied, folder=tmp_path)
    ids, real = _batch()
    with torch.inference_mode():
        want = model(
            input_ids=torch.from_numpy(ids).long(),
            attention_mask=torch.from_numpy(real).long(),
            position_ids=torch.from_numpy(np.array(_positions(real)[0])).long(),
            output_hidden_states=True,
        )
    x = decoder.tokens(ids)
    graph, stacked = nnx.split(decoder.layers)
    for number in range(config.depth - 1):  # the reference's last state is after the final norm
        layer = nnx.merge(graph, jax.tree.map(lambda leaf, n=number: leaf[n], stacked))
        angles = decoder.angles(_positions(real))
        x = layer.prefill(x, angles, causal(jnp.asarray(real)))[0]
        reference = want.hidden_states[number + 1].numpy()
        assert error(np.asarray(x)[real], reference[real]) < BLOCK, number
    prompt = _prompt(decoder, ids, real)
    assert error(decoder.logits(prompt.last), want.logits[:, -1].numpy()) < END


@pytest.mark.parametrize("penalty", [1.0, 1.3])
@pytest.mark.parametrize(("kind", "changes", "tied"), CASES)
def test_greedy_tokens_equal_generate(kind, changes, tied, penalty, tmp_path):
    sizes = {**decoders.SIZES, **changes}
    model = decoders.reference(kind, sizes, tied=tied, seed=1)
    model.save_pretrained(tmp_path)
    decoder, _ = decoders.ours(kind, sizes, tied=tied, folder=tmp_path)
    ids, real = _batch(seed=2)
    with torch.inference_mode():
        first = model.generate(
            torch.from_numpy(ids).long(),
            attention_mask=torch.from_numpy(real).long(),
            do_sample=False, max_new_tokens=32, eos_token_id=None, pad_token_id=0,
            repetition_penalty=penalty,
        ).numpy()[:, ids.shape[1] :]  # fmt: skip
    # Stop at a token that the second row says early: rows then end at different places.
    stop = int(first[1, 3])
    settings = GreedySettings(32, (stop,), 0, penalty)
    got = jax.jit(lambda d, p: greedy(d, p, settings, d.tokens))(
        decoder, _prompt(decoder, ids, real)
    )
    expected = [row[: row.index(stop) + 1] if stop in row else row for row in first.tolist()]
    assert decoding.unpadded(got, settings) == expected
    slow = greedy_by_layer(decoder, _prompt(decoder, ids, real, True), settings, decoder.tokens)
    assert decoding.unpadded(slow, settings) == expected


def test_an_answer_does_not_depend_on_its_batch(tmp_path):
    model = decoders.reference("qwen3", decoders.SIZES, tied=True, seed=3)
    model.save_pretrained(tmp_path)
    decoder, _ = decoders.ours("qwen3", decoders.SIZES, tied=True, folder=tmp_path)
    ids, real = _batch(seed=4)
    settings = GreedySettings(16, (), 0)
    run = jax.jit(lambda d, p: greedy(d, p, settings, d.tokens))
    together = np.asarray(run(decoder, _prompt(decoder, ids, real)))
    whole = decoder.logits(_prompt(decoder, ids, real).last)
    for row, length in enumerate(LENGTHS):
        alone = _prompt(decoder, ids[row : row + 1, -length:], real[row : row + 1, -length:])
        assert error(decoder.logits(alone.last)[0], np.asarray(whole[row])) < END
        assert np.asarray(run(decoder, alone))[0].tolist() == together[row].tolist()
