"""Config pages become dataclasses strictly, and every page of ours can be read."""

from __future__ import annotations

import dataclasses
import importlib
import json

import pytest
from ml_collections import ConfigDict

from configs import siglip2
from trace_jax.errors import UserError
from trace_jax.runs.train import TrainConfig
from trace_jax.train import config as strict

PAGES = ("siglip2", "clip_l14", "nano.siglip2_frm", "nano.siglip2_frm_plus", "nano.clip_frm")


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int
    rate: float = 0.1


@dataclasses.dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    levels: tuple[str, ...] = ()
    note: str | None = None


def test_types_are_kept_and_widened() -> None:
    page = ConfigDict({"name": "a", "inner": {"size": 3, "rate": 1}, "levels": ["L0", "L1"]})
    built = strict.build(Outer, page, "config")
    assert built == Outer("a", Inner(3, 1.0), ("L0", "L1"))
    assert isinstance(built.inner.rate, float)
    assert json.loads(json.dumps(strict.plain(built)))["levels"] == ["L0", "L1"]


def test_every_fault_at_once() -> None:
    page = ConfigDict({"inner": {"size": "3", "sise": 4}, "levels": [1], "extra": 0, "note": 5})
    with pytest.raises(UserError) as caught:
        strict.build(Outer, page, "config")
    text = str(caught.value)
    for part in (
        "config.inner.size: must be int, is '3'",
        "config.inner.sise: unknown; allowed: rate, size",
        "config.levels[0]: must be str",
        "config.extra: unknown; allowed: inner, levels, name, note",
        "config.note: must be str or NoneType",
        "config.name: missing",
    ):
        assert part in text


@pytest.mark.parametrize("name", PAGES)
def test_pages(name) -> None:
    page = importlib.import_module(f"configs.{name}").get_config()
    read = TrainConfig.read(page)
    assert read.loop.optim.lr == page.optim.lr and read.loop.seed == page.seed
    assert (read.condition == "frm_plus") == (read.contrast.weight > 0)
    if read.condition == "frm":
        assert read.data.pristine_fraction == 0 and not read.data.level_balanced
        assert (read.loss.name, read.loss.cos_weight) == ("mse_cos", 0.1)


def test_ten_per_cent_of_the_host() -> None:
    assert siglip2.get_config().frm.depth == 5


def test_wrong_pages() -> None:
    page = siglip2.get_config()
    page.loop.steps = 5
    with pytest.raises(UserError, match="either epochs or loop.steps"):
        TrainConfig.read(page)
    page = siglip2.get_config()
    with page.unlocked():
        page.optim.learning_rate = 1.0
    with pytest.raises(UserError, match=r"config\.optim\.learning_rate: unknown; allowed: b1"):
        TrainConfig.read(page)
    page = siglip2.get_config()
    page.kind = "host"
    with pytest.raises(UserError, match="kind 'frm'"):
        TrainConfig.read(page)
