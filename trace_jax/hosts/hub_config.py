"""Reading sizes out of a Hugging Face config.json, old field styles included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trace_jax.errors import FaultsError, UserError
from trace_jax.nn.activations import ACTIVATIONS
from trace_jax.nn.blocks import StackConfig


def section(config: Mapping[str, Any], name: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """One tower's settings: what transformers assumes, overlaid by what the file says.

    Args:
      config: the whole config.json.
      name: "text_config" or "vision_config".
      defaults: transformers' class defaults; a file that equals them may leave keys out.

    Returns:
      A value for every key of `defaults`. An old file's `<name>_dict`, completed by the defaults,
      replaces `<name>` as in transformers. Keys outside `defaults` are for the converters' audit.

    Raises:
      UserError: the section is no JSON object.
    """
    old = f"{name}_dict"
    source = old if old in config and config[old] is not None else name
    given = config[source] if source in config and config[source] is not None else {}
    if not isinstance(given, Mapping):
        raise UserError(f"config.json: {source} is {given!r}, not a section of settings")
    return {key: given[key] if key in given else value for key, value in defaults.items()}


def top_level(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The same for the keys that stand outside the towers."""
    return {key: config[key] if key in config else value for key, value in defaults.items()}


def require_model_type(config: Mapping[str, Any], expected: str, hint: str) -> None:
    """Refuses the config of another model.

    Raises:
      UserError: `model_type` is missing or not `expected`; the message ends with `hint`.
    """
    if not isinstance(config, Mapping):
        raise UserError("config.json holds no JSON object")
    found = config["model_type"] if "model_type" in config else None
    if found != expected:
        raise UserError(
            f"config.json has model_type {found!r}, this host needs {expected!r}. {hint}"
        )


def stack(values: Mapping[str, Any], *, causal: bool, label: str) -> StackConfig:
    """Geometry of a tower's blocks from its resolved settings.

    Raises:
      FaultsError: an unknown activation, sizes that are no positive integers, or a width that the
        heads do not divide.
    """
    faults = []
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
        if not isinstance(values[key], int) or values[key] < 1:
            faults.append(f"{label}.{key} is {values[key]!r}, not a positive integer")
    if values["hidden_act"] not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        faults.append(f"{label}.hidden_act is {values['hidden_act']!r}, known are {known}")
    if not faults and values["hidden_size"] % values["num_attention_heads"]:
        faults.append(
            f"{label}.hidden_size {values['hidden_size']} is no multiple of "
            f"num_attention_heads {values['num_attention_heads']}"
        )
    if faults:
        raise FaultsError("config.json describes no model this host can be", faults)
    return StackConfig(
        width=values["hidden_size"],
        hidden=values["intermediate_size"],
        depth=values["num_hidden_layers"],
        heads=values["num_attention_heads"],
        activation=values["hidden_act"],
        eps=float(values["layer_norm_eps"]),
        causal=causal,
    )


def square(value: Any, label: str) -> int:
    """A side in pixels given as 224, [224, 224] or (224, 224).

    Raises:
      UserError: anything else.
    """
    if isinstance(value, list | tuple) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    if not isinstance(value, int) or value < 1:
        raise UserError(f"config.json: {label} is {value!r}; this host takes square sizes only")
    return value


def grid_side(image_size: int, patch_size: int) -> int:
    """Patches along one side.

    Raises:
      UserError: the patch does not divide the image.
    """
    if image_size % patch_size:
        raise UserError(
            f"config.json: image_size {image_size} is no multiple of patch_size {patch_size}"
        )
    return image_size // patch_size
