"""Boxes as (centre x, centre y, width, height) or as corners (x0, y0, x1, y1), and their overlap.

Everything computes in float32: half a digit of a box is pixels.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def corners(boxes: Float[Array, "*b 4"]) -> Float[Array, "*b 4"]:
    """(cx, cy, w, h) to (x0, y0, x1, y1)."""
    boxes = boxes.astype(jnp.float32)
    half = boxes[..., 2:] / 2
    return jnp.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], axis=-1)


def centred(boxes: Float[Array, "*b 4"]) -> Float[Array, "*b 4"]:
    """(x0, y0, x1, y1) to (cx, cy, w, h)."""
    boxes = boxes.astype(jnp.float32)
    low, high = boxes[..., :2], boxes[..., 2:]
    return jnp.concatenate([(low + high) / 2, high - low], axis=-1)


def area(boxes: Float[Array, "*b 4"]) -> Float[Array, "*b"]:
    """Areas of boxes given by corners."""
    size = boxes[..., 2:] - boxes[..., :2]
    return size[..., 0] * size[..., 1]


def overlap(
    first: Float[Array, "*b 4"], second: Float[Array, "*b 4"]
) -> tuple[Float[Array, "*b"], Float[Array, "*b"]]:
    """Intersection over union, and the union, of boxes given by corners.

    Leading axes broadcast: [B, 4] with [B, 4] gives pairs, [N, 1, 4] with [M, 4] the whole table.
    NaN where both boxes have no area.
    """
    low = jnp.maximum(first[..., :2], second[..., :2])
    high = jnp.minimum(first[..., 2:], second[..., 2:])
    size = jnp.maximum(high - low, 0)
    inside = size[..., 0] * size[..., 1]
    union = area(first) + area(second) - inside
    return inside / union, union


def generalized_overlap(
    first: Float[Array, "*b 4"], second: Float[Array, "*b 4"]
) -> Float[Array, "*b"]:
    """Generalised IoU (arXiv 1902.09630), -1 to 1, of boxes given by corners; see `overlap`."""
    iou, union = overlap(first, second)
    low = jnp.minimum(first[..., :2], second[..., :2])
    high = jnp.maximum(first[..., 2:], second[..., 2:])
    size = jnp.maximum(high - low, 0)
    hull = size[..., 0] * size[..., 1]
    return iou - (hull - union) / hull
