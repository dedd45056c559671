"""RF-DETR behind its backbone: projector, two-stage selection, deformable decoder, heads.

Reference: transformers 5.24, models/rf_detr; LW-DETR (arXiv 2406.03459) and Group DETR (arXiv
2207.13085) for the groups of queries. Boxes are (cx, cy, w, h) in 0-1 of the image throughout and
are never squashed: a box is moved by shares of its own size and scaled by an exponential.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from trace_jax.nn.activations import ACTIVATIONS
from trace_jax.nn.attention import Attention
from trace_jax.nn.blocks import unroll
from trace_jax.nn.deformable_attention import DeformableAttention
from trace_jax.nn.embeddings import Embedding
from trace_jax.nn.linear import Linear, affine, xavier_uniform
from trace_jax.nn.mlp import Mlp
from trace_jax.nn.norms import LayerNorm

# Settings that transformers writes into the code: epsilon of the decoder's norms (torch's default)
# and of the projector's last one.
_DECODER_EPS, _LAST_EPS = 1e-5, 1e-6
# Side of a proposal's first box, and the margin in which no proposal is made.
_ANCHOR, _MARGIN = 0.05, 0.01
_TEMPERATURE = 10_000.0
# Classes start at 1% (focal loss, arXiv 1708.02002, section 4.1).
_PRIOR = -math.log(99.0)


@dataclasses.dataclass(frozen=True)
class DetectorConfig:
    """Sizes.

    Attributes:
      inputs: channels of all stages together.
      width: D of projector and decoder.
      inner: channels of a bottleneck of the projector.
      bottlenecks: their number.
      activation: of the projector, a key of nn.activations.ACTIVATIONS.
      eps: of the projector's inner norms.
      depth: decoder layers.
      heads, cross_heads: of self- and of deformable attention.
      points: places that a head of deformable attention looks at.
      hidden: inner width of the decoder's MLPs.
      decoder_activation: of those MLPs.
      queries: Q of one group; as many detections come out.
      groups: groups of queries there are weights for; inference uses the first.
      classes: C, class slots.
    """

    inputs: int
    width: int
    inner: int
    bottlenecks: int
    activation: str
    eps: float
    depth: int
    heads: int
    cross_heads: int
    points: int
    hidden: int
    decoder_activation: str
    queries: int
    groups: int
    classes: int


class Decoded(NamedTuple):
    """Everything on the way from the tap to the heads; Q counts the queries of all groups run.

    Attributes:
      memory: [B, N, D], the projected map in raster order.
      selected: [B, Q], tokens of `memory`, best first in each group.
      enc_logits, enc_boxes: [B, Q, C] and [B, Q, 4], what the first stage says of them.
      references: [B, Q, 4], boxes around which the decoder looks.
      states: [L, B, Q, D], normalised output of every decoder layer.
    """

    memory: Float[Array, "b n d"]
    selected: Int[Array, "b q"]
    enc_logits: Float[Array, "b q c"]
    enc_boxes: Float[Array, "b q 4"]
    references: Float[Array, "b q 4"]
    states: Float[Array, "l b q d"]


class ConvNorm(nnx.Module):
    """Convolution without bias, LayerNorm over channels, activation. NHWC; sizes stay."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        side: int,
        activation: str,
        eps: float,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ) -> None:
        self.kernel = nnx.Param(xavier_uniform(rngs.params(), (side, side, inputs, outputs), dtype))
        self.norm = LayerNorm(outputs, eps=eps, dtype=dtype)
        self.activation = activation

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b h w o"]:
        kernel = self.kernel[...]
        if kernel.shape[0] == 1:
            x = affine(x, kernel[0, 0])
        else:
            x = jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        return ACTIVATIONS[self.activation](self.norm(x))


