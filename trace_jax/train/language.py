"""Pretraining a nano vision-language host: answers about pictures, and pictures with pictures.

Every picture is encoded once and asked several questions. The loss is the cross-entropy of the
answers' tokens; beside it two views of one instance are told from all other instances of the batch
by their mean-pooled tap tokens, since retrieval (paper C.2) compares those, and linear heads,
thrown away afterwards, read type and materials off them: a small decoder finds sooner what lies in
the open.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from trace_jax.train import augment
from trace_jax.train.contrastive import pair_loss, side_losses

Params = Any


@dataclasses.dataclass(frozen=True)
class LanguageConfig:
    """Weights of the terms, and what the views are.

    Attributes:
      answer, pooled, object_type, material: weights.
      label_smoothing: of the object type's cross-entropy.
      mean, std: the host's pixel normalisation.
      views: ranges of the random views of pristine pictures.
    """

    answer: float
    pooled: float
    object_type: float
    material: float
    label_smoothing: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    views: augment.AugmentConfig


@dataclasses.dataclass(frozen=True)
class Dialogue:
    """Questions with answers as token ids, ready to be drawn.

    Attributes:
      ids: [R, L] whole prompts with answers, padded on the left; image tokens are placeholders.
      answered: [R, L] which tokens are the answer's, its stop token among them.
      real: [R, L] false on padding.
      image_at: [R, L] number of the image token that stands there, or -1.
      positions: [3, R, L].
    """

    ids: Int[np.ndarray, "r l"]
    answered: np.ndarray
    real: np.ndarray
    image_at: Int[np.ndarray, "r l"]
    positions: Int[np.ndarray, "3 r l"]

    def take(self, rows: np.ndarray, picture: np.ndarray, stride: int) -> dict[str, np.ndarray]:
        """Fields of a batch for the chosen rows.

        Args:
          rows: which dialogues, [n].
          picture: [n], the picture in the batch that each is about.
          stride: image tokens of a picture.
        """
        at = self.image_at[rows]
        slots = np.where(at >= 0, at + np.asarray(picture)[:, None] * stride, -1)
        return {
            "ids": self.ids[rows],
            "answered": self.answered[rows],
            "real": self.real[rows],
            "slots": slots.astype(np.int32),
            "positions": np.ascontiguousarray(self.positions[:, rows].swapaxes(0, 1)),
        }


def joined(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Fields of several `Dialogue.take` one after the other, of equal length by padding left."""
    length = max(part["ids"].shape[-1] for part in parts)
    fill = {"slots": -1}
    return {
        name: np.concatenate(
            [
                np.pad(
                    part[name],
                    [(0, 0)] * (part[name].ndim - 1) + [(length - part[name].shape[-1], 0)],
                    constant_values=fill.get(name, 0),
                )
                for part in parts
            ]
        )
        for name in parts[0]
    }


def make_loss(
    encode: Callable[[Params, Float[Array, "b h w 3"]], Any],
    pool: Callable[[Any], Float[Array, "b d"]],
    answer: Callable[[Params, Any, Mapping[str, Array]], Float[Array, "r l v"]],
    config: LanguageConfig,
) -> Callable[[Params, Mapping[str, Any], PRNGKeyArray], tuple[Array, dict[str, Array]]]:
    """Binds a host's pure functions into the loss of one step.

    Args:
      encode: (host params, pixels [B, H, W, 3] normalised) -> the host's features.
      pool: features -> mean tokens [B, D].
      answer: (host params, features, text arrays) -> logits of every place of every dialogue.
      config: weights and views.

    Returns:
      loss(params, batch, rng) -> (scalar, terms). `params` is {"host", "heads"}, heads as of
      `contrastive.init_heads`; `batch` holds `first`, `second` uint8 [P, H, W, 3] (two renders of
      each pristine instance), `object_type` [P] and `material` [P, classes] of theirs, `burnt`
      uint8 [F, H, W, 3] (asked about their damage only), and the fields of `Dialogue.take` for
      pictures in the order first, second, burnt.
    """

    def loss(
        params: Params, batch: Mapping[str, Any], rng: PRNGKeyArray
    ) -> tuple[Array, dict[str, Array]]:
        first_key, second_key, burnt_key = jax.random.split(rng, 3)
        first, _ = augment.views(first_key, batch["first"], config.views, damaged=False)
        second, _ = augment.views(second_key, batch["second"], config.views, damaged=True)
        burnt, _ = augment.views(burnt_key, batch["burnt"], config.views, damaged=False)
        pixels = jnp.concatenate([first, second, burnt])
        pixels = (pixels - jnp.asarray(config.mean)) / jnp.asarray(config.std)
        features = encode(params["host"], pixels)
        half = batch["first"].shape[0]
        pooled = pool(features)[: 2 * half]
        terms: dict[str, Array] = {}
        terms["pooled"], terms["pooled_hit"] = pair_loss(
            pooled[:half], pooled[half:], params["heads"]["scales"]["pooled"]
        )
        terms |= side_losses(params["heads"], batch, pooled, config.label_smoothing)
        text = {name: batch[name] for name in ("ids", "real", "slots")}
        text["positions"] = batch["positions"].swapaxes(0, 1)
        logits = answer(params["host"], features, text)
        terms["answer"], terms["token_hit"] = answer_loss(logits, batch["ids"], batch["answered"])
        names = ("answer", "pooled", "object_type", "material")
        return jnp.asarray(sum(getattr(config, name) * terms[name] for name in names)), terms

    return loss


def answer_loss(
    logits: Float[Array, "r l v"], ids: Int[Array, "r l"], answered: Array
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean cross-entropy of the answers' tokens, each predicted at the place before it.

    Returns:
      The loss in nats a token, and the share of tokens that are the likeliest.
    """
    log_p = jax.nn.log_softmax(logits[:, :-1].astype(jnp.float32), axis=-1)
    targets, weight = ids[:, 1:], answered[:, 1:].astype(jnp.float32)
    right = jnp.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
    hit = (jnp.argmax(logits[:, :-1], axis=-1) == targets) * weight
    total = jnp.maximum(weight.sum(), 1.0)
    return -(right * weight).sum() / total, hit.sum() / total
