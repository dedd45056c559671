"""RF-DETR to the family `rf_detr`: the names of Roboflow's checkpoints, which the hub's safetensors
and transformers' `save_pretrained` use too.
"""

from __future__ import annotations

from converters.audit import Section
from converters.rules import (
    CONVOLUTION,
    DROP_FIRST,
    TRANSPOSE,
    Rule,
    Split,
    Stack,
    Take,
    patch_kernel,
)
from converters.towers import Family, linear, norm
from trace_jax.hosts import rf_detr

_LOSSES = "weights of training losses"
_MASKS = "the segmentation variant's head, which this model has none of"
_TRAINING = "training only, and the recipe trains without"


def family(config: rf_detr.RfDetrConfig) -> Family:
    """Rules for RfDetrForObjectDetection."""
    rules = {**_backbone(config), **_projector(), **_first_stage(), **_decoder()}
    sections = {
        "": Section(
            (*rf_detr.TOP_DEFAULTS, "backbone_config"),
            {
                **dict.fromkeys(
                    (
                        "auxiliary_loss", "bbox_cost", "bbox_loss_coefficient", "class_cost",
                        "class_loss_coefficient", "dice_loss_coefficient", "eos_coefficient",
                        "focal_alpha", "giou_cost", "giou_loss_coefficient",
                    ),
                    _LOSSES,
                ),
                **dict.fromkeys(
                    (
                        "intermediate_size", "mask_class_loss_coefficient",
                        "mask_dice_loss_coefficient", "mask_downsample_ratio",
                        "mask_loss_coefficient", "mask_point_sample_ratio",
                        "segmentation_head_activation_function",
                    ),
                    _MASKS,
                ),
                **dict.fromkeys(
                    ("activation_dropout", "attention_dropout", "dropout", "init_std"), _TRAINING
                ),
                "disable_custom_kernels": "which kernel torch takes",
            },
            {"attention_bias": True, "num_feature_levels": 1},
        ),
        "backbone_config": Section(
            rf_detr.BACKBONE_DEFAULTS,
            {
                **dict.fromkeys(
                    (
                        "attention_probs_dropout_prob", "drop_path_rate", "hidden_dropout_prob",
                        "initializer_range", "layerscale_value",
                    ),
                    _TRAINING,
                ),
                "stage_names": "stem, stage1, stage2, ...",
                "window_block_indexes": "follows from the stages",
            },
            {
                "apply_layernorm": True,
                "num_channels": 3,
                "num_register_tokens": 0,
                "qkv_bias": True,
                "reshape_hidden_states": True,
                "use_swiglu_ffn": False,
            },
        ),
    }  # fmt: skip
    return Family(rules, sections, {})


def _backbone(config: rf_detr.RfDetrConfig) -> dict[str, Rule]:
    hub, flax = "backbone.0.encoder.encoder", "backbone"
    layer = f"{hub}.encoder.layer.{{}}"
    rules: dict[str, Rule] = {
        f"{flax}/cls/table": Take(f"{hub}.embeddings.cls_token", DROP_FIRST),
        f"{flax}/positions/table": Take(f"{hub}.embeddings.position_embeddings", DROP_FIRST),
        f"{flax}/patches/kernel": Take(
            f"{hub}.embeddings.patch_embeddings.projection.weight", patch_kernel(config.patch)
        ),
        f"{flax}/patches/bias": Take(f"{hub}.embeddings.patch_embeddings.projection.bias"),
        **norm(f"{flax}/norm", f"{hub}.layernorm"),
        **_stacked(
            f"{flax}/blocks",
            {
                **norm("norm1", f"{layer}.norm1"),
                **linear("attention/query", f"{layer}.attention.attention.query"),
                **linear("attention/key", f"{layer}.attention.attention.key"),
                **linear("attention/value", f"{layer}.attention.attention.value"),
                **linear("attention/out", f"{layer}.attention.output.dense"),
                "scale1/scale": Take(f"{layer}.layer_scale1.lambda1"),
                **norm("norm2", f"{layer}.norm2"),
                **linear("mlp/fc1", f"{layer}.mlp.fc1"),
                **linear("mlp/fc2", f"{layer}.mlp.fc2"),
                "scale2/scale": Take(f"{layer}.layer_scale2.lambda1"),
            },
        ),
    }
    if config.mask_token:
        rules[f"{flax}/mask_token"] = Take(f"{hub}.embeddings.mask_token")
    return rules


