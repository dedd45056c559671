"""Objectives for pretraining the nano hosts: images with images, images with captions.

The hosts are used as frozen encoders whose mean-pooled tap tokens retrieve an instance (paper 5.1),
so the tap tokens themselves are trained to do that; CLIP's own loss reaches only its class token
and would leave the last patch tokens without meaning. The terms:

- pair: two views of one instance against all other instances of the batch, on mean-pooled tap
  tokens and on the head's embedding (InfoNCE over cosines, van den Oord 2018; Chen 2020);
- text: the embedding against captions, sigmoid (SigLIP, Zhai 2023) or softmax (CLIP, Radford 2021);
- side heads on pooled tokens (object type, materials) and on single tokens (the colour of the
  patch under the soot); the heads are thrown away after pretraining.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from trace_jax.train import augment

# CLIP (Radford 2021, section 2.5) keeps the temperature above 1/100; so do we, everywhere.
_MAX_LOG_SCALE = 4.605170185988092

Params = Any
Encode = Callable[[Params, Float[Array, "b h w 3"]], tuple[Array, Array]]
EncodeText = Callable[[Params, Int[Array, "b l"]], Array]
ReadScale = Callable[[Params], tuple[Array, Array]]


@dataclasses.dataclass(frozen=True)
class ContrastiveConfig:
    """Weights of the terms, and what the views are.

    Attributes:
      text: "sigmoid" (SigLIP) or "softmax" (CLIP).
      pooled, embedding, caption, object_type, material, colour: weights of the terms.
      label_smoothing: of the object type's cross-entropy.
      mean, std: the host's pixel normalisation.
      views: ranges of the random views.
    """

    text: str = "sigmoid"
    pooled: float = 1.0
    embedding: float = 0.5
    caption: float = 0.5
    object_type: float = 0.2
    material: float = 0.2
    colour: float = 1.0
    label_smoothing: float = 0.05
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    views: augment.AugmentConfig = augment.AugmentConfig()


def unit(vectors: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
    """Vectors scaled to length 1; a zero vector stays zero and has a finite gradient."""
    return vectors * jax.lax.rsqrt(jnp.sum(vectors**2, axis=-1, keepdims=True) + 1e-12)


def pair_loss(
    first: Float[Array, "b d"], second: Float[Array, "b d"], log_scale: Float[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Symmetric InfoNCE over cosines: row i of `first` belongs to row i of `second`.

    Returns:
      The loss in nats, and the share of `second` rows whose nearest `first` row is their own.
    """
    logits = _scale(log_scale) * unit(first) @ unit(second).T
    loss = -0.5 * jnp.mean(
        jnp.diagonal(jax.nn.log_softmax(logits, axis=0))
        + jnp.diagonal(jax.nn.log_softmax(logits, axis=1))
    )
    # Counted strictly, so that a collapsed encoder (all cosines equal) scores 0, not 1.
    others = jnp.where(jnp.eye(logits.shape[0], dtype=bool), -jnp.inf, logits)
    hit = jnp.mean(jnp.diagonal(logits) > jnp.max(others, axis=0))
    return loss, hit


def softmax_text_loss(
    images: Float[Array, "b e"],
    texts: Float[Array, "b e"],
    log_scale: Float[Array, ""],
    same: Bool[Array, "b b"],
) -> Float[Array, ""]:
    """CLIP's loss; equal captions in one batch share the target mass instead of being negatives.

    Args:
      images, texts: embeddings, of any length; row i of both belong together.
      log_scale: natural logarithm of the inverse temperature.
      same: true where the captions of rows i and j are equal; true on the diagonal.
    """
    logits = _scale(log_scale) * unit(images) @ unit(texts).T
    target = same / jnp.sum(same, axis=1, keepdims=True)  # symmetric classes: rows sum to 1
    rows = -jnp.sum(target * jax.nn.log_softmax(logits, axis=1), axis=1)
    columns = -jnp.sum(target.T * jax.nn.log_softmax(logits, axis=0), axis=0)
    return 0.5 * jnp.mean(rows + columns)


