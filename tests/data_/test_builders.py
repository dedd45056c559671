"""tensorflow-datasets sets of scenes and crops, without TensorFlow (data/builders)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from trace_jax.data import manifest
from trace_jax.types import Example, SceneBox, SceneExample

# In a process of its own, as in test_trace_objects.py.
_SCRIPT = """
import json, sys
from trace_jax.data import builders, manifest
from trace_jax.data.rows import to_json
from trace_jax.errors import UserError
said = {}
for kind in ("scenes", "crops"):
    module = builders.builder(kind)
    made = module.build(f"{sys.argv[1]}/{kind}", sys.argv[2])
    rows = module.read(made, "test")
    said[kind] = {"rows": [to_json(row) for row, _ in rows],
                  "sizes": [picture.size for _, picture in rows]}
    import tensorflow_datasets as tfds
    plain = tfds.builder_from_directory(str(made.data_path)).as_data_source(split="test")[0]
    said[kind]["path"] = plain["path"].decode()
    if kind == "scenes":
        said["boxes"] = [box.tolist() for box in plain["boxes"]["box"]]
        said["coco"] = [name.decode() for name in plain["boxes"]["coco"]]
try:
    builders.builder("scenes").build(f"{sys.argv[1]}/crops", sys.argv[2])
except UserError as error:
    said["refused"] = str(error)
said["tensorflow"] = "tensorflow" in sys.modules
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("builders")
    scenes, crops = [], []
    for number, split in enumerate(("train", "test", "test")):
        for kind in ("scenes", "crops"):
            path = root / kind / "images" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (30 + number, 20), (number * 50, 9, 9)).save(path)
        boxes = [SceneBox((1, 2, 3.5, 4), "chair", "chair", ("wood", "metal"), "charred", 0.5)]
        boxes += [SceneBox((5, 6, 7, 8), "aerosol_can")] if number == 1 else []
        scenes.append(
            SceneExample(
                f"images/{number}.png", f"l{number}", "residential", "kitchen", "L2", split,
                30 + number, 20, tuple(boxes), generation={"inventory": ["chair"]},
            )
        )  # fmt: skip
        crops.append(Example(f"images/{number}.png", f"real-{number}", "mug", "", "L3", split))
    info = manifest.DatasetInfo
    data = {
        "scenes": manifest.write(
            root / "scenes", info("scenes", "s", "1.2.0", "", pairs=False), scenes
        ),
        "crops": manifest.write(root / "crops", info("crops", "c", "1.0.0", ""), crops),
    }
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(root), str(root / "out")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return root, data, json.loads(done.stdout.splitlines()[-1])


def test_rows_and_pictures_come_back(built):
    root, data, said = built
    for kind, rows in (("scenes", data["scenes"].scenes), ("crops", data["crops"].examples)):
        from trace_jax.data.rows import to_json

        assert said[kind]["rows"] == [to_json(row) for row in rows if row.split == "test"]
        assert said[kind]["sizes"] == [[31, 20], [32, 20]]
        assert said[kind]["path"] == "images/1.png"
    assert said["boxes"] == [[1, 2, 3.5, 4], [5, 6, 7, 8]] and said["coco"] == ["chair", ""]
    assert (Path(root) / "out/trace_scenes/s/1.2.0").is_dir()
    assert (Path(root) / "out/trace_real_crops/c/1.0.0").is_dir()


def test_no_tensorflow_and_no_wrong_kind(built):
    said = built[2]
    assert said["tensorflow"] is False
    assert "holds crops; trace_scenes takes scenes" in said["refused"]
