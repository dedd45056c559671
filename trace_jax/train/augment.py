"""Random views of studio pictures for pretraining the nano hosts, batched and on the device.

A web-scale host has met dirt, shadow, wear, breakage and clutter before it meets a fire scene. A
host pretrained from scratch on clean renders has not, and its retrieval collapses at the lightest
soot. These views stand in for that experience: smooth dark blotches (they resemble soot, and this
must be said wherever the nano hosts' numbers are shown), ragged holes, smooth warps and occluding
patches, beside the usual crops, flips and mild colour jitter. They are painted on 2-D pictures and
share no code, no noise and no material model with the damage engine of `trace_jax.synthesis`.

The background stays white: what is pulled in from outside the picture is white, blotches are laid
on the object only. Colour jitter is mild because colour is evidence of identity.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt8

# Luma weights of ITU-R BT.601.
_LUMA = (0.299, 0.587, 0.114)


@dataclasses.dataclass(frozen=True)
class AugmentConfig:
    """Ranges of the random views. Lengths are fractions of the picture's side.

    Attributes:
      scale: smallest and largest size of the object against the render.
      shift: largest shift along either axis.
      rotation: largest rotation, degrees.
      flip: probability of a horizontal flip.
      brightness, contrast, saturation: largest relative change.
      clean: share of damaged-side views that stay free of damage.
      soot: largest share of the object under blotches.
      soot_darkness: smallest and largest opacity of a blotch.
      holes: largest share of the object replaced by the white background.
      warp: largest root-mean-square displacement of the smooth warp.
      occluder: probability of one occluding patch.
    """

    scale: tuple[float, float] = (0.85, 1.12)
    shift: float = 0.06
    rotation: float = 8.0
    flip: float = 0.5
    brightness: float = 0.12
    contrast: float = 0.12
    saturation: float = 0.12
    clean: float = 0.2
    soot: float = 0.95
    soot_darkness: tuple[float, float] = (0.5, 0.97)
    holes: float = 0.55
    warp: float = 0.05
    occluder: float = 0.25


def views(
    key: PRNGKeyArray,
    images: UInt8[Array, "b h w 3"],
    config: AugmentConfig,
    damaged: bool,
) -> tuple[Float[Array, "b h w 3"], Float[Array, "b h w 3"]]:
    """Draws one random view of each picture.

    Args:
      key: random key; the views are a pure function of it and of the pictures.
      images: square pictures on white, 0-255.
      config: ranges.
      damaged: whether blotches, holes, warps and occluders are drawn too.

    Returns:
      The view, and the same view before blotches, holes and occluders (with the same geometry
      and colours), both 0-1.
    """
    keys = jax.random.split(key, 6)
    batch, side = images.shape[0], images.shape[1]
    amount = jnp.zeros((batch,))
    if damaged:
        drawn = jax.random.uniform(keys[0], (2, batch))
        amount = jnp.where(drawn[0] < config.clean, 0.0, drawn[1])
    pixels = images.astype(jnp.float32) / 255.0
    pixels = sample(pixels, _coordinates(keys[1], amount, side, config, warped=damaged))
    clean = _colours(keys[2], pixels, config)
    if not damaged:
        return clean, clean
    view = _soot(keys[3], clean, amount, config)
    view = _holes(keys[4], view, amount, config)
    view = _occluder(keys[5], view, amount, config)
    return view, clean


def sample(
    images: Float[Array, "b h w c"], coordinates: Float[Array, "b h w 2"]
) -> Float[Array, "b h w c"]:
    """Bilinear resampling; what lies outside a picture is white (1).

    Args:
      images: pictures, 0-1.
      coordinates: for each output pixel the (row, column) to read, in pixels; centres of pixels
        are whole numbers.
    """
    batch, height, width, channels = images.shape
    # One white pixel around the picture, and the four neighbours side by side: a single gather
    # of contiguous values is several times faster on a CPU than four scattered ones.
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=1.0)
    four = jnp.concatenate(
        [padded[:, :-1, :-1], padded[:, :-1, 1:], padded[:, 1:, :-1], padded[:, 1:, 1:]], axis=-1
    )
    row = jnp.clip(coordinates[..., 0] + 1.0, 0.0, height + 0.999)
    column = jnp.clip(coordinates[..., 1] + 1.0, 0.0, width + 0.999)
    top = jnp.clip(jnp.floor(row), 0, height)
    left = jnp.clip(jnp.floor(column), 0, width)
    index = (top * (width + 1) + left).astype(jnp.int32).reshape(batch, height * width)
    flat = four.reshape(batch, (height + 1) * (width + 1), 4 * channels)
    taken = jnp.take_along_axis(flat, index[..., None], axis=1, mode="promise_in_bounds")
    taken = taken.reshape(batch, height, width, 4, channels)
    down = jnp.clip(row - top, 0.0, 1.0)[..., None]
    right = jnp.clip(column - left, 0.0, 1.0)[..., None]
    upper = taken[..., 0, :] * (1 - right) + taken[..., 1, :] * right
    lower = taken[..., 2, :] * (1 - right) + taken[..., 3, :] * right
    return upper * (1 - down) + lower * down


def smooth_noise(
    key: PRNGKeyArray, batch: int, side: int, cells: tuple[int, ...]
) -> Float[Array, "b h w"]:
    """Smooth noise, roughly standard normal at every pixel: a sum of octaves.

    Args:
      key: random key.
      batch, side: how many fields, of which size.
      cells: grid cells along the side, one number an octave; amplitudes fall as 1/sqrt(cells).
    """
    total, power, start = jnp.zeros((batch, side, side)), 0.0, 0
    # One call for all octaves: every call of the generator costs compile time.
    values = jax.random.normal(key, (batch, sum((count + 1) ** 2 for count in cells)))
    for count in cells:
        lift = jnp.asarray(_interpolation(side, count + 1))  # [side, count + 1]
        grid = values[:, start : start + (count + 1) ** 2].reshape(batch, count + 1, count + 1)
        start += (count + 1) ** 2
        amplitude = (cells[0] / count) ** 0.5
        total = total + amplitude * jnp.einsum("ya,bac,xc->byx", lift, grid, lift)
        power += amplitude**2
    return total / power**0.5


def foreground(images: Float[Array, "b h w 3"]) -> Float[Array, "b h w"]:
    """Soft mask of the object on white: 1 where a pixel or its near neighbourhood is not white."""
    darkness = 1.0 - jnp.min(images, axis=-1)
    spread = jax.lax.reduce_window(darkness, -jnp.inf, jax.lax.max, (1, 3, 3), (1, 1, 1), "SAME")
    return jnp.clip((spread - 0.02) * 25.0, 0.0, 1.0)


def _interpolation(side: int, points: int) -> np.ndarray:
    # Raised-cosine interpolation between grid points, rows scaled to keep unit variance along
    # the axis (plain interpolation would make the field quieter between the points).
    place = np.linspace(0, points - 1, side)
    left = np.minimum(place.astype(int), points - 2)
    ease = 0.5 - 0.5 * np.cos(np.pi * (place - left))
    matrix = np.zeros((side, points), np.float32)
    matrix[np.arange(side), left] = 1 - ease
    matrix[np.arange(side), left + 1] += ease
    return matrix / np.linalg.norm(matrix, axis=1, keepdims=True)


def _draws(key: PRNGKeyArray, batch: int, *ranges: tuple[float, float]) -> list[Array]:
    """One uniform number [B] for each (low, high)."""
    low, high = jnp.asarray(ranges).T[..., None]
    return list(low + (high - low) * jax.random.uniform(key, (len(ranges), batch)))


def _wide(values: Float[Array, " b"]) -> Float[Array, "b 1 1"]:
    return values[:, None, None]


def _coordinates(
    key: PRNGKeyArray,
    amount: Float[Array, " b"],
    side: int,
    config: AugmentConfig,
    warped: bool,
) -> Float[Array, "b h w 2"]:
    keys = jax.random.split(key, 3)
    batch, shift, turn = amount.shape[0], config.shift * side, math.radians(config.rotation)
    size, stretch, angle, down, right, side_drawn, reach = _draws(
        keys[0],
        batch,
        config.scale,
        (0.95, 1.05),
        (-turn, turn),
        (-shift, shift),
        (-shift, shift),
        (0.0, 1.0),
        (0.0, config.warp * side),
    )
    mirror = jnp.where(side_drawn < config.flip, -1.0, 1.0)
    centre = (side - 1) / 2.0
    axis = jnp.arange(side) - centre
    y, x = axis[None, :, None], axis[None, None, :]
    cosine, sine = _wide(jnp.cos(angle)), _wide(jnp.sin(angle))
    # The output reads the input through the inverse map, hence the divisions by the size.
    row = _wide(stretch / size) * (cosine * y + sine * x) + _wide(down)
    column = _wide(mirror / (stretch * size)) * (cosine * x - sine * y) + _wide(right)
    if warped:
        row = row + _wide(amount * reach) * smooth_noise(keys[1], batch, side, (3, 6))
        column = column + _wide(amount * reach) * smooth_noise(keys[2], batch, side, (3, 6))
    return jnp.stack([row + centre, column + centre], axis=-1)


def _colours(
    key: PRNGKeyArray, images: Float[Array, "b h w 3"], config: AugmentConfig
) -> Float[Array, "b h w 3"]:
    saturation, contrast, gamma = (
        1.0 + _wide(drawn)[..., None]
        for drawn in _draws(
            key,
            images.shape[0],
            (-config.saturation, config.saturation),
            (-config.contrast, config.contrast),
            (-2 * config.brightness, 2 * config.brightness),
        )
    )
    grey = jnp.sum(images * jnp.asarray(_LUMA), axis=-1, keepdims=True)
    # Gains on the distance from grey and from white leave white alone, and so does a gamma.
    jittered = grey + (images - grey) * saturation
    jittered = 1.0 - (1.0 - jittered) * contrast
    return jnp.clip(jittered, 1e-4, 1.0) ** gamma


def _soot(
    key: PRNGKeyArray,
    images: Float[Array, "b h w 3"],
    amount: Float[Array, " b"],
    config: AugmentConfig,
) -> Float[Array, "b h w 3"]:
    keys = jax.random.split(key, 3)
    batch, side = images.shape[0], images.shape[1]
    spread, edge, opacity, tone = _draws(
        keys[0], batch, (0.7, 1.3), (2.0, 8.0), config.soot_darkness, (0.02, 0.22)
    )
    noise = smooth_noise(keys[1], batch, side, (4, 8, 24))
    share = jnp.clip(amount * config.soot * spread, 0.0, 0.98)
    mask = foreground(images)
    cover = jax.nn.sigmoid((noise - _threshold(share)) * _wide(edge))
    cover = (cover * _wide(opacity * (share > 0)) * mask)[..., None]
    # Soot is nearly black, a little warm, and grainy.
    grain = 1.0 + 0.25 * smooth_noise(keys[2], batch, side, (24, 48))[..., None]
    soot = (_wide(tone)[..., None] + jnp.asarray([0.02, 0.005, 0.0])) * grain
    # What shows between the blotches dulls too, as under a thin film.
    film = _wide(0.35 * jnp.minimum(share, amount))[..., None] * mask[..., None]
    grey = jnp.sum(images * jnp.asarray(_LUMA), axis=-1, keepdims=True)
    dulled = images + film * (0.75 * grey - images)
    return dulled + cover * (jnp.clip(soot, 0.0, 1.0) - dulled)


def _holes(
    key: PRNGKeyArray,
    images: Float[Array, "b h w 3"],
    amount: Float[Array, " b"],
    config: AugmentConfig,
) -> Float[Array, "b h w 3"]:
    keys = jax.random.split(key, 2)
    batch, side = images.shape[0], images.shape[1]
    part, lean = _draws(keys[0], batch, (0.0, 1.0), (-0.2, 1.0))
    share = config.holes * amount * part
    noise = smooth_noise(keys[1], batch, side, (3, 6, 24))
    # Fire more often takes the top of things than their base.
    tilt = jnp.linspace(0.8, -0.8, side)[None, :, None] * _wide(lean)
    hole = jax.nn.sigmoid((noise + tilt - _threshold(share)) * 20.0) * _wide(share > 0)
    return images + (1.0 - images) * hole[..., None]


def _occluder(
    key: PRNGKeyArray,
    images: Float[Array, "b h w 3"],
    amount: Float[Array, " b"],
    config: AugmentConfig,
) -> Float[Array, "b h w 3"]:
    batch, side = images.shape[0], images.shape[1]
    chance, row, column, tall, broad, tone = _draws(
        key, batch, (0.0, 1.0), *[(0.15, 0.85)] * 2, *[(0.05, 0.2)] * 2, (0.05, 1.0)
    )
    present = (chance < config.occluder) & (amount > 0)
    place = jnp.arange(side) / side
    inside = (jnp.abs(place[None, :, None] - _wide(row)) < _wide(tall)) & (
        jnp.abs(place[None, None, :] - _wide(column)) < _wide(broad)
    )
    # A dark or light grey patch lying over the object; the background stays white.
    cover = (inside & _wide(present)) * foreground(images)
    return images + cover[..., None] * (_wide(tone)[..., None] - images)


def _threshold(share: Float[Array, " b"]) -> Float[Array, "b 1 1"]:
    # The noise is about standard normal: this much of a picture lies above its quantile.
    return _wide(jax.scipy.stats.norm.ppf(1.0 - jnp.clip(share, 1e-4, 0.999)))
