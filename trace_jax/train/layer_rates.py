"""Learning rates and weight decay by parameter, as RF-DETR is trained.

Reference: RF-DETR 1.4.1, `get_param_dict` and the DINOv2 backbone's layer-wise decay, defaults of
its `train()`. Rates are constant there; a schedule multiplies all alike.

| parameters | rate |
| --- | --- |
| projector, heads, two-stage selection, query tables | lr = 1e-4 |
| decoder layers, their last norm, position MLP of the queries | lr * 0.7 = 7e-5 |
| backbone | encoder * 0.7^2 * 0.8^(last + 1 - id); encoder = 1.5e-4 |

The backbone's id is 0 for embeddings, k + 1 for block k (from 0) and last + 1 for its final norm;
`last` is the last stage's number plus one, 13 for 12 blocks, so that no parameter has id 13.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import Float

from trace_jax.errors import UserError
from trace_jax.train.state import named_leaves

_DECODER = ("layers", "norm", "places")
_BLOCKS, _NORM = "blocks", "norm"
_EMBEDDINGS = ("cls", "mask_token", "patches", "positions")
# Of the backbone these do not decay, nor do its embeddings; scales of residual branches do.
_STILL = ("bias", "norm", "norm1", "norm2")


@dataclasses.dataclass(frozen=True)
class RatesConfig:
    """The recipe's numbers beside the base rate, which is `OptimizerConfig.lr`.

    Attributes:
      encoder: rate that the backbone's decays start from, for lr = `base`.
      base: see `encoder`; another lr changes all rates in proportion.
      component: factor of the decoder, and squared of the backbone.
      layer: factor from one backbone block to the one before it.
    """

    encoder: float = 1.5e-4
    base: float = 1e-4
    component: float = 0.7
    layer: float = 0.8


def share(path: str, blocks: int, last_stage: int, config: RatesConfig) -> float | np.ndarray:
    """A parameter's rate over the base rate.

    Args:
      path: of a leaf of a detector's parameters, e.g. "backbone/blocks/norm1/scale".
      blocks: of the backbone; they are stacked in one leaf.
      last_stage: number of the last stage, the blocks that run.

    Returns:
      A number, or for a leaf of stacked blocks [blocks].

    Raises:
      UserError: the path belongs to no detector.
    """
    match path.split("/"):
        case ["backbone", part, *_]:
            last = last_stage + 1
            top = config.encoder / config.base * config.component**2
            if part == _BLOCKS:
                number: np.ndarray | int = np.arange(1, blocks + 1)
            elif part == _NORM:
                number = last + 1
            elif part in _EMBEDDINGS:
                number = 0
            else:
                raise UserError(f"{path}: no part of a backbone whose rates are known")
            return top * config.layer ** (last + 1.0 - number)
        case ["detector", part, *_]:
            return config.component if part in _DECODER else 1.0
        case _:
            raise UserError(f"{path}: no parameter of a detector")


def decays(path: str) -> bool:
    """Whether weight decay acts on a parameter: on everything but the backbone's embeddings,
    biases and norms. (Of the decoder and heads, biases and norms decay too.)
    """
    parts = path.split("/")
    if parts[0] != "backbone":
        return True
    return parts[1] not in _EMBEDDINGS and not any(part in _STILL for part in parts[1:])


def shares(params: Any, last_stage: int, config: RatesConfig) -> Any:
    """`share` of every leaf, shaped to be multiplied with it: a float32 number, or for stacked
    blocks [blocks, 1, ...].
    """

    def one(path: str, leaf: Any) -> Float[np.ndarray, ...]:
        value = np.asarray(share(path, np.shape(leaf)[0], last_stage, config), np.float32)
        return value.reshape(value.shape + (1,) * (np.ndim(leaf) - 1)) if value.ndim else value

    return _by_path(one, params)


def decaying(params: Any) -> Any:
    """`decays` of every leaf."""
    return _by_path(lambda path, _: decays(path), params)


def scale_by(factors: Any) -> optax.GradientTransformation:
    """Multiplies every update by its own factor."""
    return optax.stateless(lambda updates, _: jax.tree.map(lambda u, f: u * f, updates, factors))


def _by_path(function: Any, params: Any) -> Any:
    values = [function(path, leaf) for path, leaf in named_leaves(params).items()]
    return jax.tree.unflatten(jax.tree.structure(params), values)
