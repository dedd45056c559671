"""RF-DETR: a windowed DINOv2 backbone and a deformable DETR decoder.

Reference: transformers 5.24, models/rf_detr. The tap `backbone` are the maps of the backbone's
stages (blocks 3, 6, 9 and 12) after its LayerNorm, in raster order, without CLS tokens:
[B, 4, 1296, 384] at 576x576 for Medium. Everything behind them is `resume`: projector, selection
of proposals, decoder, heads, detections. Nano to Large differ by config.json alone.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from trace_jax.errors import FaultsError, UserError
from trace_jax.hosts import hub_config
from trace_jax.hosts.base import Host, ImageInputs, Params, sealed
from trace_jax.hosts.detector_images import DetectorImages
from trace_jax.hosts.rf_detr_decoder import Decoded, Detector, DetectorConfig
from trace_jax.nn.activations import ACTIVATIONS
from trace_jax.nn.blocks import StackConfig, run_joined, stacked_blocks
from trace_jax.nn.embeddings import Embedding, PatchEmbedding
from trace_jax.nn.norms import LayerNorm
from trace_jax.types import Features, TapSpec

# What transformers 5.24 assumes for keys a config.json leaves out.
BACKBONE_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": 224,
    "patch_size": 14,
    "num_windows": 4,
    "use_mask_token": True,
    "out_features": None,
    "out_indices": None,
}
TOP_DEFAULTS: dict[str, Any] = {
    "d_model": 256,
    "hidden_expansion": 0.5,
    "c2f_num_blocks": 3,
    "activation_function": "silu",
    "layer_norm_eps": 1e-5,
    "decoder_layers": 3,
    "decoder_self_attention_heads": 8,
    "decoder_cross_attention_heads": 16,
    "decoder_n_points": 4,
    "decoder_ffn_dim": 2048,
    "decoder_activation_function": "relu",
    "num_queries": 300,
    "group_detr": 13,
    "num_labels": None,
    "id2label": None,
}
# Labels of a transformers config that names none.
_DEFAULT_LABELS = 2


@dataclasses.dataclass(frozen=True)
class RfDetrConfig:
    """Sizes.

    Attributes:
      backbone: geometry of the backbone's blocks.
      detector: of everything behind the tap.
      patch: side of a patch in pixels.
      windows: windows along one side of the image.
      positions: side of the learned position grid; other grids are interpolated from it.
      stages: blocks (counted from 1) whose outputs are tapped; a stage's next block, alone, looks
        beyond its window.
      mask_token: whether the weights hold one. Nothing here reads it.
    """

    backbone: StackConfig
    detector: DetectorConfig
    patch: int
    windows: int
    positions: int
    stages: tuple[int, ...]
    mask_token: bool

    @property
    def image_size(self) -> int:
        """Side in pixels whose patches fill the position grid."""
        return self.positions * self.patch

    @property
    def step(self) -> int:
        """Sides of images are multiples of this: whole patches in whole windows."""
        return self.patch * self.windows

    @property
    def joined(self) -> tuple[int, ...]:
        """For each block that runs, how many windows attend as one."""
        count = max(self.stages)
        return tuple(self.windows**2 if n in self.stages else 1 for n in range(count))

    def require_size(self, side: int) -> None:
        """Refuses a side in pixels that the model cannot take.

        Raises:
          UserError: with the nearest legal sides.
        """
        least = math.ceil(math.sqrt(self.detector.queries) / self.windows) * self.step
        if side % self.step == 0 and side >= least:
            return
        lower = side // self.step * self.step
        near = sorted({max(lower, least), max(lower + self.step, least)})
        raise UserError(
            f"images of {side}x{side} do not fit this model: sides are multiples of {self.step} "
            f"(patches of {self.patch}, {self.windows} windows a side) from {least} on "
            f"({self.detector.queries} queries). The next legal sizes are "
            f"{' and '.join(map(str, near))}."
        )


def parse(config: Mapping[str, Any]) -> RfDetrConfig:
    """Sizes from a config.json of model_type "rf_detr".

    Raises:
      UserError: another model.
      FaultsError: settings that describe no model this host can be.
    """
    hub_config.require_model_type(config, "rf_detr", "Other DETRs are other architectures.")
    given = config["backbone_config"] if "backbone_config" in config else None
    if not isinstance(given, Mapping):
        raise UserError("config.json has no backbone_config")
    if "model_type" not in given or given["model_type"] != "rf_detr_dinov2":
        found = given["model_type"] if "model_type" in given else None
        raise UserError(
            f"config.json: backbone_config.model_type is {found!r}, must be 'rf_detr_dinov2'"
        )
    top = hub_config.top_level(config, TOP_DEFAULTS)
    values = hub_config.section(config, "backbone_config", BACKBONE_DEFAULTS)
    values["intermediate_size"] = int(values["hidden_size"] * values["mlp_ratio"])
    backbone = hub_config.stack(values, causal=False, label="backbone_config")
    image_size = hub_config.square(values["image_size"], "backbone_config.image_size")
    patch = hub_config.square(values["patch_size"], "backbone_config.patch_size")
    faults: list[str] = []
    stages = _stages(values, backbone.depth, faults)
    detector = _detector(top, backbone.width * len(stages), faults)
    if not isinstance(values["num_windows"], int) or values["num_windows"] < 1:
        faults.append(f"backbone_config.num_windows is {values['num_windows']!r}")
    if faults:
        raise FaultsError("config.json describes no model this host can be", faults)
    return RfDetrConfig(
        backbone=dataclasses.replace(backbone, layer_scale=True),
        detector=detector,
        patch=patch,
        windows=values["num_windows"],
        positions=hub_config.grid_side(image_size, patch),
        stages=stages,
        mask_token=bool(values["use_mask_token"]),
    )


def _stages(values: Mapping[str, Any], depth: int, faults: list[str]) -> tuple[int, ...]:
    names, numbers = values["out_features"], values["out_indices"]
    by_name = {f"stage{n}": n for n in range(1, depth + 1)}
    if names is not None:
        unknown = [name for name in names if name not in by_name]
        if unknown or not names:
            faults.append(f"backbone_config.out_features {names!r}: known are {', '.join(by_name)}")
            return (depth,)
        found = tuple(by_name[name] for name in names)
        if numbers is not None and tuple(n % (depth + 1) for n in numbers) != found:
            faults.append(f"backbone_config.out_indices {numbers!r} are not out_features {names!r}")
    else:
        found = (depth,) if numbers is None else tuple(n % (depth + 1) for n in numbers)
    if list(found) != sorted(set(found)) or not found or found[0] < 1:
        faults.append(f"backbone_config: stages {list(found)} must rise from 1 to {depth}")
        return (depth,)
    return found


def _detector(top: Mapping[str, Any], inputs: int, faults: list[str]) -> DetectorConfig:
    counts = (
        "d_model", "c2f_num_blocks", "decoder_layers", "decoder_self_attention_heads",
        "decoder_cross_attention_heads", "decoder_n_points", "decoder_ffn_dim", "num_queries",
        "group_detr",
    )  # fmt: skip
    wrong = [k for k in counts if not isinstance(top[k], int) or top[k] < 1]
    faults += [f"{key} is {top[key]!r}, not a positive integer" for key in wrong]
    for key in ("activation_function", "decoder_activation_function"):
        if top[key] not in ACTIVATIONS:
            faults.append(f"{key} is {top[key]!r}, known are {', '.join(ACTIVATIONS)}")
    for key in ("decoder_self_attention_heads", "decoder_cross_attention_heads"):
        if not wrong and top["d_model"] % top[key]:
            faults.append(f"d_model {top['d_model']} is no multiple of {key} {top[key]}")
    if not wrong and top["d_model"] % 4:
        faults.append(f"d_model {top['d_model']} is no multiple of 4")
    classes = top["num_labels"]
    if classes is None:
        classes = _DEFAULT_LABELS if top["id2label"] is None else len(top["id2label"])
    return DetectorConfig(
        inputs=inputs,
        width=top["d_model"],
        inner=int(top["d_model"] * top["hidden_expansion"]) if not wrong else 1,
        bottlenecks=top["c2f_num_blocks"],
        activation=top["activation_function"],
        eps=float(top["layer_norm_eps"]),
        depth=top["decoder_layers"],
        heads=top["decoder_self_attention_heads"],
        cross_heads=top["decoder_cross_attention_heads"],
        points=top["decoder_n_points"],
        hidden=top["decoder_ffn_dim"],
        decoder_activation=top["decoder_activation_function"],
        queries=top["num_queries"],
        groups=top["group_detr"],
        classes=classes,
    )


class Detections(NamedTuple):
    """What an image ends in, best first.

    Attributes:
      boxes: [B, Q, 4], x0, y0, x1, y1 in pixels of the image that was preprocessed.
      scores: [B, Q], 0-1.
      labels: [B, Q], class slots; of the published weights, COCO's category ids.
      logits: [B, Q, C], by query.
      pred_boxes: [B, Q, 4], by query, cx, cy, w, h in 0-1 of the image.
    """

    boxes: Float[Array, "b q 4"]
    scores: Float[Array, "b q"]
    labels: Int[Array, "b q"]
    logits: Float[Array, "b q c"]
    pred_boxes: Float[Array, "b q 4"]


class Backbone(nnx.Module):
    """Patches and CLS in windows through the blocks; the stages' maps come out whole."""

    def __init__(self, config: RfDetrConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        stack = config.backbone
        self.patches = PatchEmbedding(config.patch, stack.width, bias=True, dtype=dtype, rngs=rngs)
        self.cls = Embedding(1, stack.width, dtype=dtype, rngs=rngs)
        self.positions = Embedding(1 + config.positions**2, stack.width, dtype=dtype, rngs=rngs)
        mask = jnp.zeros((1, stack.width), dtype)
        # Kept so that a saved folder is whole and the parameters are counted as published.
        self.mask_token = nnx.Param(mask) if config.mask_token else None
        self.blocks = stacked_blocks(stack, dtype=dtype, rngs=rngs)
        self.norm = LayerNorm(stack.width, eps=stack.eps, dtype=dtype)
        self.config = config

    def embed(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "v n d"]:
        """The windows of all images, [B * windows^2, 1 + tokens of a window, D]. Every window has
        its own copy of the CLS token.
        """
        config, batch = self.config, pixels.shape[0]
        side = pixels.shape[1] // config.patch
        table = self.positions.table[...]
        x = self.patches(pixels) + _grid(table[1:], config.positions, side)
        w, s = config.windows, side // config.windows
        x = x.reshape(batch, w, s, w, s, -1).swapaxes(2, 3).reshape(batch * w * w, s * s, -1)
        cls = jnp.broadcast_to(self.cls.table[...] + table[:1], (x.shape[0], 1, x.shape[2]))
        return jnp.concatenate([cls, x], axis=1)

    def run(self, x: Float[Array, "v n d"]) -> list[Float[Array, "v n d"]]:
        """Every block's output up to the last stage, in windows."""
        return run_joined(self.blocks, x, self.config.joined)

    def maps(self, states: list[Float[Array, "v n d"]]) -> Float[Array, "b s n d"]:
        """The stages' normalised tokens in raster order."""
        w = self.config.windows
        x = jnp.stack([states[n - 1][:, 1:] for n in self.config.stages], axis=1)  # [V, S, n, D]
        x = self.norm(x)
        windows, stages, tokens, width = x.shape
        s = math.isqrt(tokens)
        x = x.reshape(windows // (w * w), w, w, stages, s, s, width)
        return x.transpose(0, 3, 1, 4, 2, 5, 6).reshape(-1, stages, tokens * w * w, width)

    def __call__(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b s n d"]:
        return self.maps(self.run(self.embed(pixels)))


class RfDetrModel(nnx.Module):
    """Backbone and detector."""

    def __init__(self, config: RfDetrConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.backbone = Backbone(config, dtype=dtype, rngs=rngs)
        self.detector = Detector(config.detector, dtype=dtype, rngs=rngs)

    @property
    def dtype(self) -> jnp.dtype:
        """What the model computes in."""
        return self.backbone.norm.scale.dtype


class NoTexts:
    """Stands where other hosts have a tokenizer: a detector reads no texts."""

    files: tuple[Path, ...] = ()


class RfDetr(Host):
    """See the module's docstring and Host. Verbs: `tap`, `resume`, `forward`; for training,
    `train_outputs`.
    """

    family = "rf_detr"
    taps = ("backbone",)
    hub_id = "Roboflow/rf-detr-medium"
    model: RfDetrConfig
    preprocessor: DetectorImages

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._resume = jax.jit(self.apply_resume)
        self._forward = jax.jit(self.apply_forward)

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> RfDetrConfig:
        return parse(config)

    @classmethod
    def module(cls, model: RfDetrConfig, dtype: jnp.dtype, rngs: nnx.Rngs) -> RfDetrModel:
        return RfDetrModel(model, dtype=dtype, rngs=rngs)

    @classmethod
    def companions(
        cls,
        model: RfDetrConfig,
        preprocessor: Mapping[str, Any] | None,
        tokenizer: Path | None,
        lower_case: bool,
    ) -> tuple[DetectorImages, NoTexts]:
        """See Host.

        Raises:
          UserError: the images' size is none the model can take.
        """
        images = DetectorImages(preprocessor, image_size=model.image_size)
        model.require_size(images.image_size)
        return images, NoTexts()

    @property
    def image_size(self) -> int:
        """Side in pixels of the images `preprocess` yields."""
        return self.preprocessor.image_size

    # ---- the verbs

    def resume(
        self, features: Features, sizes: Int[Array, "b 2"] | np.ndarray | None = None
    ) -> Detections:
        """See `apply_resume`."""
        return self._resume(self.params, features, sizes)

    def forward(self, inputs: ImageInputs) -> Detections:
        """See `apply_forward`."""
        return self._forward(self.params, inputs)

    def train_outputs(
        self, params: Params, inputs: ImageInputs, *, groups: int | None = None
    ) -> dict[str, jax.Array]:
        """What every loss of DETR training is computed from; pure and differentiable.

        Args:
          params: as `host.params`.
          inputs: {"pixel_values": [B, S, S, 3]}, S any side that `model.require_size` takes: the
            learned positions are interpolated.
          groups: groups of queries that run, None for all of them.

        Returns:
          Float32 arrays, Q = groups * queries, group by group (inference's group first):
          "logits" [L, B, Q, C] and "boxes" [L, B, Q, 4] (cx, cy, w, h in 0-1) of each decoder
          layer, the last one last; "enc_logits" [B, Q, C] and "enc_boxes" [B, Q, 4] of the first
          stage's proposals. No gradient flows from decoder boxes into "enc_boxes".

        Raises:
          UserError: images of another shape, or more groups than there are weights for.
        """
        most = self.model.detector.groups
        count = most if groups is None else groups
        if not 1 <= count <= most:
            raise UserError(f"{count} groups of queries asked for, the weights have {most}")
        model = self._merge(params)
        pixels = jnp.asarray(inputs["pixel_values"])
        if pixels.ndim != 4 or pixels.shape[1] != pixels.shape[2] or pixels.shape[3] != 3:
            raise UserError(f"pixel_values must be [B, S, S, 3], got {list(pixels.shape)}")
        self.model.require_size(pixels.shape[1])
        decoded = model.detector.decode(model.backbone(pixels.astype(model.dtype)), count)
        logits, boxes = model.detector.predict(decoded, decoded.states)
        return {
            "logits": logits.astype(jnp.float32),
            "boxes": boxes,
            "enc_logits": decoded.enc_logits.astype(jnp.float32),
            "enc_boxes": decoded.enc_boxes,
        }

    # ---- pure functions

    def apply_tap(self, params: Params, inputs: ImageInputs) -> Features:
        """See Host. `carry` holds {"sizes": [B, 2]} where the inputs do."""
        model = self._merge(params)
        carry = {"sizes": jnp.asarray(inputs["sizes"])} if "sizes" in inputs else None
        tokens = model.backbone(self._pixels(model.dtype, inputs))
        return Features(tokens, carry=carry, source=self.spec.source)

    def apply_resume(
        self,
        params: Params,
        features: Features,
        sizes: Int[Array, "b 2"] | np.ndarray | None = None,
    ) -> Detections:
        """From the stages' maps to detections.

        Args:
          params: as `host.params`.
          features: what the tap gave, tokens [B, S, N, D] recovered or not.
          sizes: height and width in pixels of the images, for features that were cached: a cache
            keeps the tokens alone. None: those the features carry.

        Raises:
          UserError: the features come from another host, tap or weights, or nobody knows sizes.
        """
        self._check_source(features)
        if sizes is None and features.carry is not None:
            sizes = features.carry["sizes"]
        model = self._merge(params)
        tokens = features.tokens.astype(model.dtype)
        return _finish(model, tokens, _required(sizes))

    def apply_forward(self, params: Params, inputs: ImageInputs) -> Detections:
        """Image to detections, not through Features: its own path.

        Raises:
          UserError: inputs without `sizes`.
        """
        model = self._merge(params)
        sizes = _required(inputs["sizes"] if "sizes" in inputs else None)
        backbone = model.backbone
        states = backbone.run(backbone.embed(self._pixels(model.dtype, inputs)))
        finish = functools.partial(_finish, model)
        return sealed(finish, backbone.maps(states), sizes)

    def apply_blocks(self, params: Params, inputs: ImageInputs) -> Float[Array, "l v n d"]:
        """Output of every block that runs, in windows, for parity tests."""
        model = self._merge(params)
        backbone = model.backbone
        return jnp.stack(backbone.run(backbone.embed(self._pixels(model.dtype, inputs))))

    def apply_decode(self, params: Params, tokens: Float[Array, "b s n d"]) -> Decoded:
        """Everything between the tap and the heads, for parity tests."""
        return self._merge(params).detector.decode(tokens, 1)

    # ---- helpers

    def _tap_spec(self, tap: str) -> TapSpec:
        side = self.preprocessor.image_size // self.model.patch
        return TapSpec(tap, side * side, self.model.backbone.width)

    def _pixels(self, dtype: jnp.dtype, inputs: ImageInputs) -> Float[Array, "b h w 3"]:
        pixels = jnp.asarray(inputs["pixel_values"])
        side = self.image_size
        if pixels.ndim != 4 or pixels.shape[1:] != (side, side, 3):
            raise UserError(
                f"host {self.spec.name} takes pixel_values [B, {side}, {side}, 3] as its "
                f"preprocess makes them, got {list(pixels.shape)}"
            )
        return pixels.astype(dtype)


def detections(
    logits: Float[Array, "b q c"], boxes: Float[Array, "b q 4"], sizes: Int[Array, "b 2"]
) -> Detections:
    """The Q best pairs of query and class: a query may answer with several classes, or with none.

    Args:
      logits: by query.
      boxes: cx, cy, w, h in 0-1.
      sizes: height and width of each image in pixels.
    """
    batch, queries, classes = logits.shape
    scores, index = jax.lax.top_k(
        jax.nn.sigmoid(logits.astype(jnp.float32)).reshape(batch, -1), queries
    )
    chosen = jnp.take_along_axis(boxes, (index // classes)[:, :, None], axis=1)
    half = chosen[..., 2:] / 2
    corners = jnp.concatenate([chosen[..., :2] - half, chosen[..., :2] + half], axis=-1)
    scale = jnp.tile(sizes[:, ::-1].astype(jnp.float32), 2)[:, None]
    return Detections(corners * scale, scores, index % classes, logits, boxes)


def _finish(
    model: RfDetrModel, tokens: Float[Array, "b s n d"], sizes: Int[Array, "b 2"]
) -> Detections:
    decoded = model.detector.decode(tokens, 1)
    logits, boxes = model.detector.predict(decoded, decoded.states[-1])
    return detections(logits, boxes, sizes)


def _required(sizes: Any) -> Int[Array, "b 2"]:
    if sizes is None:
        raise UserError(
            "boxes are given in pixels of the image, and its size is not known here: "
            "pass the images' sizes [B, 2] (height, width)"
        )
    return jnp.asarray(sizes)


def _grid(table: Float[Array, "n d"], have: int, want: int) -> Float[Array, "m d"]:
    """The learned positions on a grid of another side: bicubic, antialiased (the kernel with
    a = -0.5, which torch uses with antialiasing only), in float32.
    """
    if have == want:
        return table
    grid = table.astype(jnp.float32).reshape(have, have, -1)
    grid = jax.image.resize(grid, (want, want, grid.shape[-1]), "cubic", antialias=True)
    return grid.reshape(want * want, -1).astype(table.dtype)
