"""Ablation pages and what a run leaves: every page reads, the grid trains once, the table."""

from __future__ import annotations

import importlib
import json

import pytest

from configs.nano import siglip2_lambda
from trace_jax.errors import UserError
from trace_jax.runs import ablate
from trace_jax.runs.train import TrainConfig

PAGES = (
    "qwen3vl_loss", "qwen3vl_lambda", "qwen3vl_taps", "internvl_taps", "nano.siglip2_loss",
    "nano.siglip2_lambda", "nano.qwen3_vl_taps",
)  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_every_run_of_a_page_is_a_training(name):
    page = importlib.import_module(f"configs.{name}").get_config()
    found = ablate.AblationConfig.read(page)
    assert len(found.rows) >= 2 and found.title and found.place
    for run, changes in found.runs.items():
        TrainConfig.read(ablate._page(found.page, run, changes))
    changed = {json.dumps(changes, sort_keys=True) for changes in found.runs.values()}
    assert len(changed) == len(found.runs), "two runs are alike"


def test_rows_must_name_runs_of_the_page():
    page = siglip2_lambda.get_config()
    page.rows = ({"title": "x", "run": "nowhere"},)
    with pytest.raises(UserError, match="nowhere"):
        ablate.AblationConfig.read(page)
    with pytest.raises(UserError, match="kind 'ablation'"):
        ablate.AblationConfig.read(page.page)
    page = siglip2_lambda.get_config()
    page.columns = ("dancing/steps",)
    with pytest.raises(UserError, match="dancing"):
        ablate.AblationConfig.read(page)


def test_cells_show_shares_in_percent_and_errors_as_they_are():
    cell = {"value": 0.1234, "low": 0.1, "high": 0.2}
    assert ablate._cell("retrieval/r_at_1", cell) == "12.3 (10.0–20.0)"
    assert ablate._cell("feature_recovery/mse", {**cell, "low": None}) == "0.1234"
    assert ablate._cell("feature_recovery/mse", None) == "–"
