"""transformers' InternVLForConditionalGeneration to the family `internvl`."""

from __future__ import annotations

from converters.audit import Section
from converters.decoder import TEXT_SECTION, text_decoder
from converters.rules import DROP_FIRST, Rule, Stack, Take, patch_kernel
from converters.towers import Family, linear, norm
from trace_jax.hosts import internvl


def family(config: internvl.InternVLConfig) -> Family:
    """Rules for InternVL checkpoints in transformers' format ("-HF")."""
    tower, flax = "model.vision_tower", "vision"
    layer = f"{tower}.encoder.layer.{{}}"
    projector = "model.multi_modal_projector"
    inner: dict[str, Take] = {
        **norm("norm1", "layernorm_before"),
        **norm("norm2", "layernorm_after"),
        **linear("attention/query", "attention.q_proj"),
        **linear("attention/key", "attention.k_proj"),
        **linear("attention/value", "attention.v_proj"),
        **linear("attention/out", "attention.projection_layer"),
        **linear("mlp/fc1", "mlp.fc1"),
        **linear("mlp/fc2", "mlp.fc2"),
        "scale1/scale": Take("lambda_1"),
        "scale2/scale": Take("lambda_2"),
    }
    rules: dict[str, Rule] = {
        f"{flax}/cls": Take(f"{tower}.embeddings.cls_token", DROP_FIRST),
        f"{flax}/positions/table": Take(f"{tower}.embeddings.position_embeddings", DROP_FIRST),
        f"{flax}/patches/kernel": Take(
            f"{tower}.embeddings.patch_embeddings.projection.weight", patch_kernel(config.patch)
        ),
        f"{flax}/patches/bias": Take(f"{tower}.embeddings.patch_embeddings.projection.bias"),
        **{
            f"{flax}/blocks/{path}": Stack(Take(f"{layer}.{take.key}", take.transform))
            for path, take in inner.items()
        },
        **norm("projector/norm", f"{projector}.layer_norm"),
        **linear("projector/fc1", f"{projector}.linear_1"),
        **linear("projector/fc2", f"{projector}.linear_2"),
        **text_decoder(config.text, "text", "model.language_model", "lm_head.weight"),
    }
    training = "training only"
    sections = {
        "": Section(
            (*internvl.TOP_DEFAULTS, "vision_config", "text_config"),
            {},
            {"vision_feature_layer": -1, "vision_feature_select_strategy": "default"},
        ),
        "vision_config": Section(
            internvl.VISION_DEFAULTS,
            {
                "hidden_dropout_prob": training,
                "projection_dropout": training,
                "layer_scale_init_value": training,
            },
            {
                "num_channels": 3,
                "use_qk_norm": False,
                "use_mask_token": False,
                "use_mean_pooling": True,
                "use_absolute_position_embeddings": True,
                "norm_type": "layer_norm",
            },
        ),
        "text_config": TEXT_SECTION,
    }
    return Family(rules, sections, {}, prefixes=OLD_PREFIXES)


# The names before transformers 4.52, and those of its bare InternVLModel; the first that fits
# counts.
OLD_PREFIXES = {
    "language_model.lm_head.": "lm_head.",
    "language_model.model.": "model.language_model.",
    "language_model.": "model.language_model.",
    "vision_tower.": "model.vision_tower.",
    "multi_modal_projector.": "model.multi_modal_projector.",
}
