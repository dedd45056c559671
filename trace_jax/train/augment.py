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
    total, power = jnp.zeros((batch, side, side)), 0.0
    for octave, count in enumerate(cells):
        lift = jnp.asarray(_interpolation(side, count + 1))  # [side, count + 1]
        grid = jax.random.normal(jax.random.fold_in(key, octave), (batch, count + 1, count + 1))
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


def _uniform(key: PRNGKeyArray, batch: int, low: float, high: float) -> Float[Array, " b"]:
    return jax.random.uniform(key, (batch,), minval=low, maxval=high)


def _coordinates(
    key: PRNGKeyArray,
    amount: Float[Array, " b"],
    side: int,
    config: AugmentConfig,
    warped: bool,
) -> Float[Array, "b h w 2"]:
    keys = jax.random.split(key, 8)
    batch = amount.shape[0]
    low, high = config.scale
    # The output reads the input through the inverse map, hence 1/scale.
    scale = 1.0 / _uniform(keys[0], batch, low, high)
    stretch = 1.0 + _uniform(keys[1], batch, -0.05, 0.05)
    angle = jnp.deg2rad(_uniform(keys[2], batch, -config.rotation, config.rotation))
    shift = jax.random.uniform(keys[3], (2, batch), minval=-1.0, maxval=1.0) * config.shift * side
    mirror = jnp.where(jax.random.uniform(keys[4], (batch,)) < config.flip, -1.0, 1.0)
    centre = (side - 1) / 2.0
    axis = jnp.arange(side) - centre
    y, x = axis[None, :, None], axis[None, None, :]
    cosine, sine = jnp.cos(angle)[:, None, None], jnp.sin(angle)[:, None, None]
    across, along = (scale * stretch)[:, None, None], (scale / stretch)[:, None, None]
    row = across * (cosine * y + sine * x) + shift[0][:, None, None]
    column = along * (cosine * x - sine * y) * mirror[:, None, None] + shift[1][:, None, None]
    if warped:
        reach = (amount * _uniform(keys[5], batch, 0.0, 1.0) * config.warp * side)[:, None, None]
        row = row + reach * smooth_noise(keys[6], batch, side, (3, 6))
        column = column + reach * smooth_noise(keys[7], batch, side, (3, 6))
    return jnp.stack([row + centre, column + centre], axis=-1)


def _colours(
    key: PRNGKeyArray, images: Float[Array, "b h w 3"], config: AugmentConfig
) -> Float[Array, "b h w 3"]:
    keys = jax.random.split(key, 4)
    batch = images.shape[0]

    def factor(key: PRNGKeyArray, reach: float) -> Array:
        return 1.0 + _uniform(key, batch, -reach, reach)[:, None, None, None]

    grey = jnp.sum(images * jnp.asarray(_LUMA), axis=-1, keepdims=True)
    # A gain on the distance from white leaves white alone; a gamma does the same at both ends.
    jittered = grey + (images - grey) * factor(keys[0], config.saturation)
    jittered = 1.0 - (1.0 - jittered) * factor(keys[1], config.contrast)
    jittered = jnp.clip(jittered, 1e-4, 1.0) ** factor(keys[2], 2 * config.brightness)
    return jittered


def _soot(
    key: PRNGKeyArray,
    images: Float[Array, "b h w 3"],
    amount: Float[Array, " b"],
    config: AugmentConfig,
) -> Float[Array, "b h w 3"]:
    keys = jax.random.split(key, 6)
    batch, side = images.shape[0], images.shape[1]
    noise = smooth_noise(keys[0], batch, side, (4, 8, 24))
    share = jnp.clip(amount * config.soot * _uniform(keys[1], batch, 0.7, 1.3), 0.0, 0.98)
    edge = _uniform(keys[2], batch, 2.0, 8.0)[:, None, None]
    # The noise is standard normal, so this threshold covers about `share` of the picture.
    threshold = jax.scipy.stats.norm.ppf(1.0 - jnp.maximum(share, 1e-3))[:, None, None]
    low, high = config.soot_darkness
    opacity = _uniform(keys[3], batch, low, high) * (amount > 0)
    cover = jax.nn.sigmoid((noise - threshold) * edge) * opacity[:, None, None]
    cover = (cover * foreground(images))[..., None]
    tone = _uniform(keys[4], batch, 0.02, 0.22)[:, None] + jnp.asarray([0.02, 0.005, 0.0])
    texture = 1.0 + 0.25 * smooth_noise(keys[5], batch, side, (24, 48))[..., None]
    soot = jnp.clip(tone[:, None, None, :] * texture, 0.0, 1.0)
    # What shows between the blotches dulls too, as under a thin film.
    film = (0.35 * amount)[:, None, None, None] * (1.0 - cover)
    grey = jnp.sum(images * jnp.asarray(_LUMA), axis=-1, keepdims=True)
    mask = foreground(images)[..., None]
    dulled = images * (1 - film * mask) + film * mask * (0.75 * grey)
    return dulled * (1.0 - cover) + soot * cover


def _holes(
    key: PRNGKeyArray,
    images: Float[Array, "b h w 3"],
    amount: Float[Array, " b"],
    config: AugmentConfig,
) -> Float[Array, "b h w 3"]:
    keys = jax.random.split(key, 3)
    batch, side = images.shape[0], images.shape[1]
    share = config.holes * amount * _uniform(keys[1], batch, 0.0, 1.0)
    noise = smooth_noise(keys[0], batch, side, (3, 6, 24))
    # Fire more often takes the top of things than their base.
    tilt = jnp.linspace(0.8, -0.8, side)[None, :, None]
    tilt = tilt * _uniform(keys[2], batch, -0.2, 1.0)[:, None, None]
    threshold = jax.scipy.stats.norm.ppf(1.0 - jnp.maximum(share, 1e-4))[:, None, None]
    hole = jax.nn.sigmoid((noise + tilt - threshold) * 20.0) * (amount > 0)[:, None, None]
    return images + (1.0 - images) * hole[..., None]


def _occluder(
    key: PRNGKeyArray,
    images: Float[Array, "b h w 3"],
    amount: Float[Array, " b"],
    config: AugmentConfig,
) -> Float[Array, "b h w 3"]:
    keys = jax.random.split(key, 4)
    batch, side = images.shape[0], images.shape[1]
    present = (jax.random.uniform(keys[0], (batch,)) < config.occluder) & (amount > 0)
    middle = jax.random.uniform(keys[1], (2, batch), minval=0.15, maxval=0.85) * side
    half = jax.random.uniform(keys[2], (2, batch), minval=0.05, maxval=0.2) * side
    axis = jnp.arange(side)
    inside = (jnp.abs(axis[None, :, None] - middle[0][:, None, None]) < half[0][:, None, None]) & (
        jnp.abs(axis[None, None, :] - middle[1][:, None, None]) < half[1][:, None, None]
    )
    # A dark or light grey patch lying over the object; the background stays white.
    tone = jax.random.uniform(keys[3], (batch, 1, 1, 1), minval=0.05, maxval=1.0)
    cover = (inside & present[:, None, None]) * foreground(images)
    return images * (1.0 - cover[..., None]) + tone * cover[..., None]
