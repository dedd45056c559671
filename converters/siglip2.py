"""transformers' SiglipModel (SigLIP 1 and fixed-resolution SigLIP 2) to the family `siglip2`."""

from __future__ import annotations

from converters.audit import Section
from converters.rules import DROP_FIRST, TRANSPOSE, Rule, Split, Take, patch_kernel
from converters.towers import IGNORED_TENSORS, Family, blocks, linear, norm, text_tower
from trace_jax.hosts import siglip2


def family(config: siglip2.Siglip2Config) -> Family:
    """Rules for transformers' SiglipModel."""
    hub, flax = "vision_model", "vision"
    head = f"{hub}.head"
    rules: dict[str, Rule] = {
        f"{flax}/patches/kernel": Take(
            f"{hub}.embeddings.patch_embedding.weight", patch_kernel(config.patch_size)
        ),
        f"{flax}/patches/bias": Take(f"{hub}.embeddings.patch_embedding.bias"),
        f"{flax}/positions/table": Take(f"{hub}.embeddings.position_embedding.weight"),
        **blocks(f"{flax}/blocks", f"{hub}.encoder.layers.{{}}"),
        **norm(f"{flax}/post_norm", f"{hub}.post_layernorm"),
        f"{flax}/head/probe": Take(f"{head}.probe", DROP_FIRST),
        **linear(f"{flax}/head/attention/out", f"{head}.attention.out_proj"),
        **norm(f"{flax}/head/norm", f"{head}.layernorm"),
        **linear(f"{flax}/head/mlp/fc1", f"{head}.mlp.fc1"),
        **linear(f"{flax}/head/mlp/fc2", f"{head}.mlp.fc2"),
        **text_tower(),
        **linear("text/head", "text_model.head"),
        "logit_scale": Take("logit_scale"),
        "logit_bias": Take("logit_bias"),
    }
    for part, name in enumerate(("query", "key", "value")):
        leaf = f"{flax}/head/attention/{name}"
        rules[f"{leaf}/kernel"] = Split(f"{head}.attention.in_proj_weight", part, 3, TRANSPOSE)
        rules[f"{leaf}/bias"] = Split(f"{head}.attention.in_proj_bias", part, 3)
    sections = {
        "": Section(("vision_config", "text_config"), {}, {}),
        "vision_config": Section(
            siglip2.VISION_DEFAULTS, {}, {"num_channels": 3, "vision_use_head": True}
        ),
        "text_config": Section(siglip2.TEXT_DEFAULTS, {}, {}),
    }
    return Family(rules, sections, IGNORED_TENSORS)
