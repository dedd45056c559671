"""Frozen pretrained models, each two pure functions around a tap."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from trace_jax.errors import UserError
from trace_jax.hosts.base import UNHASHED, EncoderHost, EncoderOutput, Host, random_params
from trace_jax.hosts.clip import Clip
from trace_jax.hosts.internvl import InternVL
from trace_jax.hosts.llava_onevision import LlavaOnevision
from trace_jax.hosts.molmo2 import Molmo2
from trace_jax.hosts.qwen2_5_vl import Qwen25VL
from trace_jax.hosts.qwen3_vl import Qwen3VL
from trace_jax.hosts.rf_detr import RfDetr
from trace_jax.hosts.siglip2 import Siglip2
from trace_jax.hosts.vision_language import VisionLanguageHost

__all__ = [
    "HOSTS",
    "UNHASHED",
    "EncoderHost",
    "EncoderOutput",
    "Host",
    "HostEntry",
    "VisionLanguageHost",
    "bind",
    "build",
    "lookup",
]


@dataclasses.dataclass(frozen=True)
class HostEntry:
    """One registered host.

    Attributes:
      family: its Flax class.
      asset: folder under trace_jax/assets with its weights, or None: the family's hub id.
      lower_case: whether texts are lower-cased before its tokenizer.
    """

    family: type[Host]
    asset: str | None
    lower_case: bool


HOSTS: dict[str, HostEntry] = {
    "clip": HostEntry(Clip, None, lower_case=False),
    "siglip2": HostEntry(Siglip2, None, lower_case=True),
    "clip_nano": HostEntry(Clip, "clip_nano", lower_case=True),
    "llava_onevision": HostEntry(LlavaOnevision, None, lower_case=False),
    "molmo2": HostEntry(Molmo2, None, lower_case=False),
    "internvl": HostEntry(InternVL, None, lower_case=False),
    "qwen2_5_vl": HostEntry(Qwen25VL, None, lower_case=False),
    "qwen3_vl": HostEntry(Qwen3VL, None, lower_case=False),
    "qwen3_vl_nano": HostEntry(Qwen3VL, "qwen3_vl_nano", lower_case=False),
    "rf_detr": HostEntry(RfDetr, None, lower_case=False),
    "rf_detr_nano": HostEntry(RfDetr, "rf_detr_nano", lower_case=False),
    "siglip2_nano": HostEntry(Siglip2, "siglip2_nano", lower_case=True),
}


def lookup(name: str) -> HostEntry:
    """The entry of a registered host.

    Raises:
      UserError: no host of that name.
    """
    if name not in HOSTS:
        raise UserError(f"there is no host {name!r}; known hosts are {', '.join(HOSTS)}")
    return HOSTS[name]


def bind(
    name: str,
    config: Mapping[str, Any],
    params: Mapping[str, Any],
    weights_hash: str,
    *,
    preprocessor: Mapping[str, Any] | None,
    tokenizer: Path | None,
    tap: str | None = None,
) -> Host:
    """Puts a host together from its pieces; `converters.load_host` and `build` end here.

    Args:
      name: registered name.
      config: config.json.
      params: what `hosts.base.abstract_params` describes, filled.
      weights_hash: see FeatureSource.
      preprocessor: preprocessor_config.json, or None: the family's published constants.
      tokenizer: folder with the tokenizer's files, or None.
      tap: tap name, None for the family's default.
    """
    entry = lookup(name)
    model = entry.family.parse(config)
    images, texts = entry.family.companions(model, preprocessor, tokenizer, entry.lower_case)
    return entry.family(
        name=name,
        config=config,
        params=params,
        weights_hash=weights_hash,
        preprocessor=images,
        tokenizer=texts,
        tap=tap,
    )


def build(
    name: str,
    config: Mapping[str, Any],
    key: jax.Array,
    *,
    dtype: str = "float32",
    preprocessor: Mapping[str, Any] | None = None,
    tokenizer: str | Path | None = None,
) -> Host:
    """A host with random weights, to pretrain from scratch.

    Args:
      name: registered name, e.g. "siglip2_nano".
      config: in the form of a Hugging Face config.json, any width.
      key: JAX random key.
      dtype: parameter dtype.
      preprocessor: preprocessor_config.json, or None: the family's published constants at the
        config's image size.
      tokenizer: folder with a tokenizer in Hugging Face format, or None.

    Raises:
      UserError: unknown name, or a config that describes no model of the family.
    """
    family = lookup(name).family
    params = random_params(family, family.parse(config), dtype, key)
    return bind(
        name,
        config,
        params,
        UNHASHED,
        preprocessor=preprocessor,
        tokenizer=None if tokenizer is None else Path(tokenizer),
    )
