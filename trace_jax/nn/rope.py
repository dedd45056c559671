"""Rotary positions in the rotate-half form that every host of this project uses."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def frequencies(width: int, theta: float) -> np.ndarray:
    """theta^(-2i/width) for i < width/2: float32 [width / 2], computed as torch does."""
    exponents = np.arange(0, width, 2, dtype=np.int64).astype(np.float32) / np.float32(width)
    return (np.float32(1.0) / np.float32(theta) ** exponents).astype(np.float32)


def section_axes(sections: tuple[int, ...], layout: str, half: int) -> np.ndarray:
    """Which of the three position axes (time, row, column) turns each frequency.

    Args:
      sections: frequencies of each axis; () means that the time axis turns all of them.
      layout: "plain" (time only), "interleaved" (Qwen3-VL: t h w t h w ... then t) or
        "sectioned" (Qwen2.5-VL: all t, then all h, then all w).
      half: number of frequencies, head width / 2.

    Returns:
      int [half], values 0-2.
    """
    axes = np.zeros(half, np.int32)
    if layout == "interleaved":
        for axis in (1, 2):
            axes[axis : sections[axis] * 3 : 3] = axis
    elif layout == "sectioned":
        axes = np.repeat(np.arange(3, dtype=np.int32), sections)
    elif layout != "plain":
        raise ValueError(f"rope layout {layout!r} is not plain, interleaved or sectioned")
    return axes


def text_angles(
    positions: Int[Array, 3 * b],
    width: int,
    theta: float,
    sections: tuple[int, ...],
    layout: str,
) -> Float[Array, "*b half"]:
    """Angle of every frequency at every position, float32.

    Args:
      positions: time, row and column of every token; equal on text.
      width: head width.
      theta, sections, layout: see `section_axes`.
    """
    axes = section_axes(sections, layout, width // 2)
    chosen = jnp.moveaxis(positions[axes], 0, -1)  # [*B, half]
    return chosen.astype(jnp.float32) * frequencies(width, theta)


def axial_angles(
    rows: Int[Array, "*b"], columns: Int[Array, "*b"], width: int, theta: float
) -> Float[Array, "*b half"]:
    """Angles of a patch grid: the first half of the frequencies by row, the second by column.

    Args:
      rows, columns: of every patch.
      width: head width; there are width / 4 frequencies an axis.
    """
    base = frequencies(width // 2, theta)
    parts = [axis.astype(jnp.float32)[..., None] * base for axis in (rows, columns)]
    return jnp.concatenate(parts, axis=-1)


def rotate(
    x: Float[Array, "*b n h w"], angles: Float[Array, "*b n half"], dtype: jnp.dtype
) -> Float[Array, "*b n h w"]:
    """x turned by its position's angles; element i pairs with element i + w/2.

    Args:
      x: [.., N, heads, W].
      angles: [.., N, W / 2], float32.
      dtype: what the products are computed in: the hidden dtype in text decoders, float32 in
        vision towers. The result has x's dtype.
    """
    cos = jnp.cos(angles).astype(dtype)[..., None, :]
    sin = jnp.sin(angles).astype(dtype)[..., None, :]
    low, high = jnp.split(x.astype(dtype), 2, axis=-1)
    turned = jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
    return turned.astype(x.dtype)