class Bottleneck(nnx.Module):
    """Two 3x3 convolutions; nothing is added around them."""

    def __init__(self, config: DetectorConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        given: dict[str, Any] = dict(
            side=3, activation=config.activation, eps=config.eps, dtype=dtype, rngs=rngs
        )
        self.conv1 = ConvNorm(config.inner, config.inner, **given)
        self.conv2 = ConvNorm(config.inner, config.inner, **given)

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        return self.conv2(self.conv1(x))


class Projector(nnx.Module):
    """The stages' maps to one map (C2f): a chain of bottlenecks whose every link is kept."""

    def __init__(self, config: DetectorConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        given: dict[str, Any] = dict(
            side=1, activation=config.activation, eps=config.eps, dtype=dtype, rngs=rngs
        )
        links = 2 + config.bottlenecks
        self.conv1 = ConvNorm(config.inputs, 2 * config.inner, **given)
        self.conv2 = ConvNorm(links * config.inner, config.width, **given)
        self.norm = LayerNorm(config.width, eps=_LAST_EPS, dtype=dtype)

        @nnx.split_rngs(splits=config.bottlenecks)
        @nnx.vmap
        def make(rngs: nnx.Rngs) -> Bottleneck:
            return Bottleneck(config, dtype=dtype, rngs=rngs)

        self.bottlenecks = make(rngs)
        self.count = config.bottlenecks

    def __call__(self, stages: Float[Array, "b s n c"]) -> Float[Array, "b n d"]:
        """Raster maps of all stages, square, to tokens in raster order."""
        batch, count, tokens, channels = stages.shape
        side = math.isqrt(tokens)
        x = stages.swapaxes(1, 2).reshape(batch, side, side, count * channels)
        links = list(jnp.split(self.conv1(x), 2, axis=-1))
        graph, stacked = nnx.split(self.bottlenecks)
        for number in range(self.count):
            block = nnx.merge(graph, jax.tree.map(lambda p, n=number: p[n], stacked))
            links.append(block(links[-1]))
        x = self.conv2(jnp.concatenate(links, axis=-1))
        return self.norm(x).reshape(batch, tokens, -1)


class Perceptron(nnx.Module):
    """Linear maps fc1, fc2, ... with ReLU between them.

    Args:
      sizes: width of the input, then of each map's output.
      zero: whether the last map starts at zero.
      dtype: parameter dtype.
      rngs: stream "params".
    """

    def __init__(
        self, sizes: tuple[int, ...], *, zero: bool, dtype: jnp.dtype, rngs: nnx.Rngs
    ) -> None:
        self.count = len(sizes) - 1
        for number in range(self.count):
            layer = Linear(*sizes[number : number + 2], bias=True, dtype=dtype, rngs=rngs)
            setattr(self, f"fc{number + 1}", layer)
        if zero:
            layer.kernel[...] = jnp.zeros_like(layer.kernel[...])

    def __call__(self, x: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
        for number in range(1, self.count + 1):
            x = getattr(self, f"fc{number}")(x if number == 1 else jax.nn.relu(x))
        return x


class Heads(nnx.Module):
    """Class logits and box changes of a hidden state."""

    def __init__(self, config: DetectorConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        width = config.width
        self.classes = Linear(width, config.classes, bias=True, dtype=dtype, rngs=rngs)
        self.classes.bias = nnx.Param(jnp.full((config.classes,), _PRIOR, dtype))
        self.boxes = Perceptron((width, width, width, 4), zero=True, dtype=dtype, rngs=rngs)


class FirstStage(nnx.Module):
    """One group's way from the map to its best proposals."""

    def __init__(self, config: DetectorConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.map = Linear(config.width, config.width, bias=True, dtype=dtype, rngs=rngs)
        self.norm = LayerNorm(config.width, eps=_DECODER_EPS, dtype=dtype)
        self.heads = Heads(config, dtype=dtype, rngs=rngs)

    def __call__(
        self, memory: Float[Array, "b n d"], queries: int
    ) -> tuple[Int[Array, "b q"], Float[Array, "b q c"], Float[Array, "b q 4"]]:
        """The tokens with the highest class logits, their logits and boxes."""
        anchors, valid = proposals(math.isqrt(memory.shape[1]))
        states = self.norm(self.map(jnp.where(valid[:, None], memory, 0)))
        logits = self.heads.classes(states)
        scores = jnp.where(valid, logits.max(axis=-1).astype(jnp.float32), -jnp.inf)
        index = jax.lax.top_k(scores, queries)[1]
        # The box head runs on the selected tokens alone: it looks at one token at a time.
        states, logits = (
            jnp.take_along_axis(x, index[:, :, None], axis=1) for x in (states, logits)
        )
        return index, logits, moved(jnp.asarray(anchors)[index], self.heads.boxes(states))


class DecoderLayer(nnx.Module):
    """Self-attention, deformable attention, MLP; a LayerNorm after each is added."""

    def __init__(self, config: DetectorConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        width = config.width
        self.attention = Attention(width, heads=config.heads, causal=False, dtype=dtype, rngs=rngs)
        self.norm1 = LayerNorm(width, eps=_DECODER_EPS, dtype=dtype)
        self.cross = DeformableAttention(
            width, heads=config.cross_heads, levels=1, points=config.points, dtype=dtype, rngs=rngs
        )
        self.norm2 = LayerNorm(width, eps=_DECODER_EPS, dtype=dtype)
        self.mlp = Mlp(
            width, config.hidden, activation=config.decoder_activation, dtype=dtype, rngs=rngs
        )
        self.norm3 = LayerNorm(width, eps=_DECODER_EPS, dtype=dtype)

    def __call__(
        self,
        x: Float[Array, "b q d"],
        places: Float[Array, "b q d"],
        memory: Float[Array, "b n d"],
        references: Float[Array, "b q 4"],
        groups: int,
    ) -> Float[Array, "b q d"]:
        side = math.isqrt(memory.shape[1])
        # Groups do not see one another: they lie on the batch axis while they attend.
        apart = (x.shape[0] * groups, x.shape[1] // groups, x.shape[2])
        placed = (x + places).reshape(apart)
        change = self.attention(placed, placed, x.reshape(apart)).reshape(x.shape)
        x = self.norm1(x + change)
        x = self.norm2(x + self.cross(x + places, memory, references, ((side, side),)))
        return self.norm3(x + self.mlp(x))


class Detector(nnx.Module):
    """All that lies behind the tap."""

    def __init__(self, config: DetectorConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        width, rows = config.width, config.groups * config.queries
        self.projector = Projector(config, dtype=dtype, rngs=rngs)
        self.references = Embedding(rows, 4, dtype=dtype, rngs=rngs)
        self.references.table[...] = jnp.zeros_like(self.references.table[...])
        self.queries = Embedding(rows, width, dtype=dtype, rngs=rngs)
        self.places = Perceptron((2 * width, width, width), zero=False, dtype=dtype, rngs=rngs)

        @nnx.split_rngs(splits=config.groups)
        @nnx.vmap
        def make_stages(rngs: nnx.Rngs) -> FirstStage:
            return FirstStage(config, dtype=dtype, rngs=rngs)

        @nnx.split_rngs(splits=config.depth)
        @nnx.vmap
        def make_layers(rngs: nnx.Rngs) -> DecoderLayer:
            return DecoderLayer(config, dtype=dtype, rngs=rngs)

        self.first = make_stages(rngs)
        self.layers = make_layers(rngs)
        self.norm = LayerNorm(width, eps=_DECODER_EPS, dtype=dtype)
        self.heads = Heads(config, dtype=dtype, rngs=rngs)
        self.config = config

    def decode(self, stages: Float[Array, "b s n c"], groups: int) -> Decoded:
        """From the tap's maps to the last hidden states of the first `groups` groups."""
        memory = self.projector(stages)
        index, enc_logits, enc_boxes = self._select(memory, groups)
        rows = groups * self.config.queries
        # What the first stage chose is where the second starts, not what it is taught through.
        start = jax.lax.stop_gradient(enc_boxes)
        references = moved(start, self.references.table[...][:rows])
        places = self.places(waves(references, self.config.width // 2).astype(memory.dtype))
        query = jnp.broadcast_to(self.queries.table[...][:rows], places.shape)
        graph, stacked = nnx.split(self.layers)

        def step(x: Array, params: nnx.State) -> tuple[Array, Array]:
            x = nnx.merge(graph, params)(x, places, memory, references, groups)
            return x, self.norm(x)

        _, states = jax.lax.scan(step, query, stacked, unroll=unroll(self.config.depth))
        return Decoded(memory, index, enc_logits, enc_boxes, references, states)

    def _select(
        self, memory: Float[Array, "b n d"], groups: int
    ) -> tuple[Int[Array, "b q"], Float[Array, "b q c"], Float[Array, "b q 4"]]:
        graph, stacked = nnx.split(self.first)

        def one(params: nnx.State) -> tuple[Array, Array, Array]:
            return nnx.merge(graph, params)(memory, self.config.queries)

        used = jax.tree.map(lambda p: p[:groups], stacked)
        found = jax.vmap(one, out_axes=1)(used)  # [B, G, Q, ...]
        index, logits, boxes = (x.reshape(x.shape[0], -1, *x.shape[3:]) for x in found)
        return index, logits, boxes

    def predict(
        self, decoded: Decoded, states: Float[Array, "*l b q d"]
    ) -> tuple[Float[Array, "*l b q c"], Float[Array, "*l b q 4"]]:
        """Class logits and boxes of decoder states, the last ones or those of every layer."""
        return self.heads.classes(states), moved(decoded.references, self.heads.boxes(states))


def moved(boxes: Float[Array, "*b 4"], changes: Float[Array, "*b 4"]) -> Float[Array, "*b 4"]:
    """Boxes whose centres are moved by shares of their size and whose sizes are scaled by exp.

    In float32 whatever the dtypes: half a digit of a box is pixels.
    """
    boxes, changes = boxes.astype(jnp.float32), changes.astype(jnp.float32)
    centre, size = boxes[..., :2], boxes[..., 2:]
    return jnp.concatenate(
        [changes[..., :2] * size + centre, jnp.exp(changes[..., 2:]) * size], axis=-1
    )


def proposals(side: int) -> tuple[np.ndarray, np.ndarray]:
    """A box [N, 4] around the centre of every place of a map, and whether it counts [N]: places
    within a hundredth of the image's edge do not, and their boxes are zero.
    """
    line = (np.arange(side, dtype=np.float32) + np.float32(0.5)) / np.float32(side)
    y, x = np.meshgrid(line, line, indexing="ij")
    size = np.full_like(x, _ANCHOR)
    boxes = np.stack([x, y, size, size], axis=-1).reshape(-1, 4)
    valid = np.logical_and(boxes > _MARGIN, boxes < 1 - _MARGIN).min(axis=-1)
    return np.where(valid[:, None], boxes, np.float32(0)), valid


def waves(boxes: Float[Array, "b q 4"], width: int) -> Float[Array, "b q e"]:
    """Sines and cosines of every coordinate, `width` numbers each, in the order y, x, w, h."""
    steps = np.arange(width) // 2 * 2 / width
    turns = (boxes * (2 * math.pi))[..., None] / jnp.asarray(_TEMPERATURE**steps, jnp.float32)
    pairs = jnp.stack([jnp.sin(turns[..., 0::2]), jnp.cos(turns[..., 1::2])], axis=-1)
    coded = pairs.reshape(*boxes.shape, width)[..., np.array([1, 0, 2, 3]), :]
    return coded.reshape(*boxes.shape[:-1], 4 * width)
