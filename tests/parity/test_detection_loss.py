"""The detection loss and its gradients against transformers' LwDetrForObjectDetectionLoss."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from transformers.loss.loss_lw_detr import LwDetrForObjectDetectionLoss, LwDetrHungarianMatcher

from trace_jax.train import detection, matching

CONFIG = detection.DetectionConfig()
TOLERANCE = 1e-5
NAMES = ("logits", "boxes", "enc_logits", "enc_boxes")


def _outputs(layers: int, batch: int, queries: int, classes: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def boxes(*lead: int) -> np.ndarray:
        centre, size = rng.uniform(0.1, 0.9, (*lead, 2)), rng.uniform(0.02, 0.6, (*lead, 2))
        return np.concatenate([centre, size], axis=-1).astype(np.float32)

    def logits(*lead: int) -> np.ndarray:
        return (2 * rng.normal(size=(*lead, classes)) - 2).astype(np.float32)

    return {
        "logits": logits(layers, batch, queries),
        "boxes": boxes(layers, batch, queries),
        "enc_logits": logits(batch, queries),
        "enc_boxes": boxes(batch, queries),
    }


def _targets(counts: tuple[int, ...], padded: int, classes: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng((seed, 1))
    batch = len(counts)
    boxes = np.zeros((batch, padded, 4), np.float32)
    labels = np.full((batch, padded), 10**6, np.int32)  # no class: reading it would be an error
    mask = np.arange(padded) < np.array(counts)[:, None]
    mask = np.stack([rng.permutation(row) for row in mask])
    size = (int(mask.sum()), 2)
    boxes[mask] = np.concatenate([rng.uniform(0.2, 0.8, size), rng.uniform(0.05, 0.4, size)], 1)
    labels[mask] = rng.integers(0, classes, size[0])
    return {"boxes": boxes, "labels": labels, "mask": mask}


def _per_image(targets: dict) -> list[dict[str, torch.Tensor]]:
    """Targets without padding, as the reference takes them."""
    return [
        {
            "class_labels": torch.from_numpy(labels[mask].astype(np.int64)),
            "boxes": torch.from_numpy(boxes[mask]),
        }
        for boxes, labels, mask in zip(
            targets["boxes"], targets["labels"], targets["mask"], strict=True
        )
    ]


def _reference(outputs: dict, targets: dict, groups: int) -> tuple[float, dict, dict]:
    tensors = {name: torch.from_numpy(outputs[name]).requires_grad_() for name in NAMES}
    labels = _per_image(targets)
    config = SimpleNamespace(
        class_cost=2, bbox_cost=5, giou_cost=2, num_labels=outputs["logits"].shape[-1],
        focal_alpha=0.25, group_detr=groups, auxiliary_loss=True, class_loss_coefficient=1,
        bbox_loss_coefficient=5, giou_loss_coefficient=2, decoder_layers=len(outputs["logits"]),
    )  # fmt: skip
    loss, terms, _ = LwDetrForObjectDetectionLoss(
        tensors["logits"][-1], labels, "cpu", tensors["boxes"][-1], config, tensors["logits"],
        tensors["boxes"], tensors["enc_logits"], tensors["enc_boxes"],
    )  # fmt: skip
    loss.backward()
    terms = {name: float(value.detach()) for name, value in terms.items()}
    return float(loss.detach()), terms, {name: t.grad.numpy() for name, t in tensors.items()}


def _close(ours: Any, reference: Any) -> None:
    ours, reference = np.asarray(ours, np.float64), np.asarray(reference, np.float64)
    scale = max(1.0, np.abs(reference).max(initial=0.0))
    assert np.isfinite(ours).all()
    assert np.abs(ours - reference).max(initial=0.0) <= TOLERANCE * scale


CASES = {
    "one group": (1, 1, 12, (3, 1), 3),
    "groups": (4, 3, 8, (5, 2, 3), 7),
    "thirteen groups, five sets": (4, 13, 10, (6, 1), 9),
    "an empty image": (3, 2, 9, (0, 4), 5),
    "nothing but empty images": (3, 2, 9, (0, 0), 5),
    "more objects than queries": (2, 2, 3, (5, 2), 6),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case: str) -> None:
    layers, groups, queries, counts, padded = CASES[case]
    outputs = _outputs(layers, len(counts), groups * queries, 7, seed=len(case))
    targets = _targets(counts, padded, 7, seed=len(case))
    loss, terms, grads = _reference(outputs, targets, groups)

    def ours(outputs: dict) -> tuple[jax.Array, dict]:
        return detection.detection_loss(outputs, targets, groups, CONFIG)

    (value, found), slopes = jax.jit(jax.value_and_grad(ours, has_aux=True))(outputs)
    _close(value, loss)
    wanted = {
        name: terms[name]
        for name in terms
        if not name.startswith("cardinality_error") or name == "cardinality_error"
    }
    assert found.keys() == wanted.keys()
    for name in wanted:
        _close(found[name], wanted[name])
    for name in NAMES:
        _close(slopes[name], grads[name])
    # Something was compared: where there are objects, boxes are taught too.
    assert np.abs(grads["logits"]).max() > 0.01
    assert (np.abs(grads["enc_boxes"]).max() > 1e-3) == (sum(counts) > 0)


def test_the_same_pairs_at_the_size_of_medium() -> None:
    """13 groups of 300 queries, 91 classes: every matched pair is the reference's."""
    outputs = _outputs(1, 2, 13 * 300, 91, seed=8)
    targets = _targets((17, 6), 20, 91, seed=8)
    cost = matching.costs(
        outputs["logits"][0], outputs["boxes"][0], np.where(targets["mask"], targets["labels"], 0),
        targets["boxes"], CONFIG.cost,
    )  # fmt: skip
    found = np.asarray(matching.match(cost, targets["mask"], 13))
    labels = _per_image(targets)
    given = {
        "logits": torch.from_numpy(outputs["logits"][0]),
        "pred_boxes": torch.from_numpy(outputs["boxes"][0]),
    }
    reference = LwDetrHungarianMatcher(2, 5, 2)(given, labels, 13)
    for image, (queries, objects) in enumerate(reference):
        real = found[image][:, targets["mask"][image]]  # [G, objects]
        pairs = {(int(q), o) for group in real for o, q in enumerate(group)}
        assert pairs == set(zip(queries.tolist(), objects.tolist(), strict=True))


