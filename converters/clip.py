"""transformers' CLIPModel to the host family `clip`."""

from __future__ import annotations

from converters.audit import Section
from converters.rules import TRANSPOSE, Rule, Take, patch_kernel
from converters.towers import IGNORED_TENSORS, Family, blocks, norm, text_tower
from trace_jax.hosts import clip

_TOP = (
    *clip.TOP_DEFAULTS,
    *("vision_config", "vision_config_dict", "text_config", "text_config_dict"),
)


def family(config: clip.ClipConfig) -> Family:
    """Rules for transformers' CLIPModel."""
    hub, flax = "vision_model", "vision"
    rules: dict[str, Rule] = {
        f"{flax}/cls": Take(f"{hub}.embeddings.class_embedding"),
        f"{flax}/patches/kernel": Take(
            f"{hub}.embeddings.patch_embedding.weight", patch_kernel(config.patch_size)
        ),
        f"{flax}/positions/table": Take(f"{hub}.embeddings.position_embedding.weight"),
        **norm(f"{flax}/pre_norm", f"{hub}.pre_layrnorm"),  # sic
        **blocks(f"{flax}/blocks", f"{hub}.encoder.layers.{{}}"),
        **norm(f"{flax}/post_norm", f"{hub}.post_layernorm"),
        **text_tower(),
        "vision_projection/kernel": Take("visual_projection.weight", TRANSPOSE),
        "text_projection/kernel": Take("text_projection.weight", TRANSPOSE),
        "logit_scale": Take("logit_scale"),
    }
    projection = {"projection_dim": "the top-level projection_dim counts"}
    sections = {
        "": Section(_TOP, {}, {}),
        "vision_config": Section(clip.VISION_DEFAULTS, projection, {"num_channels": 3}),
        "text_config": Section(clip.TEXT_DEFAULTS, projection, {}),
    }
    return Family(rules, sections, IGNORED_TENSORS)
