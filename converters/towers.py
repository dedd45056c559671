"""What towers have in common in the Hugging Face layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from converters.audit import Section
from converters.rules import TRANSPOSE, Rule, Split, Stack, Take
from converters.tensors import Checkpoint


@dataclasses.dataclass(frozen=True)
class Family:
    """What a converter knows of one host family at given sizes.

    Attributes:
      rules: leaf path to rule.
      sections: audit of config.json.
      ignored: patterns of source keys without a leaf, with the reason.
      prefixes: other beginnings of source keys that copies use, to the one the rules name.
    """

    rules: Mapping[str, Rule]
    sections: Mapping[str, Section]
    ignored: Mapping[str, str]
    prefixes: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Archive:
    """A single file that is a whole folder of weights.

    Attributes:
      config: what its config.json would say.
      checkpoint: its tensors, under the names that the family's rules know.
      preprocessor: what its preprocessor_config.json would say.
    """

    config: Mapping[str, Any]
    checkpoint: Checkpoint
    preprocessor: Mapping[str, Any]


IGNORED_TENSORS = {"*.position_ids": "a buffer of older transformers: 0, 1, 2, ..."}


def text_tower() -> dict[str, Rule]:
    """The text tower up to its post-norm; the two families name it alike."""
    return {
        "text/tokens/table": Take("text_model.embeddings.token_embedding.weight"),
        "text/positions/table": Take("text_model.embeddings.position_embedding.weight"),
        **blocks("text/blocks", "text_model.encoder.layers.{}"),
        **norm("text/post_norm", "text_model.final_layer_norm"),
    }


def norm(flax: str, hub: str) -> dict[str, Take]:
    """A LayerNorm."""
    return {f"{flax}/scale": Take(f"{hub}.weight"), f"{flax}/bias": Take(f"{hub}.bias")}


def linear(flax: str, hub: str) -> dict[str, Take]:
    """A Linear with bias."""
    return {f"{flax}/kernel": Take(f"{hub}.weight", TRANSPOSE), f"{flax}/bias": Take(f"{hub}.bias")}


def blocks(flax: str, hub: str) -> dict[str, Rule]:
    """Stacked blocks; `hub` holds "{}" for the block's number."""
    inner: dict[str, Take] = {
        **norm("norm1", "layer_norm1"),
        **norm("norm2", "layer_norm2"),
        **linear("attention/query", "self_attn.q_proj"),
        **linear("attention/key", "self_attn.k_proj"),
        **linear("attention/value", "self_attn.v_proj"),
        **linear("attention/out", "self_attn.out_proj"),
        **linear("mlp/fc1", "mlp.fc1"),
        **linear("mlp/fc2", "mlp.fc2"),
    }
    return {
        f"{flax}/{path}": Stack(Take(f"{hub}.{take.key}", take.transform))
        for path, take in inner.items()
    }


def rotary_blocks(flax: str, hub: str, *, norms: str, mlp: tuple[str, ...]) -> dict[str, Rule]:
    """Stacked nn.rotary_blocks of a Qwen-type tower; query, key and value lie fused at the source.

    Args:
      flax, hub: where; `hub` holds "{}" for the block's number.
      norms: "layer" (scale and bias) or "rms" (scale).
      mlp: names of the MLP's maps at the source: (fc1, fc2), or (gate, up, down).
    """
    rules: dict[str, Rule] = {}
    for name in ("norm1", "norm2"):
        rules[f"{flax}/{name}/scale"] = Stack(Take(f"{hub}.{name}.weight"))
        if norms == "layer":
            rules[f"{flax}/{name}/bias"] = Stack(Take(f"{hub}.{name}.bias"))
    for part, name in enumerate(("query", "key", "value")):
        leaf = f"{flax}/attention/{name}"
        rules[f"{leaf}/kernel"] = Stack(Split(f"{hub}.attn.qkv.weight", part, 3, TRANSPOSE))
        rules[f"{leaf}/bias"] = Stack(Split(f"{hub}.attn.qkv.bias", part, 3))
    ours = ("fc1", "fc2") if len(mlp) == 2 else ("gate", "up", "down")
    maps = {"attention/out": "attn.proj"} | {
        f"mlp/{name}": f"mlp.{key}" for name, key in zip(ours, mlp, strict=True)
    }
    for leaf, key in maps.items():
        rules[f"{flax}/{leaf}/kernel"] = Stack(Take(f"{hub}.{key}.weight", TRANSPOSE))
        rules[f"{flax}/{leaf}/bias"] = Stack(Take(f"{hub}.{key}.bias"))
    return rules
