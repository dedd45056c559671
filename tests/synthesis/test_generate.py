"""bin/generate's body: resumption, refusals, the shipped subset."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from configs.nano import data as nano_page
from configs.nano import pretrain_data
from trace_jax import taxonomy
from trace_jax.data import manifest
from trace_jax.errors import UserError
from trace_jax.runs import generate, rendering
from trace_jax.types import LEVELS


def _config(**changes) -> generate.GenerateConfig:
    config = generate.from_sizes(
        "tiny", 0, [2, 1, 1], engine="procedural", kind="objects", seed=0, size=64, views=1,
        draws=1, format="webp", quality=85,
    )  # fmt: skip
    return dataclasses.replace(config, **changes)


def _bytes(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generate") / "unbroken"
    result = generate.run(_config(), folder, workers=1)
    assert result.rendered == 4 * 6
    return folder


def test_folder_is_sound(unbroken: Path):
    assert manifest.check(unbroken) == []
    data = manifest.read(unbroken)
    assert data.info.taxonomy == taxonomy.load().name
    assert [e.severity for e in data.examples[:6]] == ["pristine", *LEVELS]
    assert {e.split for e in data.examples} == {"train", "val", "test"}
    assert not list(unbroken.glob(".*")) and not list(unbroken.rglob("*.tmp"))
    for example in data.examples:
        assert set(example.metrics) == (
            set() if example.severity == "pristine" else set(taxonomy.METRICS)
        )


@pytest.mark.parametrize("after", [0, 1, 3])
def test_killed_run_resumes_to_the_same_bytes(unbroken: Path, tmp_path, monkeypatch, after: int):
    class Kill(BaseException):
        pass

    write, count = rendering.write_picture, 0

    def dying(path: Path, data: bytes) -> None:
        nonlocal count
        if count == 6 * after + 2:  # in the middle of an identity
            raise Kill
        count += 1
        write(path, data)

    monkeypatch.setattr(rendering, "write_picture", dying)
    with pytest.raises(Kill):
        generate.run(_config(), tmp_path, workers=1)
    assert not (tmp_path / manifest.ROWS_FILE).exists()
    # A line that the kill cut short, and a picture that is not what was written.
    with open(tmp_path / rendering.JOURNAL, "a") as stream:
        stream.write('{"key": "mug-tr')
    if after:
        done = json.loads((tmp_path / rendering.JOURNAL).read_text().splitlines()[1])
        victim = tmp_path / done["rows"][0]["path"]
        victim.write_bytes(victim.read_bytes()[:-5])
    monkeypatch.setattr(rendering, "write_picture", write)
    result = generate.run(_config(), tmp_path, workers=1)
    assert result.rendered == 6 * (4 - max(after - 1, 0))
    assert _bytes(tmp_path) == _bytes(unbroken)


def test_complete_folder_is_only_repaired(unbroken: Path, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(unbroken, folder)
    lost = next(iter(sorted((folder / "images").rglob("l2_0.webp"))))
    lost.unlink()
    assert generate.run(_config(), folder, workers=1).rendered == 6
    assert _bytes(folder) == _bytes(unbroken)


def test_other_settings_are_refused(unbroken: Path):
    with pytest.raises(UserError, match="holds another data set"):
        generate.run(_config(seed=1), unbroken, workers=1)
    with pytest.raises(UserError, match="holds another data set"):
        generate.run(_config(size=96), unbroken, workers=1)


def test_begun_with_other_settings_is_refused(tmp_path):
    with rendering.journal(tmp_path, {"world": 1, "config": {}}, {}):
        pass
    with pytest.raises(UserError, match="begun with other settings"):
        generate.run(_config(), tmp_path, workers=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "gemini"}, "known engines"),
        ({"kind": "scenes"}, "kind objects"),
        ({"size": 32}, "64-448"),
        ({"format": "bmp"}, "known formats"),
        ({"series": ()}, "no identities"),
    ],
)
def test_bad_settings(changes: dict, message: str, tmp_path):
    with pytest.raises(UserError, match=message):
        generate.run(_config(**changes), tmp_path / "none")


def test_sizes_from_numbers():
    keywords = dict(
        engine="procedural", kind="objects", seed=0, size=64, views=2, draws=1, format="webp",
        quality=85,
    )  # fmt: skip
    config = generate.from_sizes("paper", 499, [], **keywords)
    assert [s.count for s in config.series] == [399, 50, 50]
    assert config.series[0].views == (0, 1)
    with pytest.raises(UserError, match="three whole numbers"):
        generate.from_sizes("x", 0, ["1", "two"], **keywords)
    with pytest.raises(UserError, match="no identities"):
        generate.from_sizes("x", 0, [], **keywords)
    with pytest.raises(UserError, match="--out"):
        generate.default_out(None, "")


def test_pages():
    page = nano_page.get_config()
    whole = generate.GenerateConfig.from_page(page)
    shipped = generate.GenerateConfig.from_page(page, "shipped")
    assert shipped.name == "nano_trace" and whole.name != shipped.name
    assert [s.count for s in shipped.series] == [378, 189, 300]
    assert {s.name for s in whole.series} == {"train", "val", "test"}
    types = len(taxonomy.load().object_types)
    assert all(s.count >= types for s in whole.series)  # every type in each split
    with pytest.raises(UserError, match="knows shipped"):
        generate.GenerateConfig.from_page(page, "small")
    pretrain = generate.GenerateConfig.from_page(pretrain_data.get_config())
    # The host must not have met the data set's identities: another stream of numbers.
    assert {s.name for s in pretrain.series}.isdisjoint({s.name for s in whole.series})
    assert pretrain.series[0].levels == ()


def test_sheet(tmp_path):
    config = dataclasses.replace(_config(), series=_config().series[:1])
    path = generate.write_sheet(config, tmp_path / "sheet.png")
    with Image.open(path) as image:
        assert image.size == (2 * 6 * 64, 64)


@pytest.mark.slow
def test_two_processes_give_the_same_bytes(unbroken: Path, tmp_path):
    generate.run(_config(), tmp_path, workers=2)
    assert _bytes(tmp_path) == _bytes(unbroken)


def test_shipped_set_is_what_the_page_renders(tmp_path):
    from trace_jax.runs.cache import EMBEDDED_DATA

    shipped = manifest.read(EMBEDDED_DATA)
    config = generate.GenerateConfig.from_page(nano_page.get_config(), "shipped")
    assert len(shipped.examples) == sum(
        s.count * (len(s.views) + len(s.levels)) for s in config.series
    )
    slice_ = dataclasses.replace(
        config,
        series=tuple(dataclasses.replace(s, first=k, count=1) for k, s in enumerate(config.series)),
    )
    rebuilt = generate.run(slice_, tmp_path, workers=1).dataset
    by_path = {e.path: e for e in shipped.examples}
    for example in rebuilt.examples:
        kept = by_path[example.path]
        assert dataclasses.replace(example, sha256="", metrics={}) == dataclasses.replace(
            kept, sha256="", metrics={}
        )
        assert example.metrics == pytest.approx(kept.metrics, abs=2e-3)
        with Image.open(rebuilt.path(example)) as a, Image.open(shipped.path(kept)) as b:
            gap = np.abs(np.asarray(a, float) - np.asarray(b, float)).mean()
        # Another processor may round a pixel otherwise; never more than that.
        assert gap < 2.0, (example.path, gap)