def _projector() -> dict[str, Rule]:
    hub, flax = "backbone.0.projector.stages.0", "detector/projector"
    link = {**_conv("conv1", f"{hub}.0.m.{{}}.cv1"), **_conv("conv2", f"{hub}.0.m.{{}}.cv2")}
    return {
        **_conv(f"{flax}/conv1", f"{hub}.0.cv1"),
        **_conv(f"{flax}/conv2", f"{hub}.0.cv2"),
        **_stacked(f"{flax}/bottlenecks", link),
        **norm(f"{flax}/norm", f"{hub}.1"),
    }


def _first_stage() -> dict[str, Rule]:
    hub = "transformer"
    return _stacked(
        "detector/first",
        {
            **linear("map", f"{hub}.enc_output.{{}}"),
            **norm("norm", f"{hub}.enc_output_norm.{{}}"),
            **linear("heads/classes", f"{hub}.enc_out_class_embed.{{}}"),
            **_perceptron("heads/boxes", f"{hub}.enc_out_bbox_embed.{{}}", 3),
        },
    )


def _decoder() -> dict[str, Rule]:
    hub, flax = "transformer.decoder", "detector"
    layer = f"{hub}.layers.{{}}"
    inner: dict[str, Take | Split] = {
        **linear("attention/out", f"{layer}.self_attn.out_proj"),
        **norm("norm1", f"{layer}.norm1"),
        **linear("cross/offsets", f"{layer}.cross_attn.sampling_offsets"),
        **linear("cross/weights", f"{layer}.cross_attn.attention_weights"),
        **linear("cross/value", f"{layer}.cross_attn.value_proj"),
        **linear("cross/out", f"{layer}.cross_attn.output_proj"),
        **norm("norm2", f"{layer}.norm2"),
        **linear("mlp/fc1", f"{layer}.linear1"),
        **linear("mlp/fc2", f"{layer}.linear2"),
        **norm("norm3", f"{layer}.norm3"),
    }
    for part, name in enumerate(("query", "key", "value")):
        key = f"{layer}.self_attn.in_proj"
        inner[f"attention/{name}/kernel"] = Split(f"{key}_weight", part, 3, TRANSPOSE)
        inner[f"attention/{name}/bias"] = Split(f"{key}_bias", part, 3)
    return {
        **_stacked(f"{flax}/layers", inner),
        **norm(f"{flax}/norm", f"{hub}.norm"),
        **_perceptron(f"{flax}/places", f"{hub}.ref_point_head", 2),
        f"{flax}/references/table": Take("refpoint_embed.weight"),
        f"{flax}/queries/table": Take("query_feat.weight"),
        **linear(f"{flax}/heads/classes", "class_embed"),
        **_perceptron(f"{flax}/heads/boxes", "bbox_embed", 3),
    }


def _stacked(flax: str, inner: dict[str, Take | Split] | dict[str, Take]) -> dict[str, Rule]:
    return {f"{flax}/{path}": Stack(rule) for path, rule in inner.items()}


def _conv(flax: str, hub: str) -> dict[str, Take]:
    # What the checkpoints call "bn" is a LayerNorm over channels.
    return {
        f"{flax}/kernel": Take(f"{hub}.conv.weight", CONVOLUTION),
        **norm(f"{flax}/norm", f"{hub}.bn"),
    }


def _perceptron(flax: str, hub: str, count: int) -> dict[str, Take]:
    return {
        path: take
        for n in range(count)
        for path, take in linear(f"{flax}/fc{n + 1}", f"{hub}.layers.{n}").items()
    }