def test_padding_changes_nothing() -> None:
    outputs = _outputs(2, 2, 10, 7, seed=3)
    targets = _targets((2, 3), 3, 7, seed=3)
    wider = {
        "boxes": np.pad(targets["boxes"], ((0, 0), (0, 4), (0, 0)), constant_values=np.nan),
        "labels": np.pad(targets["labels"], ((0, 0), (0, 4)), constant_values=-5),
        "mask": np.pad(targets["mask"], ((0, 0), (0, 4))),
    }

    def loss(outputs: dict, targets: dict) -> jax.Array:
        return detection.detection_loss(outputs, targets, 2, CONFIG)[0]

    one, other = (jax.jit(jax.value_and_grad(loss))(outputs, t) for t in (targets, wider))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8), one, other)


def test_certain_queries_have_finite_losses() -> None:
    """Where the reference's log of a rounded chance is infinite."""
    outputs = _outputs(1, 1, 4, 3, seed=0)
    outputs["logits"] = np.where(outputs["logits"] > -2, 200.0, -200.0).astype(np.float32)
    targets = _targets((2,), 2, 3, seed=0)

    def loss(outputs: dict) -> jax.Array:
        return detection.detection_loss(outputs, targets, 1, CONFIG)[0]

    value, grads = jax.jit(jax.value_and_grad(loss))(outputs)
    assert np.isfinite(value)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_steps_on_the_loss_find_the_objects() -> None:
    outputs = jax.tree.map(jnp.asarray, _outputs(2, 1, 12, 5, seed=4))
    targets = _targets((3,), 4, 5, seed=4)
    free = {
        "logits": outputs["logits"],
        "enc_logits": outputs["enc_logits"],
        "boxes": jnp.log(outputs["boxes"] / (1 - outputs["boxes"])),
        "enc_boxes": jnp.log(outputs["enc_boxes"] / (1 - outputs["enc_boxes"])),
    }

    def read(free: dict) -> dict:
        return {k: jax.nn.sigmoid(v) if k.endswith("boxes") else v for k, v in free.items()}

    def loss(free: dict) -> jax.Array:
        return detection.detection_loss(read(free), targets, 1, CONFIG)[0]

    tx = optax.adam(optax.cosine_decay_schedule(0.1, 200))

    def step(_: Any, carry: Any) -> Any:
        free, state = carry
        updates, state = tx.update(jax.grad(loss)(free), state)
        return optax.apply_updates(free, updates), state

    free, _ = jax.jit(lambda f: jax.lax.fori_loop(0, 200, step, (f, tx.init(f))))(free)
    final = read(free)
    mask = targets["mask"][0]
    chosen = jnp.argsort(-jnp.max(final["logits"][-1, 0], axis=-1))[:3]
    found = np.asarray(final["boxes"][-1, 0])[chosen]
    distance = np.abs(found[:, None] - targets["boxes"][0][mask][None]).max(axis=-1)
    assert (distance.min(axis=0) < 0.02).all()
    assert float(jax.nn.sigmoid(final["logits"][-1, 0, chosen].max(axis=-1)).min()) > 0.8