def sigmoid_text_loss(
    images: Float[Array, "b e"],
    texts: Float[Array, "b e"],
    log_scale: Float[Array, ""],
    bias: Float[Array, ""],
    same: Bool[Array, "b b"],
) -> Float[Array, ""]:
    """SigLIP's loss: each pair is its own yes/no question; equal captions are all "yes".

    Args:
      images, texts: embeddings, of any length; row i of both belong together.
      log_scale: natural logarithm of the inverse temperature.
      bias: added to every logit (SigLIP starts it at -10, most pairs being negative).
      same: true where the captions of rows i and j are equal; true on the diagonal.
    """
    logits = _scale(log_scale) * unit(images) @ unit(texts).T + bias
    return -jnp.sum(jax.nn.log_sigmoid(jnp.where(same, 1.0, -1.0) * logits)) / logits.shape[0]


def init_heads(
    key: PRNGKeyArray, dim: int, types: int, materials: int
) -> dict[str, dict[str, Array]]:
    """Side heads and the two pair temperatures, all discarded after pretraining.

    Args:
      key: random key.
      dim: D, width of the tap tokens.
      types, materials: number of object types and of material classes.
    """
    sizes = {"object_type": types, "material": materials, "colour": 3}
    heads = {
        name: {
            "kernel": jax.random.normal(jax.random.fold_in(key, place), (dim, size)) * dim**-0.5,
            "bias": jnp.zeros((size,)),
        }
        for place, (name, size) in enumerate(sizes.items())
    }
    start = jnp.full((), math.log(1 / 0.1), jnp.float32)
    heads["scales"] = {"pooled": start, "embedding": start}
    return heads


def make_loss(
    encode: Encode, encode_text: EncodeText, read_scale: ReadScale, config: ContrastiveConfig
) -> Callable[[Params, Mapping[str, Any], PRNGKeyArray], tuple[Array, dict[str, Array]]]:
    """Binds a host's pure functions into the loss of one step.

    Args:
      encode: (host params, pixels [B, H, W, 3] normalised) -> tokens [B, N, D], embedding [B, E].
      encode_text: (host params, token ids [B, L]) -> [B, E].
      read_scale: host params -> (log scale, bias) of the text loss; the bias is unused for CLIP.
      config: weights and views.

    Returns:
      loss(params, batch, rng) -> (scalar, terms). `params` is {"host", "heads"}; `batch` holds
      `first`, `second` uint8 [B, H, W, 3] (two renders of each instance; the second one is also
      damaged), `input_ids` [B, L], `text_group` [B] (equal numbers, equal captions),
      `object_type` [B], `material` [B, classes] 0/1.
    """
    if config.text not in ("sigmoid", "softmax"):
        raise ValueError(f"text loss {config.text!r} is neither 'sigmoid' nor 'softmax'")

    def loss(
        params: Params, batch: Mapping[str, Any], rng: PRNGKeyArray
    ) -> tuple[Array, dict[str, Array]]:
        first_key, second_key = jax.random.split(rng)
        first, first_clean = augment.views(first_key, batch["first"], config.views, damaged=False)
        second, second_clean = augment.views(
            second_key, batch["second"], config.views, damaged=True
        )
        pixels = _normalise(jnp.concatenate([first, second]), config)
        tokens, embedding = encode(params["host"], pixels)
        pooled = jnp.mean(tokens, axis=1)
        heads, half = params["heads"], batch["first"].shape[0]
        terms: dict[str, Array] = {}
        terms["pooled"], terms["pooled_hit"] = pair_loss(
            pooled[:half], pooled[half:], heads["scales"]["pooled"]
        )
        terms["embedding"], _ = pair_loss(
            embedding[:half], embedding[half:], heads["scales"]["embedding"]
        )
        terms["caption"] = _caption_loss(
            params["host"], batch, embedding, encode_text, read_scale, config
        )
        terms.update(side_losses(heads, batch, pooled, config.label_smoothing))
        terms["colour"] = _colour_loss(
            heads["colour"], tokens, jnp.concatenate([first_clean, second_clean])
        )
        total = sum(
            getattr(config, name) * terms[name]
            for name in ("pooled", "embedding", "caption", "object_type", "material", "colour")
        )
        return jnp.asarray(total), terms

    return loss


