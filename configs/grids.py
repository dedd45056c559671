"""The ablation grids of the paper (section 5.3, Table 9) for any host: helpers, no experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

_LOSSES = (
    ("ln_mse", "LN-MSE"),
    ("mse", "MSE"),
    ("huber_cos", "Huber + cosine"),
    ("mse_cos", "MSE + cosine"),
)
_WEIGHTS = (0.01, 0.1, 0.5)


def losses(name: str, page: ConfigDict, columns: Sequence[str]) -> ConfigDict:
    """Section 5.3 i: which loss.

    Args:
      name: of the ablation.
      page: the FRM page that every run starts from.
      columns: "task/metric" of each column.
    """
    return grid(
        name,
        page,
        title="Loss formulation",
        place="section 5.3",
        runs={loss: {"loss": {"name": loss}} for loss, _ in _LOSSES},
        rows=[{"title": title, "run": loss} for loss, title in _LOSSES],
        columns=columns,
    )


def weights(name: str, page: ConfigDict, columns: Sequence[str]) -> ConfigDict:
    """Section 5.3 ii: lambda, the weight of the cosine term; arguments as of `losses`."""
    return grid(
        name,
        page,
        title="Weight of the cosine term",
        place="section 5.3",
        runs={_lambda(w): {"loss": {"cos_weight": w}} for w in _WEIGHTS},
        rows=[{"title": f"lambda = {w:g}", "run": _lambda(w)} for w in _WEIGHTS],
        columns=columns,
    )


def qwen3_vl_taps(name: str, page: ConfigDict, streams: int) -> ConfigDict:
    """Table 9's part on Qwen3-VL: DeepStack recovered or left alone, and the tap.

    Args:
      name: of the ablation.
      page: the FRM page at the post-merger tap.
      streams: DeepStack streams of the host.
    """
    recovered = tuple(f"stream_{k}" for k in range(streams))
    identity, first = "description/identity_accuracy", "retrieval/r_at_1"
    return grid(
        name,
        page,
        title="DeepStack and tap point",
        place="Table 9",
        runs={
            "post_merger": {},
            "pre_merger": {"host": {"tap": "pre_merger"}},
            **{run: {"host": {"tap": f"deepstack_{k}"}} for k, run in enumerate(recovered)},
        },
        rows=[
            {
                "title": "FRM post-merger, DeepStack off",
                "run": "post_merger",
                "paper": {identity: 37.31, first: 85.28},
            },
            {
                "title": "FRM post-merger, DeepStack on",
                "run": "post_merger",
                "deepstack": "recovered",
                "streams": recovered,
                "paper": {identity: 36.54},
            },
            {"title": "FRM pre-merger", "run": "pre_merger", "paper": {first: 72.90}},
        ],
        columns=(identity, first),
        ends={"No FRM": {identity: 32.69, first: 74.55}, "Pristine ceiling": {identity: 43.08}},
    )


def internvl_taps(name: str, page: ConfigDict) -> ConfigDict:
    """Table 9's part on InternVL3.5: the tap.

    Args:
      name: of the ablation.
      page: the FRM page at the post-projector tap.
    """
    first = "retrieval/r_at_1"
    return grid(
        name,
        page,
        title="Tap point",
        place="Table 9",
        runs={"post_projector": {}, "pre_projector": {"host": {"tap": "pre_projector"}}},
        rows=[
            {
                "title": "FRM post-projector",
                "run": "post_projector",
                "paper": {first: 74.92},
            },
            {"title": "FRM pre-projector", "run": "pre_projector", "paper": {first: 63.84}},
        ],
        columns=(first, "feature_recovery/cosine"),
        # Table 4 has the frozen host.
        ends={"No FRM": {first: 59.09}},
    )


def grid(
    name: str,
    page: ConfigDict,
    *,
    title: str,
    place: str,
    runs: Mapping[str, Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    ends: Mapping[str, Mapping[str, float]] | None = None,
) -> ConfigDict:
    """An ablation page; fields as in trace_jax.runs.ablate.AblationConfig."""
    return ConfigDict(
        {
            "kind": "ablation",
            "name": name,
            "title": title,
            "place": place,
            "page": page,
            "runs": {run: dict(changes) for run, changes in runs.items()},
            "rows": tuple(dict(row) for row in rows),
            "columns": tuple(columns),
            "ends": dict(ends or {}),
        }
    )


def _lambda(weight: float) -> str:
    return f"lambda_{weight:g}".replace(".", "_")
