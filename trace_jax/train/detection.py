"""What a DETR-type detector minimises: IA-BCE, L1 and generalised IoU over matched queries.

Reference: transformers 5.24, loss/loss_lw_detr.py, which RF-DETR trains with (LwDetrImageLoss,
LwDetrForObjectDetectionLoss); LW-DETR (arXiv 2406.03459, section 3.3) for the IoU-aware BCE.

Every decoder layer and the first stage's proposals are taught alike, each set of predictions with
a match of its own; every group of queries is matched to all objects, and sums are divided by the
number of objects times the number of groups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from trace_jax.nn import boxes as box_ops
from trace_jax.train import matching
from trace_jax.train.step import LossFn

# A padded object's box: anything with an area, so that nothing divides by zero.
_PADDING = (0.5, 0.5, 1.0, 1.0)


@dataclasses.dataclass(frozen=True)
class DetectionConfig:
    """Weights of the loss.

    Attributes:
      classes, l1, giou: of IA-BCE, of the boxes' L1 distance and of 1 - generalised IoU.
      alpha: a matched query is taught the quality chance^alpha * IoU^(1 - alpha).
      gamma: unmatched classes weigh chance^gamma.
      least: smallest quality.
      cost: of matching.
    """

    classes: float = 1.0
    l1: float = 5.0
    giou: float = 2.0
    alpha: float = 0.25
    gamma: float = 2.0
    least: float = 0.01
    cost: matching.CostConfig = matching.CostConfig()


def make_loss(
    predict: Callable[[Any, Array], Mapping[str, Array]], groups: int, config: DetectionConfig
) -> LossFn:
    """The loss function of detector training for `train.loop.fit`.

    Args:
      predict: (params, pixel_values) -> predictions, see `detection_loss`.
      groups: of queries.
      config: weights.

    Its batch: "pixel_values" [B, S, S, 3], "boxes" [B, T, 4], "labels" [B, T], "mask" [B, T].
    """

    def loss_fn(
        params: Any, batch: Mapping[str, Array], rng: Array
    ) -> tuple[Array, Mapping[str, Array]]:
        del rng  # the recipe has no dropout
        outputs = predict(params, batch["pixel_values"])
        return detection_loss(outputs, batch, groups, config)

    return loss_fn


def detection_loss(
    outputs: Mapping[str, Array],
    targets: Mapping[str, Array],
    groups: int,
    config: DetectionConfig,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """The whole loss and its parts.

    Args:
      outputs: "logits" [L, B, Q, C] and "boxes" [L, B, Q, 4] (cx, cy, w, h in 0-1) of the decoder
        layers, the last one last; "enc_logits" [B, Q, C] and "enc_boxes" [B, Q, 4] of the first
        stage's proposals. Q counts the queries of all groups, group by group.
      targets: "boxes" [B, T, 4], "labels" [B, T] int, "mask" [B, T] bool; padding is ignored.
      groups: of queries.
      config: weights.

    Returns:
      The weighted sum over all sets of predictions, and by the reference's names the parts before
      weighting: "loss_ce", "loss_bbox", "loss_giou" of the last layer, with "_0", "_1" ... of the
      layers before it, with "_enc" of the first stage; "cardinality_error", for the eye alone.
    """
    logits = jnp.concatenate([outputs["logits"], outputs["enc_logits"][None]]).astype(jnp.float32)
    boxes = jnp.concatenate([outputs["boxes"], outputs["enc_boxes"][None]]).astype(jnp.float32)
    mask, labels = targets["mask"], targets["labels"]
    wanted = jnp.where(mask[..., None], targets["boxes"].astype(jnp.float32), jnp.array(_PADDING))
    labels = jnp.where(mask, labels, 0)
    seen, told = jax.lax.stop_gradient(logits), jax.lax.stop_gradient(boxes)
    cost = matching.costs(seen, told, labels, wanted, config.cost)
    index = matching.match(cost, mask, groups)  # [S, B, G, T]
    index = index.reshape(*index.shape[:2], -1)
    pairs = Pairs(
        index=index,
        labels=jnp.tile(labels, (1, groups)),
        boxes=jnp.tile(wanted, (1, groups, 1)),
        mask=index >= 0,
    )
    count = jnp.maximum(jnp.sum(mask) * groups, 1).astype(jnp.float32)
    parts = {
        "loss_ce": class_loss(logits, boxes, pairs, config) / count,
        **{name: value / count for name, value in box_losses(boxes, pairs).items()},
    }
    total = jnp.sum(
        config.classes * parts["loss_ce"]
        + config.l1 * parts["loss_bbox"]
        + config.giou * parts["loss_giou"]
    )
    last = outputs["logits"].shape[0] - 1
    endings = [f"_{k}" for k in range(last)] + ["", "_enc"]
    terms = {
        f"{name}{ending}": values[place]
        for name, values in parts.items()
        for place, ending in enumerate(endings)
    }
    terms["cardinality_error"] = cardinality_error(outputs["logits"][-1], mask)
    return total, terms


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pairs:
    """Objects and the queries that answer for them; P = groups * T.

    Attributes:
      index: [S, B, P], the query, -1 for none.
      labels: [B, P], the object's class.
      boxes: [B, P, 4], its box.
      mask: [S, B, P], which pairs are real.
    """

    index: Int[Array, "s b p"]
    labels: Int[Array, "b p"]
    boxes: Float[Array, "b p 4"]
    mask: Bool[Array, "s b p"]

    def pick(self, values: Float[Array, "s b q d"]) -> Float[Array, "s b p d"]:
        """The values of the pairs' queries; of query 0 where there is none."""
        return jnp.take_along_axis(values, jnp.maximum(self.index, 0)[..., None], axis=2)


