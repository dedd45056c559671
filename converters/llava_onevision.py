"""lmms-lab's LLaVAOneVision1_5_ForConditionalGeneration to the family `llava_onevision`."""

from __future__ import annotations

import dataclasses

from converters.audit import Section
from converters.decoder import TEXT_SECTION, text_decoder
from converters.rules import DROP_FIRST, Rule, Take, conv_rows
from converters.towers import Family, linear, norm, rotary_blocks
from trace_jax.hosts import llava_onevision
from trace_jax.hosts.merging import MergingConfig


def family(config: MergingConfig) -> Family:
    """Rules for LLaVA-OneVision-1.5 checkpoints, the hub's names (`visual`, `model`, `lm_head`)."""
    hub, flax = "visual", "vision"
    # The published Conv2d has no axis for frames.
    frames = (config.temporal,) if config.temporal > 1 else ()
    rules: dict[str, Rule] = {
        f"{flax}/patches/kernel": Take(
            f"{hub}.patch_embed.proj.weight", conv_rows(3, *frames, config.patch, config.patch)
        ),
        f"{flax}/cls": Take(f"{hub}.class_embedding"),
        f"{flax}/cls_angles": Take(f"{hub}.class_pos_emb", DROP_FIRST),
        **norm(f"{flax}/pre_norm", f"{hub}.pre_layernorm"),
        **rotary_blocks(f"{flax}/blocks", f"{hub}.blocks.{{}}", norms="layer", mlp=("fc1", "fc2")),
        **norm(f"{flax}/merger/norm", f"{hub}.merger.ln_q"),
        **linear(f"{flax}/merger/fc1", f"{hub}.merger.mlp.0"),
        **linear(f"{flax}/merger/fc2", f"{hub}.merger.mlp.2"),
        **text_decoder(config.text, "text", "model", "lm_head.weight"),
    }
    ignored = {"lm_head.weight": "the token table again: the head is tied"}
    sections = {
        "": Section(
            (*llava_onevision.TOP_DEFAULTS, "vision_config", "text_config"),
            {
                "vocab_size": "text_config says it",
                "video_token_id": "videos are not taken",
                "vision_start_token_id": "the tokenizer brings its own ids",
                "vision_end_token_id": "the tokenizer brings its own ids",
            },
            {},
        ),
        "vision_config": Section(llava_onevision.VISION_DEFAULTS, {}, {"in_channels": 3}),
        "text_config": dataclasses.replace(
            TEXT_SECTION,
            ignored={
                **TEXT_SECTION.ignored,
                "image_token_id": "the top level decides",
                "video_token_id": "videos are not taken",
            },
        ),
    }
    return Family(rules, sections, ignored if config.text.tied else {}, prefixes=NEW_PREFIXES)


# Versions of the published code, and its module tree, put everything but the head under "model.".
NEW_PREFIXES = {"model.visual.": "visual.", "model.language_model.": "model."}
