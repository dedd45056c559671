"""allenai's Molmo2ForConditionalGeneration to the family `molmo2`."""

from __future__ import annotations

from converters.audit import Section
from converters.rules import TRANSPOSE, Cut, Fuse, Rule, Split, Stack, Take
from converters.towers import Family, linear, norm
from trace_jax.hosts import molmo2
from trace_jax.hosts.text_decoder import DecoderConfig


def family(config: molmo2.Molmo2Config) -> Family:
    """Rules for Molmo2 checkpoints, the hub's names (`model.transformer`, `model.vision_backbone`);
    transformers 5 writes them too.
    """
    backbone = "model.vision_backbone"
    tower = f"{backbone}.image_vit"
    pooling = {"query": "wq", "key": "wk", "value": "wv", "out": "wo"}
    projector = {"gate": "w1", "down": "w2", "up": "w3"}
    rules: dict[str, Rule] = {
        **linear("vision/patches", f"{tower}.patch_embedding"),
        "vision/positions/table": Take(f"{tower}.positional_embedding"),
        **_blocks("vision/blocks", f"{tower}.transformer.resblocks.{{}}"),
        **{
            path: take
            for ours, theirs in pooling.items()
            for path, take in linear(
                f"pooling/{ours}", f"{backbone}.image_pooling_2d.{theirs}"
            ).items()
        },
        **{
            f"projector/{ours}/kernel": Take(
                f"{backbone}.image_projector.{theirs}.weight", TRANSPOSE
            )
            for ours, theirs in projector.items()
        },
        **_decoder(config.text, config.extra_vocabulary),
    }
    unused = range(config.vision.depth, config.declared_depth)
    ignored = {
        f"{tower}.transformer.resblocks.{number}.*": "nothing reads this block's output"
        for number in unused
    }
    return Family(rules, _SECTIONS, ignored)


def _blocks(flax: str, hub: str) -> dict[str, Rule]:
    parts = {
        "attention/query": "attention.wq",
        "attention/key": "attention.wk",
        "attention/value": "attention.wv",
        "attention/out": "attention.wo",
        "mlp/fc1": "feed_forward.w1",
        "mlp/fc2": "feed_forward.w2",
    }
    inner = {
        **norm("norm1", f"{hub}.attention_norm"),
        **norm("norm2", f"{hub}.ffn_norm"),
    }
    for ours, theirs in parts.items():
        inner |= linear(ours, f"{hub}.{theirs}")
    return {f"{flax}/{path}": Stack(take) for path, take in inner.items()}


def _decoder(config: DecoderConfig, extra: int) -> dict[str, Rule]:
    """The decoder, whose query, key and value lie fused at the source, and up before gate."""
    hub, flax = "model.transformer", "text"
    layer, leaf = f"{hub}.blocks.{{}}", f"{flax}/layers"
    # Equal parts of the fused rows: a key-value head's worth each.
    groups = config.heads // config.kv_heads
    fused = f"{layer}.self_attn.att_proj.weight"
    parts = {"query": (0, groups), "key": (groups, 1), "value": (groups + 1, 1)}
    rules: dict[str, Rule] = {
        f"{flax}/tokens/table": Fuse(
            (f"{hub}.wte.embedding", f"{hub}.wte.new_embedding"), axis=0, last=extra
        ),
        f"{flax}/norm/scale": Take(f"{hub}.ln_f.weight"),
        f"{flax}/head/kernel": Take("lm_head.weight", TRANSPOSE),
        f"{leaf}/norm1/scale": Stack(Take(f"{layer}.attn_norm.weight")),
        f"{leaf}/norm2/scale": Stack(Take(f"{layer}.ff_norm.weight")),
        f"{leaf}/attention/out/kernel": Stack(
            Take(f"{layer}.self_attn.attn_out.weight", TRANSPOSE)
        ),
        f"{leaf}/mlp/down/kernel": Stack(Take(f"{layer}.mlp.ff_out.weight", TRANSPOSE)),
    }
    for name, (first, count) in parts.items():
        rules[f"{leaf}/attention/{name}/kernel"] = Stack(
            Cut(fused, first, count, groups + 2, axis=1, transform=TRANSPOSE)
        )
    for name, key in (("query_norm", "q_norm"), ("key_norm", "k_norm")):
        rules[f"{leaf}/attention/{name}/scale"] = Stack(Take(f"{layer}.self_attn.{key}.weight"))
    for part, name in enumerate(("up", "gate")):
        rules[f"{leaf}/mlp/{name}/kernel"] = Stack(
            Split(f"{layer}.mlp.ff_proj.weight", part, 2, TRANSPOSE)
        )
    return rules


_TRAINING = dict.fromkeys(
    ("embedding_dropout", "residual_dropout", "image_feature_dropout"), "training only"
)
_PRECISION = {"float32_attention": "softmax is always float32"}
_VISION = Section(
    (*molmo2.VISION_DEFAULTS, *molmo2.OLD_NAMES["vision_config"]),
    {**_TRAINING, **_PRECISION},
    {"num_channels": 3, "attention_bias": True},
)
_VIDEOS = "videos are not taken"
_SECTIONS = {
    "": Section(
        (*molmo2.TOP_DEFAULTS, "vision_config", "vit_config", "adapter_config", "text_config"),
        {
            "frame_start_token_id": _VIDEOS,
            "frame_end_token_id": _VIDEOS,
            "use_frame_special_tokens": _VIDEOS,
            "image_low_res_id": "no prompt has it",
            "image_high_res_id": "image_patch_id again",
        },
        {},
    ),
    "vision_config": _VISION,
    "vit_config": _VISION,
    "adapter_config": Section(
        (*molmo2.ADAPTER_DEFAULTS, *molmo2.OLD_NAMES["adapter_config"]),
        {**_TRAINING, **_PRECISION},
        {"attention_bias": True, "mlp_bias": False, "pooling_attention_mask": True},
    ),
    "text_config": Section(
        (*molmo2.TEXT_DEFAULTS, *molmo2.OLD_NAMES["text_config"]),
        {
            **_TRAINING,
            "max_position_embeddings": "rotary positions have no table; prompts are far shorter",
            "rope_scaling_layers": "nothing is scaled: only the default rotary type is known",
            "tie_word_embeddings": "the top level decides",
        },
        {
            "attention_bias": False,
            "qkv_bias": False,
            "norm_after": False,
            "qk_norm_type": "qwen3",
            "use_qk_norm": True,
        },
    ),
}