def class_loss(
    logits: Float[Array, "s b q c"],
    boxes: Float[Array, "s b q 4"],
    pairs: Pairs,
    config: DetectionConfig,
) -> Float[Array, " s"]:
    """IoU-aware BCE, summed over images, queries and classes.

    A matched query's own class is pulled to 1 by its quality and to 0 by the rest of it; every
    other class is pulled to 0 by chance^gamma, whose gradient counts too. No gradient flows
    through the quality. Logarithms of sigmoids are taken as such: the reference takes logs of
    chances, equal until a chance is rounded to 0 or 1 and its loss becomes infinite.
    """
    chance = jax.nn.sigmoid(logits)
    found = jax.lax.stop_gradient(pairs.pick(boxes))
    iou, _ = box_ops.overlap(box_ops.corners(found), box_ops.corners(pairs.boxes))
    labels = jnp.broadcast_to(pairs.labels, pairs.index.shape)
    own = jnp.take_along_axis(pairs.pick(chance), labels[..., None], axis=-1)[..., 0]
    quality = own**config.alpha * iou ** (1 - config.alpha)
    quality = jax.lax.stop_gradient(jnp.maximum(quality, config.least))
    sets, batch, queries, _ = logits.shape
    where = (
        jnp.arange(sets)[:, None, None],
        jnp.arange(batch)[None, :, None],
        jnp.where(pairs.mask, pairs.index, queries),
        labels,
    )
    present = jnp.zeros_like(logits).at[where].set(quality, mode="drop")
    absent = (chance**config.gamma).at[where].set(1 - quality, mode="drop")
    loss = -present * jax.nn.log_sigmoid(logits) - absent * jax.nn.log_sigmoid(-logits)
    return jnp.sum(loss, axis=(1, 2, 3))


def box_losses(boxes: Float[Array, "s b q 4"], pairs: Pairs) -> dict[str, Float[Array, " s"]]:
    """L1 distance of (cx, cy, w, h) and 1 - generalised IoU, summed over pairs."""
    found = jnp.where(pairs.mask[..., None], pairs.pick(boxes), jnp.array(_PADDING))
    distance = jnp.abs(found - pairs.boxes).sum(axis=-1)
    giou = box_ops.generalized_overlap(box_ops.corners(found), box_ops.corners(pairs.boxes))
    return {
        "loss_bbox": jnp.sum(jnp.where(pairs.mask, distance, 0), axis=(1, 2)),
        "loss_giou": jnp.sum(jnp.where(pairs.mask, 1 - giou, 0), axis=(1, 2)),
    }


def cardinality_error(logits: Float[Array, "b q c"], mask: Bool[Array, "b t"]) -> Float[Array, ""]:
    """Mean over images of |queries that say yes to a class - objects|; queries of all groups
    count, as in the reference. No gradient.
    """
    yes = jnp.sum(jnp.max(jax.lax.stop_gradient(logits), axis=-1) > 0, axis=-1)
    return jnp.mean(jnp.abs(yes - jnp.sum(mask, axis=-1)).astype(jnp.float32))
