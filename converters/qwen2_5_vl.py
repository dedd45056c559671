"""transformers' Qwen2_5_VLForConditionalGeneration to the family `qwen2_5_vl`."""

from __future__ import annotations

from converters.audit import Section
from converters.decoder import TEXT_SECTION, text_decoder
from converters.rules import Rule, Take, conv_rows
from converters.towers import Family, linear, rotary_blocks
from trace_jax.hosts import qwen2_5_vl


def family(config: qwen2_5_vl.Qwen25VLConfig) -> Family:
    """Rules for Qwen2.5-VL checkpoints, the hub's names (`visual`, `model`)."""
    hub, flax = "visual", "vision"
    rules: dict[str, Rule] = {
        f"{flax}/patches/kernel": Take(
            f"{hub}.patch_embed.proj.weight",
            conv_rows(3, config.temporal, config.patch, config.patch),
        ),
        **rotary_blocks(
            f"{flax}/blocks",
            f"{hub}.blocks.{{}}",
            norms="rms",
            mlp=("gate_proj", "up_proj", "down_proj"),
        ),
        f"{flax}/merger/norm/scale": Take(f"{hub}.merger.ln_q.weight"),
        **linear(f"{flax}/merger/fc1", f"{hub}.merger.mlp.0"),
        **linear(f"{flax}/merger/fc2", f"{hub}.merger.mlp.2"),
        **text_decoder(config.text, "text", "model", "lm_head.weight"),
    }
    ignored = {"lm_head.weight": "the token table again: the head is tied"}
    tokenizer = "the tokenizer brings its own ids"
    sections = {
        # Published files write the decoder's settings here.
        "": Section(
            (*qwen2_5_vl.TOP_DEFAULTS, "vision_config", "text_config", *TEXT_SECTION.handled),
            {
                **TEXT_SECTION.ignored,
                "video_token_id": "videos are not taken",
                "vision_start_token_id": tokenizer,
                "vision_end_token_id": tokenizer,
                "vision_token_id": tokenizer,
            },
            TEXT_SECTION.must_equal,
        ),
        "vision_config": Section(
            qwen2_5_vl.VISION_DEFAULTS,
            {
                "rope_parameters": "the tower's angles are fixed: axial, base 10,000",
                "tokens_per_second": "videos are not taken",
                "spatial_patch_size": "patch_size again",
            },
            {"in_channels": 3, "in_chans": 3},
        ),
        "text_config": TEXT_SECTION,
    }
    return Family(rules, sections, ignored if config.text.tied else {}, prefixes=NEW_PREFIXES)


# The names of transformers' modules since 4.52; published files, and what it writes, keep the old.
NEW_PREFIXES = {
    "model.visual.": "visual.",
    "model.language_model.": "model.",
    "language_model.": "model.",
}
