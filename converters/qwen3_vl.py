"""transformers' Qwen3VLForConditionalGeneration to the family `qwen3_vl`."""

from __future__ import annotations

from converters.audit import Section
from converters.decoder import TEXT_SECTION, text_decoder
from converters.rules import Rule, Stack, Take, conv_rows
from converters.towers import Family, linear, norm, rotary_blocks
from trace_jax.hosts import qwen3_vl


def family(config: qwen3_vl.Qwen3VLConfig) -> Family:
    """Rules for Qwen3-VL checkpoints, the hub's names (`model.visual`, `model.language_model`)."""
    hub, flax = "model.visual", "vision"
    rules: dict[str, Rule] = {
        f"{flax}/patches/kernel": Take(
            f"{hub}.patch_embed.proj.weight",
            conv_rows(3, config.temporal, config.patch, config.patch),
        ),
        f"{flax}/patches/bias": Take(f"{hub}.patch_embed.proj.bias"),
        f"{flax}/positions/table": Take(f"{hub}.pos_embed.weight"),
        **rotary_blocks(
            f"{flax}/blocks", f"{hub}.blocks.{{}}", norms="layer", mlp=("linear_fc1", "linear_fc2")
        ),
        **_merger(f"{flax}/merger", f"{hub}.merger"),
        **text_decoder(config.text, "text", "model.language_model", "lm_head.weight"),
    }
    if config.deepstack:
        merger = _merger(f"{flax}/deepstack", f"{hub}.deepstack_merger_list.{{}}")
        rules |= {path: Stack(take) for path, take in merger.items()}
    ignored = {"lm_head.weight": "the token table again: the head is tied"}
    sections = {
        "": Section(
            (*qwen3_vl.TOP_DEFAULTS, "vision_config", "text_config"),
            {
                "video_token_id": "videos are not taken",
                "vision_start_token_id": "the tokenizer brings its own ids",
                "vision_end_token_id": "the tokenizer brings its own ids",
            },
            {},
        ),
        "vision_config": Section(
            qwen3_vl.VISION_DEFAULTS,
            {"rope_parameters": "the tower's angles are fixed: axial, base 10,000"},
            {"in_channels": 3},
        ),
        "text_config": TEXT_SECTION,
    }
    return Family(rules, sections, ignored if config.text.tied else {}, prefixes=OLD_PREFIXES)


# Some copies, and transformers' bare Qwen3VLModel, leave the leading "model." out.
OLD_PREFIXES = {"visual.": "model.visual.", "language_model.": "model.language_model."}


def _merger(flax: str, hub: str) -> dict[str, Take]:
    return {
        **norm(f"{flax}/norm", f"{hub}.norm"),
        **linear(f"{flax}/fc1", f"{hub}.linear_fc1"),
        **linear(f"{flax}/fc2", f"{hub}.linear_fc2"),
    }
