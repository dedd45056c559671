"""Every vision-language host at true width, ids and vocabulary, few layers deep: weights in hub
shards, then the commands as a user types them: features, an FRM, scores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torch")
from support import true_width

from trace_jax import taxonomy
from trace_jax.data import manifest
from trace_jax.types import Example, PartMaterial

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "qwen3_vl": "qwen3vl_post_merger",
    "qwen2_5_vl": "qwen2_5vl_post_merger",
    "internvl": "internvl_post_projector",
    "llava_onevision": "llava_onevision_post_merger",
    "molmo2": "molmo2_post_projector",
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Three identities, one a split, pristine and at two levels."""
    root = tmp_path_factory.mktemp("data")
    (root / "images").mkdir()
    known = taxonomy.load()
    rng = np.random.default_rng(0)
    rows = []
    for number, split in enumerate(("train", "val", "test")):
        kind = known.types[known.object_types[number]]
        for severity in ("pristine", "L0", "L4"):
            path = f"images/{number}_{severity}.png"
            pixels = rng.integers(0, 256, (90 + 40 * number, 120, 3), np.uint8)
            Image.fromarray(pixels).save(root / path)
            parts = tuple(PartMaterial(p, m[0]) for p, m in kind.parts.items())
            rows.append(
                Example(path, f"thing-{number}", kind.name, "", severity, split, parts,
                        kind.functions)
            )  # fmt: skip
    manifest.write(root, manifest.DatasetInfo("objects", "wide", "1.0.0", known.name), rows)
    return root


def _command(cwd: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "bin" / words[0]), *words[1:]],
        cwd=cwd,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("name", PAGES)
def test_from_shards_to_scores(name, data, tmp_path):
    assert set(PAGES) == set(true_width.CONFIGS) == set(true_width.SHAPES)
    weights = true_width.folder(name, tmp_path / "weights")
    given = (f"--host={name}", f"--data={data}", f"--weights={weights}", "--batch_size=3")
    _command(tmp_path, "cache_features", *given)
    (stored,) = (tmp_path / "runs" / "cache" / name).glob("*/wide/manifest.json")
    shape = json.loads(stored.read_text())["shape"]
    assert tuple(shape) == true_width.SHAPES[name]
    page = [f"--config={ROOT / 'configs' / PAGES[name]}.py", f"--config.data.folder={data}"]
    small = ("frm.depth=1", "epochs=1", "data.batch_size=2", "data.val_batch_size=2")
    _command(tmp_path, "train", *page, *(f"--config.{one}" for one in small))
    tasks = "--task=retrieval,feature_recovery,material"
    _command(tmp_path, "eval", tasks, *given, f"--out={tmp_path / 'out'}")
    raw = json.loads((tmp_path / "out" / "results.json").read_text())
    rows = {(r["task"], r["condition"], r["metric"]) for r in raw["rows"]}
    for condition in ("base", "frm"):
        for task, metric in (
            ("retrieval", "r_at_1"), ("feature_recovery", "mse"), ("material", "unparseable"),
        ):  # fmt: skip
            assert (task, condition, metric) in rows
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
