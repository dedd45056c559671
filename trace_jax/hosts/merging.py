"""What the hosts with a Qwen-type tower share: patches in merge blocks, a merger, its two taps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from trace_jax.hosts.prompts import Chat
from trace_jax.hosts.qwen_images import QwenImages, patch_places
from trace_jax.hosts.text_decoder import DecoderConfig
from trace_jax.hosts.vision_language import VisionLanguageHost
from trace_jax.nn.activations import ACTIVATIONS
from trace_jax.nn.rotary_blocks import RotaryStackConfig
from trace_jax.types import Features, TapSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergingConfig:
    """Sizes that every such family has.

    Attributes:
      vision: geometry of the tower's blocks.
      text: geometry of the decoder.
      patch, temporal, merge: side of a patch in pixels, frames of a patch, side of a merge block.
      image_token: id of the placeholder.
    """

    vision: RotaryStackConfig
    text: DecoderConfig
    patch: int
    temporal: int
    merge: int
    image_token: int

    @property
    def patch_values(self) -> int:
        """Numbers in a patch."""
        return 3 * self.temporal * self.patch**2


def tower_faults(
    vision: Mapping[str, Any], text: DecoderConfig, *, width: str, out: str
) -> list[str]:
    """What is wrong with a tower's settings whatever the family.

    Args:
      vision: vision_config.
      text: the decoder that the tower's tokens are for.
      width, out: names of the settings of the tower's width and of the merger's.
    """
    faults = []
    if vision["hidden_act"] not in ACTIVATIONS:
        faults.append(f"vision_config.hidden_act {vision['hidden_act']!r} is unknown")
    if vision[width] % vision["num_heads"] or vision[width] // vision["num_heads"] % 4:
        faults.append(f"vision_config.{width} is no multiple of 4 * num_heads")
    if vision[out] != text.width:
        faults.append(
            f"vision_config.{out} {vision[out]} is not the decoder's hidden_size {text.width}"
        )
    return faults


class MergingHost(VisionLanguageHost):
    """A host whose tower gives merge x merge patches as one token of the decoder.

    Its model config is a MergingConfig; of its taps only `pre_merger` lies before the merger.

    Attributes:
      image_defaults: constants of the published preprocessor_config.json.
    """

    image_defaults: ClassVar[Mapping[str, Any]]

    @staticmethod
    def written_prompt(question: str, images: int) -> str:
        """The family's chat format, where a folder brings no template; see hosts.prompts.Chat."""
        raise NotImplementedError

    @classmethod
    def companions(
        cls,
        model: Any,
        preprocessor: Mapping[str, Any] | None,
        tokenizer: Path | None,
        lower_case: bool,
    ) -> tuple[QwenImages, Chat]:
        images = QwenImages(
            preprocessor,
            defaults=cls.image_defaults,
            patch=model.patch,
            temporal=model.temporal,
            merge=model.merge,
        )
        chat = Chat(
            tokenizer,
            image_token=model.image_token,
            written=cls.written_prompt,
            vocabulary=model.text.vocab,
        )
        return images, chat

    @property
    def decoder(self) -> DecoderConfig:
        return self.model.text

    def token_counts(self, grids: np.ndarray) -> np.ndarray:
        return np.prod(np.asarray(grids, np.int64).reshape(-1, 2), axis=-1)

    def preprocess(self, images: Any) -> dict[str, np.ndarray]:
        """PIL images to patches with their places: see QwenImages and `patch_places`."""
        inputs = self.preprocessor(images)
        return {**inputs, **patch_places(inputs, self.model.merge)}

    @property
    def _group(self) -> int:
        """Tokens of the tap that give one token of the decoder."""
        return self.model.merge**2 if self.spec.tap.name == "pre_merger" else 1

    def _stride(self, features: Features) -> int:
        return features.tokens.shape[1] // self._group

    def _grid(self, inputs: Mapping[str, Any]) -> np.ndarray:
        return np.asarray(inputs["grid"]) // self.model.merge

    def _tap_spec(self, tap: str) -> TapSpec:
        width = self.model.vision.width if tap == "pre_merger" else self.model.text.width
        return TapSpec(tap, None, width)
