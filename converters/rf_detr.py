"""RF-DETR to the family `rf_detr`: the names of Roboflow's checkpoints, which the hub's safetensors
and transformers' `save_pretrained` use too; and Roboflow's own files, `*.pth`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converters import torch_archive
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
from converters.tensors import Checkpoint
from converters.towers import Archive, Family, linear, norm
from trace_jax.errors import FaultsError
from trace_jax.hosts import rf_detr

_LOSSES = "weights of training losses"
_MASKS = "the segmentation variant's head, which this model has none of"
_TRAINING = "training only, and the recipe trains without"

_BACKBONE = "backbone.0.encoder.encoder"
_PROJECTOR = "backbone.0.projector.stages.0"
_DECODER = "transformer.decoder"
# DINOv2's heads are 64 wide in every size.
_HEAD = 64
# What no shape of a tensor tells.
_SETTINGS = ("sa_nheads", "ca_nheads", "num_windows", "out_feature_indexes")


def archive(path: Path) -> Archive:
    """One of Roboflow's files: {"model": state dict, "args": namespace of its settings}.

    Sizes are read off the tensors, and from `args` what no shape tells. The official classes give
    epsilon 1e-6 to the projector's norms, where transformers' default is 1e-5.

    Raises:
      UserError: no such file; see torch_archive.
      FaultsError: tensors or settings that the model needs are missing.
    """
    opened = torch_archive.read(path)
    checkpoint = opened.checkpoint("model")
    args = opened.settings("args")
    config = _config(path, checkpoint, args)
    side = args.get("resolution")
    size = {} if side is None else {"size": {"height": side, "width": side}}
    return Archive(config, checkpoint, size)


def _config(path: Path, checkpoint: Checkpoint, args: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json for the tensors of a file."""
    tensors = checkpoint.tensors
    embeddings, layer = f"{_BACKBONE}.embeddings", f"{_DECODER}.layers.{{}}"
    wanted = {
        "positions": (f"{embeddings}.position_embeddings", 3),
        "patches": (f"{embeddings}.patch_embeddings.projection.weight", 4),
        "mlp": (f"{_BACKBONE}.encoder.layer.0.mlp.fc1.weight", 2),
        "projected": (f"{_PROJECTOR}.0.cv1.conv.weight", 4),
        "width": (f"{_PROJECTOR}.1.weight", 1),
        "ffn": (f"{layer.format(0)}.linear1.weight", 2),
        "weights": (f"{layer.format(0)}.cross_attn.attention_weights.weight", 2),
        "queries": ("refpoint_embed.weight", 2),
        "classes": ("class_embed.bias", 1),
    }
    faults = list(checkpoint.faults)
    faults += [
        f"{key}: missing, or of another shape than an RF-DETR's"
        for key, rank in wanted.values()
        if key not in tensors or len(tensors[key].shape) != rank or not tensors[key].size
    ]
    faults += [
        f"args.{name} is {args.get(name)!r}; no tensor tells it"
        for name in _SETTINGS
        if not _is_setting(args.get(name))
    ]
    if faults:
        raise FaultsError(
            f"{path}: holds no RF-DETR that its tensors and settings describe in full", faults
        )
    shape = {name: tensors[key].shape for name, (key, _) in wanted.items()}
    hidden, patch = shape["patches"][0], shape["patches"][2]
    groups = max(1, _count(tensors, "transformer.enc_output.{}.weight"))
    labels = {str(n): f"LABEL_{n}" for n in range(shape["classes"][0])}
    return {
        "model_type": "rf_detr",
        "backbone_config": {
            "model_type": "rf_detr_dinov2",
            "hidden_size": hidden,
            "num_hidden_layers": _count(tensors, f"{_BACKBONE}.encoder.layer.{{}}.norm1.weight"),
            "num_attention_heads": max(1, hidden // _HEAD),
            "mlp_ratio": shape["mlp"][0] // hidden,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-6,
            "image_size": math.isqrt(shape["positions"][1] - 1) * patch,
            "patch_size": patch,
            "num_windows": args["num_windows"],
            "use_mask_token": f"{embeddings}.mask_token" in tensors,
            "out_features": [f"stage{n}" for n in args["out_feature_indexes"]],
            "out_indices": list(args["out_feature_indexes"]),
        },
        "d_model": shape["width"][0],
        "hidden_expansion": shape["projected"][0] / 2 / shape["width"][0],
        "c2f_num_blocks": _count(tensors, f"{_PROJECTOR}.0.m.{{}}.cv1.conv.weight"),
        "activation_function": "silu",
        "layer_norm_eps": 1e-6,
        "decoder_layers": _count(tensors, f"{layer}.norm1.weight"),
        "decoder_self_attention_heads": args["sa_nheads"],
        "decoder_cross_attention_heads": args["ca_nheads"],
        "decoder_n_points": shape["weights"][0] // args["ca_nheads"],
        "decoder_ffn_dim": shape["ffn"][0],
        "decoder_activation_function": "relu",
        "num_queries": shape["queries"][0] // groups,
        "group_detr": groups,
        "num_feature_levels": 1,
        "attention_bias": True,
        # transformers keeps the labels' names, not their number.
        "id2label": labels,
        "label2id": {name: int(n) for n, name in labels.items()},
    }


def _is_setting(value: Any) -> bool:
    """A positive whole number, or a list of them."""
    numbers = value if isinstance(value, list | tuple) and value else [value]
    return all(type(n) is int and n > 0 for n in numbers)


def _count(tensors: Mapping[str, Any], pattern: str) -> int:
    """How many keys there are of a pattern with a running number."""
    number = 0
    while pattern.format(number) in tensors:
        number += 1
    return number


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
    hub, flax = _BACKBONE, "backbone"
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
    hub, flax = _PROJECTOR, "detector/projector"
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
    hub, flax = _DECODER, "detector"
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
