"""Multi-scale deformable attention (Deformable DETR, arXiv 2010.04159, section 4.1).

Each query looks at a few points around its reference box instead of at the whole map. All corners
of all points of all heads and levels are fetched by one gather, so XLA sees a gather and a weighted
sum whatever the number of points.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from trace_jax.nn.linear import Linear

Levels = tuple[tuple[int, int], ...]


def sample_levels(
    value: Float[Array, "b n h w"],
    locations: Float[Array, "b q h l p 2"],
    weights: Float[Array, "b q h l p"],
    levels: Levels,
) -> Float[Array, "b q d"]:
    """Weighted sum of bilinear samples, zero outside the maps, pixel centres at half integers
    (`grid_sample` with align_corners=False and zero padding).

    Args:
      value: the maps of all levels, flattened row by row and laid end to end; heads split.
      locations: x, y of every point; 0 and 1 are the outer edges of the map.
      weights: what each point counts for.
      levels: (height, width) of each map, in the order in which they lie in `value`.

    Returns:
      [B, Q, H * W] in the dtype of `value`; places and weights are float32.
    """
    batch, queries, heads, _, points, _ = locations.shape
    sizes = np.asarray(levels)
    height, width = (jnp.asarray(side, jnp.float32)[:, None, None] for side in sizes.T)
    starts = np.cumsum([0, *sizes.prod(axis=1)[:-1]]).astype(np.int32)[:, None, None]
    locations = locations.astype(jnp.float32)
    x, x_weight = _neighbours(locations[..., 0], width)  # [B, Q, H, L, P, 2]
    y, y_weight = _neighbours(locations[..., 1], height)
    rows = y.astype(jnp.int32)[..., :, None] * sizes[:, 1].astype(np.int32)[:, None, None, None]
    index = rows + x.astype(jnp.int32)[..., None, :] + starts[..., None]
    share = y_weight[..., :, None] * x_weight[..., None, :]
    share = share * weights.astype(jnp.float32)[..., None, None]  # [B, Q, H, L, P, 2, 2]
    reach = len(levels) * points * 4
    index, share = (
        a.reshape(batch, queries, heads, reach).swapaxes(1, 2) for a in (index, share)
    )  # [B, H, Q, R]
    maps = value.swapaxes(1, 2)  # [B, H, N, W]
    near = jnp.take_along_axis(
        maps, index.reshape(batch, heads, queries * reach, 1), axis=2, mode="promise_in_bounds"
    )
    near = near.reshape(batch, heads, queries, reach, maps.shape[-1])
    total = (near * share[..., None].astype(value.dtype)).sum(axis=3)  # [B, H, Q, W]
    return total.swapaxes(1, 2).reshape(batch, queries, -1)


class DeformableAttention(nnx.Module):
    """Queries choose where on the maps they look, and how much each place counts.

    Args:
      width: model width.
      heads: number of heads; divides `width`.
      levels: number of maps.
      points: places a head looks at on each map.
      dtype: parameter dtype.
      rngs: stream "params".
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        levels: int,
        points: int,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ) -> None:
        looks = heads * levels * points
        self.offsets = Linear(width, looks * 2, bias=True, dtype=dtype, rngs=rngs)
        self.weights = Linear(width, looks, bias=True, dtype=dtype, rngs=rngs)
        self.value = Linear(width, width, bias=True, dtype=dtype, rngs=rngs)
        self.out = Linear(width, width, bias=True, dtype=dtype, rngs=rngs)
        # Heads start looking in different directions, farther with each point (paper, appendix).
        self.offsets.kernel[...] = jnp.zeros_like(self.offsets.kernel[...])
        self.offsets.bias = nnx.Param(_directions(heads, levels, points).astype(dtype))
        self.weights.kernel[...] = jnp.zeros_like(self.weights.kernel[...])
        self.shape = (heads, levels, points)

    def __call__(
        self,
        query: Float[Array, "b q d"],
        memory: Float[Array, "b n d"],
        boxes: Float[Array, "b q 4"],
        levels: Levels,
    ) -> Float[Array, "b q d"]:
        """Attention of every query around its box.

        Args:
          query: with positions added.
          memory: the maps, flattened and laid end to end.
          boxes: cx, cy, w, h in 0-1 of the image; offsets are in halves of w and h, over `points`.
          levels: (height, width) of each map.
        """
        heads, count, points = self.shape
        lead = query.shape[:2]
        offsets = self.offsets(query).reshape(*lead, heads, count, points, 2)
        weights = self.weights(query).reshape(*lead, heads, count * points).astype(jnp.float32)
        weights = jax.nn.softmax(weights, axis=-1).reshape(*lead, heads, count, points)
        centre, size = boxes[:, :, None, None, None, :2], boxes[:, :, None, None, None, 2:]
        locations = centre + offsets.astype(boxes.dtype) / points * size * 0.5
        value = self.value(memory)
        value = value.reshape(*value.shape[:2], heads, -1)
        return self.out(sample_levels(value, locations, weights, levels))


def _neighbours(
    place: Float[Array, "b q h l p"], size: Float[Array, "l 1 1"]
) -> tuple[Float[Array, "b q h l p 2"], Float[Array, "b q h l p 2"]]:
    """The two pixels on either side of a place along one axis, and their bilinear weights.

    A pixel outside is moved to the border and weighs nothing.
    """
    at = place * size[:, 0] - 0.5
    low = jnp.floor(at)
    pixels = jnp.stack([low, low + 1], axis=-1)
    # Linear in `at` alone: the gradient of floor is zero.
    part = at - jax.lax.stop_gradient(low)
    weights = jnp.stack([1 - part, part], axis=-1)
    inside = (pixels >= 0) & (pixels < size)
    return jnp.clip(pixels, 0, size - 1), jnp.where(inside, weights, 0.0)


def _directions(heads: int, levels: int, points: int) -> Float[Array, " o"]:
    angles = np.arange(heads) * (2 * np.pi / heads)
    unit = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    unit = unit / np.abs(unit).max(axis=-1, keepdims=True)
    steps = np.arange(1, points + 1)[None, None, :, None]
    spread = np.broadcast_to(unit[:, None, None] * steps, (heads, levels, points, 2))
    return jnp.asarray(spread.reshape(-1), jnp.float32)