def _scale(log_scale: Float[Array, ""]) -> Float[Array, ""]:
    return jnp.exp(jnp.minimum(jnp.reshape(log_scale, ()), _MAX_LOG_SCALE))


def _normalise(
    pixels: Float[Array, "b h w 3"], config: ContrastiveConfig
) -> Float[Array, "b h w 3"]:
    return (pixels - jnp.asarray(config.mean)) / jnp.asarray(config.std)


def _caption_loss(
    host: Params,
    batch: Mapping[str, Any],
    embedding: Float[Array, "b e"],
    encode_text: EncodeText,
    read_scale: ReadScale,
    config: ContrastiveConfig,
) -> Array:
    texts = encode_text(host, batch["input_ids"])
    group: Int[Array, " b"] = batch["text_group"]
    same = group[:, None] == group[None, :]
    log_scale, bias = read_scale(host)
    half = group.shape[0]

    def one(images: Float[Array, "b e"]) -> Array:
        if config.text == "softmax":
            return softmax_text_loss(images, texts, log_scale, same)
        return sigmoid_text_loss(images, texts, log_scale, jnp.reshape(bias, ()), same)

    return 0.5 * (one(embedding[:half]) + one(embedding[half:]))


def side_losses(
    heads: Mapping[str, Any],
    batch: Mapping[str, Any],
    pooled: Float[Array, "b d"],
    smoothing: float,
) -> dict[str, Array]:
    """What linear heads on pooled tokens tell of the object: its type, its materials.

    Args:
      heads: of `init_heads`.
      batch: `object_type` [B / 2], `material` [B / 2, classes] 0/1.
      pooled: of both views of each instance, first views first.
      smoothing: of the type's cross-entropy.

    Returns:
      `object_type` and `material`, losses in nats, and `type_hit`, a share.
    """
    types = jnp.tile(batch["object_type"], 2)
    logits = pooled @ heads["object_type"]["kernel"] + heads["object_type"]["bias"]
    log_p = jax.nn.log_softmax(logits, axis=-1)
    right = jnp.take_along_axis(log_p, types[:, None], axis=-1)[:, 0]
    type_loss = -jnp.mean((1 - smoothing) * right + smoothing * jnp.mean(log_p, axis=-1))
    present = jnp.tile(batch["material"], (2, 1))
    answers = pooled @ heads["material"]["kernel"] + heads["material"]["bias"]
    material_loss = -jnp.mean(
        present * jax.nn.log_sigmoid(answers) + (1 - present) * jax.nn.log_sigmoid(-answers)
    )
    return {
        "object_type": type_loss,
        "type_hit": jnp.mean(jnp.argmax(logits, axis=-1) == types),
        "material": material_loss,
    }


def _colour_loss(
    head: Mapping[str, Array], tokens: Float[Array, "b n d"], clean: Float[Array, "b h w 3"]
) -> Array:
    # Each token names the mean colour its patch had before soot and holes, in units of 1/4 of
    # the range: local content that pooling must not wash out, and that context can restore.
    batch, count, dim = tokens.shape
    rows = int(round(count**0.5))
    size = clean.shape[1] // rows
    patches = clean.reshape(batch, rows, size, rows, size, 3).mean(axis=(2, 4))
    answers = tokens.reshape(batch * count, dim) @ head["kernel"] + head["bias"]
    return jnp.mean((answers - 4.0 * (patches.reshape(batch * count, 3) - 0.5)) ** 2)
