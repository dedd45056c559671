"""What every host is: two pure functions around a tap, and the verbs bound to one set of weights.

The law of the seam: `resume(tap(x)) == forward(x)`, difference exactly zero in float32 on one
device. `forward` is its own path; `tests/laws/test_seam.py` compares them.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental.xla_metadata import set_xla_metadata
from jaxtyping import Array, Float, Int
from PIL import Image

from trace_jax.errors import UserError
from trace_jax.hosts.preprocess import ImagePreprocessor
from trace_jax.hosts.text import TextTokenizer
from trace_jax.nn.blocks import collect_blocks
from trace_jax.types import Features, FeatureSource, HostSpec, TapSpec

Params = Mapping[str, Any]
ImageInputs = Mapping[str, Float[Array, "b h w 3"] | np.ndarray]
TextInputs = Mapping[str, Int[Array, "t l"] | np.ndarray]

Output = TypeVar("Output")

# The weights hash of parameters that were never read from files: made at random, or in training.
UNHASHED = "unhashed"


class EncoderOutput(NamedTuple):
    """What an encoder host ends in.

    Attributes:
      pooled: [B, D], mean of the tap's tokens; what retrieval compares (paper section 5.1).
      embedding: [B, E], the model's own image embedding, not normalised
        (transformers' `get_image_features(...).pooler_output`).
    """

    pooled: Float[Array, "b d"]
    embedding: Float[Array, "b e"]


class Host(abc.ABC):
    """A frozen pretrained model bound to one tap and one set of weights.

    The verbs are jitted and use the bound parameters. The `apply_*` methods are the same functions,
    pure, parameters first, for training and for meshes.

    Args:
      name: registered host name.
      config: the Hugging Face config.json this host was built from.
      params: nested dict of arrays as `abstract_params` describes it.
      weights_hash: see FeatureSource, or UNHASHED.
      preprocessor: images to inputs; has `description` and `hub_config`.
      tokenizer: texts to token ids; it opens its files when first used.
      tap: name of the tap, None for the family's default.

    Attributes:
      family: the class's family name.
      taps: names of its taps, the default first.
      hub_id: where its published weights live.
    """

    family: ClassVar[str]
    taps: ClassVar[tuple[str, ...]]
    hub_id: ClassVar[str]

    def __init__(
        self,
        *,
        name: str,
        config: Mapping[str, Any],
        params: Params,
        weights_hash: str,
        preprocessor: Any,
        tokenizer: Any,
        tap: str | None = None,
    ) -> None:
        self.config = dict(config)
        self.model = self.parse(config)
        self.params = params
        self.preprocessor = preprocessor
        self.tokenizer = tokenizer
        self._graph = abstract_model(lambda: self.module(self.model, jnp.dtype("float32"), _rngs()))
        self.spec = HostSpec(
            name=name,
            family=self.family,
            tap=self._tap_spec(check_tap(name, tap, self.taps)),
            num_params=sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params)),
            weights_hash=weights_hash,
            preprocessing=preprocessor.description,
            dtype=str(jax.tree.leaves(params)[0].dtype),
        )
        self._tap = jax.jit(self.apply_tap)

    @classmethod
    @abc.abstractmethod
    def parse(cls, config: Mapping[str, Any]) -> Any:
        """The family's frozen config dataclass from a config.json.

        Raises:
          UserError: the config is of another model or describes none.
        """

    @classmethod
    @abc.abstractmethod
    def module(cls, model: Any, dtype: jnp.dtype, rngs: nnx.Rngs) -> nnx.Module:
        """The whole Flax model, freshly drawn."""

    @abc.abstractmethod
    def apply_tap(self, params: Params, inputs: ImageInputs) -> Features:
        """Image to features.

        Args:
          params: as `host.params`.
          inputs: what `preprocess` gives.

        Returns:
          Features stamped with this host's source.
        """

    @classmethod
    @abc.abstractmethod
    def companions(
        cls,
        model: Any,
        preprocessor: Mapping[str, Any] | None,
        tokenizer: Path | None,
        lower_case: bool,
    ) -> tuple[Any, Any]:
        """What stands before the model: `preprocessor` and `tokenizer` of the constructor.

        Args:
          model: what `parse` gave.
          preprocessor: preprocessor_config.json, or None: the family's published constants.
          tokenizer: folder with the tokenizer's files, or None.
          lower_case: whether texts are lower-cased first.
        """

    @abc.abstractmethod
    def _tap_spec(self, tap: str) -> TapSpec:
        """Name and shape of a tap."""

    def preprocess(self, images: Sequence[Image.Image]) -> dict[str, np.ndarray]:
        """PIL images of any mode and size to the arrays that `tap` takes."""
        return self.preprocessor(images)

    def tap(self, inputs: ImageInputs) -> Features:
        """See `apply_tap`."""
        return self._tap(self.params, inputs)

    def with_params(self, params: Params, weights_hash: str = UNHASHED) -> Self:
        """The same host with other weights, e.g. those that pretraining arrived at."""
        return type(self)(
            name=self.spec.name,
            config=self.config,
            params=params,
            weights_hash=weights_hash,
            preprocessor=self.preprocessor,
            tokenizer=self.tokenizer,
            tap=self.spec.tap.name,
        )

    def _merge(self, params: Params) -> Any:
        return nnx.merge(self._graph, dict(params))

    def _check_source(self, features: Features) -> None:
        require_source(features, self.spec)


class EncoderHost(Host):
    """A frozen image-text encoder: its verbs are `tap`, `resume`, `forward`, `encode_text` and
    `logits`. `preprocess` gives {"pixel_values": float32 [B, H, W, 3]}. Arguments: see Host.
    """

    preprocessor: ImagePreprocessor
    tokenizer: TextTokenizer

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._resume = jax.jit(self.apply_resume)
        self._forward = jax.jit(self.apply_forward)
        self._text = jax.jit(self.apply_text)
        self._logits = jax.jit(self.apply_logits)

    # ---- what a family defines

    @abc.abstractmethod
    def apply_resume(self, params: Params, features: Features) -> EncoderOutput:
        """From features on to the model's end.

        Raises:
          UserError: the features come from another host, tap or weights.
        """

    @abc.abstractmethod
    def apply_forward(self, params: Params, inputs: ImageInputs) -> EncoderOutput:
        """Image to the model's end, not through Features: its own path."""

    @abc.abstractmethod
    def apply_text(self, params: Params, inputs: TextInputs) -> Float[Array, "t e"]:
        """Token ids to text embeddings, not normalised.

        Args:
          params: as `host.params`.
          inputs: {"input_ids": int32 [T, context]} from `tokenize`.
        """

    @abc.abstractmethod
    def apply_logits(
        self, params: Params, images: Float[Array, "b e"], texts: Float[Array, "t e"]
    ) -> Float[Array, "b t"]:
        """Zero-shot logits of every image against every text; both sides are normalised here."""

    # ---- what two towers of blocks give every family

    @classmethod
    def companions(
        cls,
        model: Any,
        preprocessor: Mapping[str, Any] | None,
        tokenizer: Path | None,
        lower_case: bool,
    ) -> tuple[ImagePreprocessor, TextTokenizer]:
        """See Host."""
        images = ImagePreprocessor(cls.family, preprocessor, image_size=model.image_size)
        texts = TextTokenizer(
            tokenizer,
            context=model.context,
            lower_case=lower_case,
            vocabulary=model.vocabulary,
            end_of_text=model.end_of_text,
        )
        return images, texts

    @property
    def image_size(self) -> int:
        """Side in pixels of the images `preprocess` yields."""
        return self.model.image_size

    def apply_blocks(
        self, params: Params, inputs: ImageInputs | TextInputs
    ) -> Float[Array, "l b n d"]:
        """Output of every block of the tower the inputs belong to, for parity tests."""
        model = self._merge(params)
        if "pixel_values" in inputs:
            vision = model.vision
            return collect_blocks(
                vision.blocks, vision.embed(self._pixels(model.logit_scale.dtype, inputs))
            )
        ids = jnp.asarray(inputs["input_ids"])
        return collect_blocks(model.text.blocks, model.text.embed(ids))

    # ---- the verbs

    def resume(self, features: Features) -> EncoderOutput:
        """See `apply_resume`."""
        return self._resume(self.params, features)

    def forward(self, inputs: ImageInputs) -> EncoderOutput:
        """See `apply_forward`."""
        return self._forward(self.params, inputs)

    def tokenize(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Texts to {"input_ids": int32 [T, context]}, padded and cut to the model's context.

        Raises:
          UserError: the weights folder has no tokenizer.
        """
        return self.tokenizer(texts)

    def encode_text(self, texts: Sequence[str]) -> Float[Array, "t e"]:
        """Texts to embeddings [T, E], not normalised. Compiled anew for each number of texts."""
        return self._text(self.params, self.tokenize(texts))

    def logits(
        self, images: Float[Array, "b e"], texts: Float[Array, "t e"]
    ) -> Float[Array, "b t"]:
        """Zero-shot logits of `output.embedding` against `encode_text(...)`."""
        return self._logits(self.params, images, texts)

    # ---- helpers of the families

    def _tap_spec(self, tap: str) -> TapSpec:
        return TapSpec(tap, self.model.tokens, self.model.vision.width)

    def _pixels(self, dtype: jnp.dtype, inputs: ImageInputs) -> Float[Array, "b h w 3"]:
        pixels = jnp.asarray(inputs["pixel_values"])
        if pixels.ndim != 4 or pixels.shape[1:] != (self.image_size, self.image_size, 3):
            raise UserError(
                f"host {self.spec.name} takes pixel_values [B, {self.image_size}, "
                f"{self.image_size}, 3] as its preprocess makes them, got {list(pixels.shape)}"
            )
        return pixels.astype(dtype)


def require_source(features: Features, spec: HostSpec) -> None:
    """Refuses features of another host, tap or weights. Static: costs nothing under jit.

    Raises:
      UserError: with every difference.
    """
    found, wanted = features.source, spec.source
    names = [field.name for field in dataclasses.fields(FeatureSource)]
    wrong = [
        f"{name} {getattr(found, name)!r} (needs {getattr(wanted, name)!r})"
        for name in names
        if getattr(found, name) != getattr(wanted, name)
    ]
    if wrong:
        raise UserError(
            f"these features do not fit host {spec.name}: {', '.join(wrong)}. "
            "Make them anew with this host's tap (bin/cache_features)."
        )
    if features.tokens.shape[-1] != spec.tap.dim:
        raise UserError(
            f"tokens are {features.tokens.shape[-1]} wide, tap {spec.tap.name} of host "
            f"{spec.name} yields {spec.tap.dim}"
        )


def check_tap(name: str, tap: str | None, taps: tuple[str, ...]) -> str:
    """The tap's name, the first of `taps` for None.

    Raises:
      UserError: unknown tap.
    """
    if tap is None:
        return taps[0]
    if tap not in taps:
        raise UserError(f"host {name} has no tap {tap!r}; it has {', '.join(taps)}")
    return tap


def sealed(function: Callable[..., Output], *arrays: Any) -> Output:
    """`function(*arrays)` as a computation that XLA fuses with nothing around it.

    `forward` ends in this, so that what follows the tap is rounded as in `resume`, where it is a
    program of its own. On a GPU an optimization barrier does it. XLA's CPU compiler drops barriers
    before it fuses; there the function becomes a call that may not be inlined.
    """
    arrays = jax.lax.optimization_barrier(arrays)
    if jax.default_backend() != "cpu":
        return function(*arrays)

    @jax.jit
    def apart(*arrays: Any) -> Output:
        # Only this call: functions called inside are inlined, as they are in `resume`. (Said in
        # words: to JAX, no attribute means the one of the call around.)
        with set_xla_metadata(inlineable="true"):
            return function(*arrays)

    with set_xla_metadata(inlineable="false"):
        return apart(*arrays)


def unit(x: Float[Array, "*b e"]) -> Float[Array, "*b e"]:
    """x over its L2 norm along the last axis."""
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def abstract_model(make: Callable[[], nnx.Module]) -> nnx.GraphDef:
    """The graph of a module without allocating its parameters."""
    return nnx.split(nnx.eval_shape(make))[0]


def abstract_params(family: type[Host], model: Any, dtype: str) -> Params:
    """Shapes and dtypes of a family's parameters: nested dict of jax.ShapeDtypeStruct."""
    module = nnx.eval_shape(lambda: family.module(model, jnp.dtype(dtype), _rngs()))
    return nnx.to_pure_dict(nnx.state(module))


def random_params(family: type[Host], model: Any, dtype: str, key: jax.Array) -> Params:
    """Freshly drawn parameters: Xavier-uniform kernels, zero biases, small normal tables."""

    def draw(key: jax.Array) -> Params:
        module = family.module(model, jnp.dtype(dtype), nnx.Rngs(params=key))
        return nnx.to_pure_dict(nnx.state(module, nnx.Param))

    # Run once: what compiles fastest is fastest.
    return jax.jit(draw, compiler_options={"xla_backend_optimization_level": "0"})(key)


def _rngs() -> nnx.Rngs:
    return nnx.Rngs(params=0)
