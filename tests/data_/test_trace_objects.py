"""The tensorflow-datasets builder, without TensorFlow."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from support.tiny_host import make_data

from trace_jax import images
from trace_jax.data import manifest
from trace_jax.errors import FaultsError, UserError

# In a process of its own: that TensorFlow is never imported can be seen only there, and tfds and
# its dependencies warn of their own deprecations at import.
_SCRIPT = """
import json, sys
from trace_jax.data.builders import trace_objects
builder = trace_objects.build(sys.argv[1], sys.argv[2])
builder = trace_objects.build(sys.argv[1], sys.argv[2])   # finds what is there
rows = {s: trace_objects.read(builder, s) for s in ("train", "val", "test")}
import tensorflow_datasets as tfds
plain = tfds.builder_from_directory(str(builder.data_path)).as_data_source(split="test")
print(json.dumps({
    "tensorflow": "tensorflow" in sys.modules,
    "path": str(builder.data_path),
    "rows": {s: [e.path for e, _ in r] for s, r in rows.items()},
    "pixels": {e.path: [p.size, list(p.getpixel((0, 0)))] for e, p in rows["test"]},
    "metrics": rows["train"][-1][0].metrics,
    "plain": [plain[0]["image"].tolist(), plain[0]["severity"], plain[0]["path"].decode()],
}))
"""


def build(folder, out):
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(folder), str(out)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("tfds")
    data = make_data(root / "data", identities=5, levels=("L0", "L3"))
    # One picture that only our rule opens rightly: turned by EXIF.
    turned = next(e for e in data.examples if e.split == "test" and e.severity == "L3")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20), (200, 0, 0)).save(data.path(turned), exif=exif)
    return data, turned, build(data.folder, root / "out")


def test_tensorflow_is_never_imported(built):
    assert built[2]["tensorflow"] is False


def test_rows_in_the_manifests_order(built):
    data, _, seen = built
    for split, paths in seen["rows"].items():
        assert paths == [e.path for e in data.examples if e.split == split]


def test_pictures_by_our_rule(built):
    data, turned, seen = built
    assert seen["pixels"][turned.path] == [[20, 40], [200, 0, 0]]
    for path, (size, pixel) in seen["pixels"].items():
        picture = images.open_rgb(data.folder / path)
        assert (list(picture.size), list(picture.getpixel((0, 0)))) == (size, pixel)


def test_readable_without_this_package(built):
    data, _, seen = built
    first = next(e for e in data.examples if e.split == "test")
    pixels, severity, path = seen["plain"]
    assert (severity, path) == (0, first.path)
    wanted = np.asarray(images.open_rgb(data.path(first)))
    np.testing.assert_array_equal(np.asarray(pixels), wanted)


def test_faults_are_refused(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    from trace_jax.data.builders import trace_objects

    data = make_data(tmp_path / "data", identities=1, levels=("L0",))
    data.path(data.examples[1]).write_bytes(b"")
    with pytest.raises(FaultsError, match="empty"):
        trace_objects.build(data.folder, tmp_path / "out")
    manifest.write(data.folder, manifest.DatasetInfo("objects", "d", "first", ""), data.examples)
    with pytest.raises(UserError, match="version 'first'"):
        trace_objects.TraceObjects(folder=data.folder, data_dir=str(tmp_path / "out"))
