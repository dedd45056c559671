"""Capacity from an overhead budget: M(4+2r) <= eps * P_host / D^2 (paper section 4)."""

from __future__ import annotations

from fractions import Fraction

from trace_jax.errors import UserError


def block_params(dim: int, mlp_ratio: int) -> int:
    """(4 + 2r) D^2, the paper's count of one block: kernels, without biases and norms."""
    return (4 + 2 * mlp_ratio) * dim * dim


def depth(overhead_budget: float, *, host_params: int, dim: int, mlp_ratio: int = 4) -> int:
    """The largest M whose overhead stays within the budget.

    Args:
      overhead_budget: eps, e.g. 0.1 for ten per cent of the host.
      host_params: P_host, the whole host (vision, projector and language model).
      dim: D at the tap.
      mlp_ratio: r.

    Raises:
      UserError: not even one block fits; the message names the budget that one needs.
    """
    # Exact in the decimal that was written: 0.1 must not lose a block to binary rounding.
    allowed = Fraction(str(overhead_budget)) * host_params
    blocks = int(allowed // block_params(dim, mlp_ratio))
    if blocks < 1:
        needed = overhead(1, host_params=host_params, dim=dim, mlp_ratio=mlp_ratio)
        raise UserError(
            f"an overhead budget of {overhead_budget:.2%} allows no FRM block at D={dim}: one "
            f"needs {needed:.2%} of {host_params:,} parameters. Raise the budget or set frm.depth."
        )
    return blocks


def overhead(blocks: int, *, host_params: int, dim: int, mlp_ratio: int = 4) -> float:
    """P_FRM / P_host of M blocks, a fraction."""
    return blocks * block_params(dim, mlp_ratio) / host_params
