"""`runs.train.run` from a tiny cache, and from a tiny host on the fly."""

from __future__ import annotations

import numpy as np
import pytest
from support import tiny_host

from configs import common
from trace_jax import frm
from trace_jax.errors import UserError
from trace_jax.runs import train
from trace_jax.train import metrics_log
from trace_jax.types import Features


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    tiny_host.make_data(root / "data", identities=10, draws=2)
    tiny_host.make_cache(root / "data", root / "cache", dtype="float32")
    return root


def _page(world, **data):
    page = common.frm_page("tiny", host="tiny", tap="last_hidden_state", depth=1)
    page.frm.num_heads = 2
    page.epochs = 2
    page.loop.log_every = 2
    page.optim.warmup_steps = 1
    page.data.update(
        {"folder": str(world / "data"), "cache": str(world / "cache"), "batch_size": 8, **data}
    )
    return page


def _host(name, weights, **_):
    return tiny_host.TinyHost()


def _no_host(*_, **__):
    raise AssertionError("cached features need no host")


def test_cached_run_leaves_self_describing_folders(world, tmp_path) -> None:
    result = train.run(_page(world), load_host=_no_host, workdir=tmp_path)
    assert result.fit.status == "finished" and result.fit.step == 2 * (6 * 5 * 2 // 8)
    assert result.online_cost is None
    for folder in (result.best, result.last):
        recover = frm.load(folder)
        d = recover.description
        assert (d.source.host, d.source.weights_hash, d.condition) == ("tiny", "w0", "frm")
        assert d.dataset["name"] == "tiny_data" and len(d.dataset["hash"]) == 64
        assert d.training["loss"]["cos_weight"] == 0.1
        assert d.metrics["mse"] > 0
        tokens = np.zeros((2, tiny_host.TOKENS, tiny_host.DIM), "f")
        assert recover(Features(tokens, source=d.source)).tokens.shape == tokens.shape
    assert frm.describe(result.last).step == result.fit.step
    assert frm.describe(result.best).step == result.fit.best_step
    rows = metrics_log.read(tmp_path / "metrics.jsonl")
    names = {"r_at_1", "mse", "cosine", "r_at_1_L0", "r_at_1_L4", "r_at_1_pristine"}
    assert names <= {k for row in rows if row["kind"] == "val" for k in row}


def test_broken_and_resumed_gives_the_same_folders(world, tmp_path) -> None:
    page = _page(world, level_balanced=True, pristine_fraction=0.25)
    page.contrast.weight = 0.3
    whole = train.run(page, load_host=_no_host, workdir=tmp_path / "whole")
    train.run(page, load_host=_no_host, workdir=tmp_path / "broken", stop_at=3)
    broken = train.run(page, load_host=_no_host, workdir=tmp_path / "broken")
    for name in ("best", "last"):
        one, two = (tiny_host.snapshot(r.workdir / name) for r in (whole, broken))
        assert one == two


def test_online_matches_cached_and_reports_its_cost(world, tmp_path) -> None:
    cached = train.run(_page(world), load_host=_no_host, workdir=tmp_path / "cached")
    online = train.run(
        _page(world, features="online"), load_host=_host, workdir=tmp_path / "online"
    )
    assert online.online_cost is not None and online.online_cost > 0
    for one, two in zip(
        *(
            [r for r in metrics_log.read(x.workdir / "metrics.jsonl") if r["kind"] == "train"]
            for x in (cached, online)
        ),
        strict=True,
    ):
        assert abs(one["loss"] - two["loss"]) < 1e-4


def test_init_from_folder_and_from_workdir(world, tmp_path) -> None:
    page = _page(world)
    first = train.run(page, load_host=_no_host, workdir=tmp_path / "first")
    page.optim.lr = 0.0
    page.optim.weight_decay = 0.0
    trained = frm.load(first.last).params["blocks"]["up"]["kernel"]
    for number, source in enumerate((first.last, first.workdir)):
        again = train.run(
            page, load_host=_no_host, workdir=tmp_path / str(number), init_from=source
        )
        np.testing.assert_array_equal(
            frm.load(again.last).params["blocks"]["up"]["kernel"], trained
        )
    page.frm.depth = 2
    with pytest.raises(UserError, match="the configuration says"):
        train.run(page, load_host=_no_host, workdir=tmp_path / "x", init_from=first.last)


def test_levels_can_be_held_back(world, tmp_path, capsys) -> None:
    page = _page(world, levels=("L0", "L1", "L2"), draws=(0,))
    train.run(page, load_host=_no_host, workdir=tmp_path)
    assert "18 pairs of 6 identities" in capsys.readouterr().out


def test_what_is_missing_is_named(world, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="bin/cache_features --host=tiny"):
        train.run(_page(world, cache=""), load_host=_no_host, workdir=tmp_path)
    page = _page(world)
    page.host.name = "clip"
    with pytest.raises(UserError, match="holds features of tiny/last_hidden_state"):
        train.run(page, load_host=_no_host, workdir=tmp_path)
    with pytest.raises(UserError, match="more than the 60 pairs"):
        train.run(_page(world, batch_size=64), load_host=_no_host, workdir=tmp_path)
