"""Rates and decay by parameter: the recipe's table, its rule by checkpoint names, torch's AdamW."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from converters import rf_detr as converter
from trace_jax.errors import UserError
from trace_jax.hosts import rf_detr
from trace_jax.hosts.base import abstract_params
from trace_jax.train import layer_rates, optimizer
from trace_jax.train.state import named_leaves

RATES = layer_rates.RatesConfig()
BASE = 1e-4
# RF-DETR-Medium but for its widths, which no rate depends on.
CONFIG = rf_detr.parse(
    {
        "model_type": "rf_detr",
        "backbone_config": {
            "model_type": "rf_detr_dinov2",
            "hidden_size": 24,
            "image_size": 64,
            "num_hidden_layers": 12,
            "num_attention_heads": 2,
            "num_windows": 2,
            "out_features": ["stage3", "stage6", "stage9", "stage12"],
            "patch_size": 16,
        },
        "d_model": 16,
        "decoder_self_attention_heads": 2,
        "decoder_cross_attention_heads": 4,
        "decoder_n_points": 2,
        "decoder_layers": 4,
        "decoder_ffn_dim": 32,
        "num_queries": 6,
        "num_labels": 5,
    }
)
LAST = CONFIG.stages[-1]


def _rate(path: str) -> np.ndarray:
    return BASE * np.asarray(layer_rates.share(path, 12, LAST, RATES))


def test_the_table() -> None:
    """Figures as the recipe's table gives them, three digits."""
    blocks = _rate("backbone/blocks/attention/query/kernel")
    table = {
        3.23e-6: _rate("backbone/positions/table"),
        4.04e-6: blocks[0],
        5.05e-6: blocks[1],
        3.76e-5: blocks[10],
        4.70e-5: blocks[11],
        7.35e-5: _rate("backbone/norm/scale"),
        7.00e-5: _rate("detector/layers/mlp/fc1/bias"),
        1.00e-4: _rate("detector/projector/conv1/kernel"),
    }
    for wanted, found in table.items():
        assert f"{float(found):.2e}" == f"{wanted:.2e}"


def _official_rate(name: str) -> float:
    """The official rule, by checkpoint name: `get_dinov2_lr_decay_rate`, `get_param_dict`."""
    if name.startswith("backbone.0.encoder"):
        layer = 13 + 1
        if "embeddings" in name:
            layer = 0
        elif ".layer." in name:
            layer = int(name.split(".layer.")[1].split(".")[0]) + 1
        return 1.5e-4 * 0.7**2 * 0.8 ** (13 + 1 - layer)
    return 1e-4 * (0.7 if name.startswith("transformer.decoder") else 1.0)


def _official_decay(name: str) -> float:
    still = ("gamma", "pos_embed", "rel_pos", "bias", "norm", "embeddings")
    inside = name.startswith("backbone.0.encoder") and any(part in name for part in still)
    return 0.0 if inside else 1e-4


def test_every_parameter_has_the_rate_and_decay_of_its_checkpoint_names() -> None:
    params = abstract_params(rf_detr.RfDetr, CONFIG, "float32")
    rules = converter.family(CONFIG).rules
    leaves = named_leaves(params)
    assert set(rules) == set(leaves)
    decaying = named_leaves(layer_rates.decaying(params))
    shares = named_leaves(layer_rates.shares(params, LAST, RATES))
    seen = set()
    for path, leaf in leaves.items():
        share = np.asarray(shares[path])
        assert np.broadcast_shapes(share.shape, leaf.shape) == leaf.shape
        for piece in rules[path].pieces(leaf.shape):
            mine = share[piece.into[0]] if share.ndim else share
            np.testing.assert_allclose(BASE * mine, _official_rate(piece.key), rtol=1e-6)
            assert 1e-4 * decaying[path] == _official_decay(piece.key), piece.key
            seen.add(piece.key)
    assert len(seen) == 509  # tensors of the published checkpoint


def test_another_base_rate_changes_all_in_proportion() -> None:
    found = layer_rates.share("backbone/norm/scale", 12, LAST, RATES)
    assert 2e-4 * found == pytest.approx(2 * 7.35e-5)


@pytest.mark.parametrize("path", ["vision/blocks/kernel", "backbone/heads/kernel", "detector"])
def test_parameters_of_other_models_are_refused(path: str) -> None:
    with pytest.raises(UserError, match="parameter of a detector|rates are known"):
        layer_rates.share(path, 12, LAST, RATES)


def test_steps_are_those_of_torch_with_a_group_for_each_parameter() -> None:
    rng = np.random.default_rng(0)
    shapes = {
        "backbone/blocks/mlp/fc1/kernel": (12, 3, 4),
        "backbone/blocks/scale1/scale": (12, 3),
        "backbone/blocks/norm1/bias": (12, 3),
        "backbone/positions/table": (5, 3),
        "backbone/norm/scale": (3,),
        "detector/layers/norm1/bias": (4, 3),
        "detector/heads/classes/bias": (5,),
    }
    flat = {path: rng.normal(size=shape).astype(np.float32) for path, shape in shapes.items()}
    tree: dict = {}
    for path, value in flat.items():
        node = tree
        *parents, last = path.split("/")
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = value
    config = optimizer.OptimizerConfig(
        lr=1e-4, warmup_steps=0, schedule="constant", weight_decay=1e-4
    )
    transform = optax.chain(
        optimizer.make(config, 10, decaying=layer_rates.decaying(tree)),
        layer_rates.scale_by(layer_rates.shares(tree, LAST, RATES)),
    )

    groups, tensors = [], {}
    for path, value in flat.items():
        count = 12 if path.startswith("backbone/blocks") else 1
        rows = value if count == 12 else value[None]
        tensors[path] = [torch.nn.Parameter(torch.tensor(row)) for row in rows]
        rates = np.broadcast_to(_rate(path), (count,))
        decay = 1e-4 * layer_rates.decays(path)
        groups += [
            {"params": [t], "lr": float(r), "weight_decay": decay}
            for t, r in zip(tensors[path], rates, strict=True)
        ]
    reference = torch.optim.AdamW(groups)
    state = transform.init(tree)
    params = jax.tree.map(jnp.asarray, tree)
    update = jax.jit(transform.update)
    for _ in range(5):
        grads = {path: rng.normal(size=shape).astype(np.float32) for path, shape in shapes.items()}
        for path, grad in grads.items():
            rows = grad if len(tensors[path]) == 12 else grad[None]
            for tensor, row in zip(tensors[path], rows, strict=True):
                tensor.grad = torch.tensor(row)
        reference.step()
        names = named_leaves(params)
        leaves = jax.tree.unflatten(jax.tree.structure(params), [grads[n] for n in names])
        updates, state = update(leaves, state, params)
        params = optax.apply_updates(params, updates)
    for path, value in named_leaves(params).items():
        wanted = np.stack([t.detach().numpy() for t in tensors[path]]).reshape(value.shape)
        moved = np.abs(wanted - flat[path]).max()
        np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-3 * moved + 2e-7)
