"""What CLIP and SigLIP have in common in the Hugging Face layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from converters.audit import Section
from converters.rules import TRANSPOSE, Rule, Stack, Take


@dataclasses.dataclass(frozen=True)
class Family:
    """What a converter knows of one host family at given sizes.

    Attributes:
      rules: leaf path to rule.
      sections: audit of config.json.
      ignored: patterns of source keys without a leaf, with the reason.
    """

    rules: Mapping[str, Rule]
    sections: Mapping[str, Section]
    ignored: Mapping[str, str]


IGNORED_TENSORS = {"*.position_ids": "a buffer of older transformers: 0, 1, 2, ..."}


def text_tower() -> dict[str, Rule]:
    """The text tower up to its post-norm; the two families name it alike."""
    return {
        "text/tokens/table": Take("text_model.embeddings.token_embedding.weight"),
        "text/positions/table": Take("text_model.embeddings.position_embedding.weight"),
        **blocks("text/blocks", "text_model.encoder.layers.{}"),
        **norm("text/post_norm", "text_model.final_layer_norm"),
    }


def norm(flax: str, hub: str) -> dict[str, Rule]:
    """A LayerNorm."""
    return {f"{flax}/scale": Take(f"{hub}.weight"), f"{flax}/bias": Take(f"{hub}.bias")}


def linear(flax: str, hub: str) -> dict[str, Rule]:
    """A Linear with bias."""
    return {f"{flax}/kernel": Take(f"{hub}.weight", TRANSPOSE), f"{flax}/bias": Take(f"{hub}.bias")}


def blocks(flax: str, hub: str) -> dict[str, Rule]:
    """Stacked blocks; `hub` holds "{}" for the block's number."""
    inner: dict[str, Rule] = {
        **norm("norm1", "layer_norm1"),
        **norm("norm2", "layer_norm2"),
        **linear("attention/query", "self_attn.q_proj"),
        **linear("attention/key", "self_attn.k_proj"),
        **linear("attention/value", "self_attn.v_proj"),
        **linear("attention/out", "self_attn.out_proj"),
        **linear("mlp/fc1", "mlp.fc1"),
        **linear("mlp/fc2", "mlp.fc2"),
    }
    stacked: dict[str, Rule] = {}
    for path, rule in inner.items():
        assert isinstance(rule, Take)
        stacked[f"{flax}/{path}"] = Stack(Take(f"{hub}.{rule.key}", rule.transform))
    return stacked
