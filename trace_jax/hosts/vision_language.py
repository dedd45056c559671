"""What every vision-language host is: features of images, then a prompt, then an answer.

The seam lies before the text decoder. `tap` makes features of images, one row an image; `resume`
puts them into prompts and gives the logits of the next token; `generate` goes on to an answer. A
recoverer stands between, in plain sight: `host.generate(frm(host.tap(inputs)), prompts)`.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from PIL import Image

from trace_jax.hosts import decoding
from trace_jax.hosts.base import Host, ImageInputs, Params, sealed
from trace_jax.hosts.decoding import GreedySettings, Prompt
from trace_jax.hosts.prompts import Chat, Prompts, arrange
from trace_jax.hosts.text_decoder import DecoderConfig, TextDecoder, causal
from trace_jax.types import Features

# From this many parameters on, a bfloat16 model on a CPU is run a layer at a time (see decoding).
_LAYERWISE_FROM = 1_000_000_000

TextInputs = Mapping[str, np.ndarray | Array]


class VisionLanguageOutput(NamedTuple):
    """What a prompt ends in.

    Attributes:
      logits: float32 [B, V], of the token after each prompt's last real one.
    """

    logits: Float[Array, "b v"]


class ImageTokens(NamedTuple):
    """What the decoder takes of images.

    Attributes:
      tokens: [B, N, D], one row an image.
      streams: [B, K, N, D], added to the hidden states after layer 0, 1, ..., K-1, or None.
    """

    tokens: Float[Array, "b n d"]
    streams: Float[Array, "b k n d"] | None


class VisionLanguageHost(Host):
    """A frozen vision-language model. Arguments: see Host; `tokenizer` is a hosts.prompts.Chat.

    Attributes:
      added: whether image tokens are added to their placeholders' embeddings (Molmo2), not put in
        their place.
      spatial: whether image tokens have row and column positions (mrope).
      image_words: an image's grid to all ids that stand for it, where a prompt has more of them
        than its tokens' (Molmo2's markers), or None.
    """

    tokenizer: Chat
    added = False
    spatial = False
    image_words: Callable[[np.ndarray], np.ndarray] | None = None

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.compile()

    def compile(self) -> None:
        """Makes the jitted verbs."""
        self._tap = jax.jit(self.apply_tap)
        self._resume = jax.jit(self.apply_resume)
        self._forward = jax.jit(self.apply_forward)
        self._generate = jax.jit(self.apply_generate, static_argnums=3)

    # ---- what a family defines

    @property
    @abc.abstractmethod
    def decoder(self) -> DecoderConfig:
        """Geometry of the text decoder, `text` in the module."""

    @abc.abstractmethod
    def image_tokens(self, model: Any, features: Features) -> ImageTokens:
        """From features to what the decoder takes: the rest of the projector, if any."""

    @abc.abstractmethod
    def token_counts(self, grids: np.ndarray) -> np.ndarray:
        """Image tokens of images by their grid: the one function for placeholder and tower.

        Args:
          grids: int [images, 2], rows and columns of tokens, as in `features.carry["grid"]`.

        Returns:
          int [images].
        """

    def together(self, text: TextInputs) -> Array | None:
        """[B, L] which tokens see each other besides causally, or None."""
        return None

    @property
    def patch_token(self) -> int | None:
        """Id of one image token, where it is another than the placeholder's."""
        return None

    @property
    def default_size(self) -> int:
        """Side of the squares that runs bring every picture to; see `at_size`."""
        return self.preprocessor.default_size

    def at_size(self, side: int) -> Self:
        """The same host, every picture first brought to `side` x `side` (the paper's 448), so that
        all of them give as many tokens and can be cached together.
        """
        other = copy.copy(self)
        other.preprocessor = self.preprocessor.fixed(side)
        inputs = other.preprocess([Image.new("RGB", (side, side))])
        tokens = jax.eval_shape(self.apply_tap, self.params, inputs).tokens.shape[-2]
        other.spec = dataclasses.replace(
            self.spec,
            tap=dataclasses.replace(self.spec.tap, tokens=tokens),
            preprocessing=other.preprocessor.description,
        )
        return other

    # ---- pure functions

    def apply_prefill(self, params: Params, images: ImageTokens | None, text: TextInputs) -> Prompt:
        """Prompts with images in their places, through all layers at once."""
        return self._prefill(self._merge(params).text, images, text, TextDecoder.prefill)

    def apply_resume(
        self, params: Params, features: Features | None, text: TextInputs
    ) -> VisionLanguageOutput:
        """From features and arranged prompts to the next token's logits.

        Raises:
          UserError: the features come from another host, tap or weights.
        """
        return self._next(params, self._images(params, features), text)

    def apply_forward(
        self, params: Params, inputs: ImageInputs, text: TextInputs
    ) -> VisionLanguageOutput:
        """Images and arranged prompts to the next token's logits: its own path."""
        features = self.apply_tap(params, inputs)

        def end(params: Params, features: Features, text: TextInputs) -> VisionLanguageOutput:
            return self._next(params, self._images(params, features), text)

        return sealed(end, params, features, dict(text))

    def apply_generate(
        self,
        params: Params,
        features: Features | None,
        text: TextInputs,
        settings: GreedySettings,
    ) -> Int[Array, "b t"]:
        """Greedy answers, padded after their end; see hosts.decoding."""
        prompt = self.apply_prefill(params, self._images(params, features), text)
        model = self._merge(params)
        return decoding.greedy(model.text, prompt, settings, model.text.tokens)

    def apply_answers(
        self, params: Params, features: Features, text: TextInputs
    ) -> Float[Array, "b l v"]:
        """Logits at every place of the prompts, for training the host itself."""
        model = self._merge(params)
        images = self.image_tokens(model, features)
        x, *_ = self._layers(model.text, images, text, TextDecoder.prefill)
        return model.text.logits(x)

    # ---- the verbs

    def arrange(
        self,
        features: Features | None,
        prompts: Prompts,
        images: Sequence[int] | None = None,
    ) -> dict[str, np.ndarray]:
        """Prompts as arrays for these features; see hosts.prompts.arrange."""
        grids = (
            np.zeros((0, 2), np.int32) if features is None else np.asarray(features.carry["grid"])
        )
        stride = 0 if features is None else int(self._stride(features))
        return arrange(
            self.tokenizer,
            prompts,
            grids,
            images=images,
            tokens_of=self.token_counts,
            stride=stride,
            spatial=self.spatial,
            words_of=self.image_words,
            token=self.patch_token,
        )

    def resume(
        self,
        features: Features | None,
        prompts: Prompts,
        *,
        images: Sequence[int] | None = None,
    ) -> VisionLanguageOutput:
        """Logits of the token after each prompt.

        Args:
          features: of all images in the order in which the prompts have them; None: no image.
          prompts: questions, or token ids with image placeholders.
          images: how many images each prompt has; None: one each, or as its ids say.
        """
        text = self.arrange(features, prompts, images)
        if not self.layerwise:
            return self._resume(self.params, features, text)
        decoder = self._merge(self.params).text
        prompt = self._prefill_by_layer(features, text)
        return VisionLanguageOutput(decoder.logits(prompt.last))

    def forward(
        self,
        inputs: ImageInputs,
        prompts: Prompts,
        *,
        images: Sequence[int] | None = None,
    ) -> VisionLanguageOutput:
        """Logits of the token after each prompt, from images: `resume(tap(inputs))` in one."""
        shapes = jax.eval_shape(self.apply_tap, self.params, inputs)
        features = shapes.replace(carry={"grid": self._grid(inputs)})
        text = self.arrange(features, prompts, images)
        return self._forward(self.params, inputs, text)

    def generate(
        self,
        features: Features | None,
        prompts: Prompts,
        *,
        max_new_tokens: int = 32,
        images: Sequence[int] | None = None,
        return_tokens: bool = False,
        repetition_penalty: float | None = 1.0,
    ) -> list[str] | list[list[int]]:
        """Greedy answers.

        Args:
          features, prompts, images: as in `resume`.
          max_new_tokens: the most tokens of an answer.
          return_tokens: token ids instead of words: without padding, with the stop token.
          repetition_penalty: see GreedySettings; 1 is the paper's protocol. None: the one that the
            checkpoint's generation_config.json names, which transformers' `generate` applies.
        """
        if not len(prompts):
            return []
        text = self.arrange(features, prompts, images)
        chat = self.tokenizer
        penalty = chat.repetition_penalty if repetition_penalty is None else repetition_penalty
        settings = GreedySettings(max_new_tokens, chat.stop, 0, penalty)
        if self.layerwise:
            decoder = self._merge(self.params).text
            prompt = self._prefill_by_layer(features, text)
            tokens = decoding.greedy_by_layer(decoder, prompt, settings, decoder.tokens)
        else:
            tokens = self._generate(self.params, features, text, settings)
        rows = decoding.unpadded(np.asarray(tokens), settings)
        return rows if return_tokens else self.tokenizer.decode(rows)

    @property
    def layerwise(self) -> bool:
        """Whether the decoder is run a layer at a time (see hosts.decoding)."""
        large = self.spec.num_params >= _LAYERWISE_FROM and self.spec.dtype != "float32"
        return large and jax.default_backend() == "cpu"

    # ---- helpers

    def _images(self, params: Params, features: Features | None) -> ImageTokens | None:
        if features is None:
            return None
        self._check_source(features)
        return self.image_tokens(self._merge(params), features)

    def _next(
        self, params: Params, images: ImageTokens | None, text: TextInputs
    ) -> VisionLanguageOutput:
        prompt = self.apply_prefill(params, images, text)
        return VisionLanguageOutput(self._merge(params).text.logits(prompt.last))

    def _prefill_by_layer(self, features: Features | None, text: TextInputs) -> Prompt:
        model = self._merge(self.params)
        images = None
        if features is not None:
            self._check_source(features)
            images = jax.jit(lambda p, f: self.image_tokens(self._merge(p), f))(
                self.params, features
            )
        return self._prefill(model.text, images, text, decoding.prefill_by_layer)

    def _prefill(
        self, decoder: TextDecoder, images: ImageTokens | None, text: TextInputs, run: Any
    ) -> Prompt:
        x, keys, values = self._layers(decoder, images, text, run)
        return Prompt(
            x[:, -1], keys, values, jnp.asarray(text["real"]),
            jnp.asarray(text["next_position"]), jnp.asarray(text["ids"]),
        )  # fmt: skip

    def _layers(
        self, decoder: TextDecoder, images: ImageTokens | None, text: TextInputs, run: Any
    ) -> tuple[Array, Array, Array]:
        x = decoder.tokens(jnp.asarray(text["ids"]))
        streams = None
        if images is not None:
            slots = jnp.asarray(text["slots"])
            there = (slots >= 0)[..., None]
            rows = images.tokens.reshape(-1, images.tokens.shape[-1]).astype(x.dtype)
            given = rows[jnp.maximum(slots, 0)]
            x = jnp.where(there, x + given if self.added else given, x)
            if images.streams is not None:
                flat = jnp.moveaxis(images.streams, 1, 0).reshape(
                    images.streams.shape[1], *rows.shape
                )
                streams = jnp.where(there, flat[:, jnp.maximum(slots, 0)].astype(x.dtype), 0)
        visible = causal(jnp.asarray(text["real"]), self.together(text))
        return run(decoder, x, jnp.asarray(text["positions"]), visible, streams)

    def _stride(self, features: Features) -> int:
        """Places of an image's row of `image_tokens`."""
        return features.tokens.shape[1]

    @abc.abstractmethod
    def _grid(self, inputs: ImageInputs) -> np.ndarray:
        """Rows and columns of tokens of each image, int [images, 2]."""
