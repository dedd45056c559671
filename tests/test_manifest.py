"""The data folder: every fault at once, with line numbers (trace_jax/data/manifest.py)."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from PIL import Image
from support.tiny_host import make_data, snapshot

from trace_jax import files, taxonomy
from trace_jax.data import manifest
from trace_jax.errors import FaultsError, UserError
from trace_jax.types import Example, PartMaterial

INFO = manifest.DatasetInfo("objects", "d", "1.0.0", "")


BIN = Path(__file__).parents[1] / "bin"


def row(**changes):
    fields = {
        "path": "images/a.png",
        "identity": "mug_0",
        "object_type": "mug",
        "variant": "plain",
        "severity": "pristine",
        "split": "train",
    }
    return {k: v for k, v in (fields | changes).items() if v is not ...}


def folder_of(tmp_path, *lines, info=None):
    """A data folder whose manifest holds these lines (objects or raw text)."""
    (tmp_path / "images").mkdir(exist_ok=True)
    for name in ("a.png", "b.png"):
        Image.new("RGB", (4, 4), (9, 9, 9)).save(tmp_path / "images" / name)
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (tmp_path / "manifest.jsonl").write_text(text + "\n", encoding="utf-8")
    info = dataclasses.asdict(INFO) if info is None else info
    text = info if isinstance(info, str) else json.dumps(info)
    (tmp_path / "dataset.json").write_text(text)
    return tmp_path


def test_round_trip_and_stable_bytes(tmp_path):
    examples = [
        Example(
            "images/ä b.png",
            "mug 0",
            "mug",
            "v",
            "pristine",
            "val",
            (PartMaterial("body", "metal"), PartMaterial("grip", "wood")),
            ("cooking", "storage"),
            metrics={"soot_coverage": 0.25},
            caption='A line\u2028separator, 中文 and "quotes".',
        ),
        Example("images/1.png", "mug 0", "mug", "v", "L3", "val", draw=2, sha256="0" * 64),
    ]
    written = manifest.write(tmp_path, INFO, examples)
    read = manifest.read(tmp_path)
    assert read == written and read.examples == tuple(examples)
    assert read.hash == written.hash
    before = snapshot(tmp_path)
    manifest.write(tmp_path, INFO, read.examples)
    assert snapshot(tmp_path) == before
    keys = list(json.loads((tmp_path / "manifest.jsonl").read_text().split("\n")[0]))
    assert keys == sorted(keys)


def test_hash_is_of_content_not_of_layout(tmp_path):
    data = make_data(tmp_path, identities=2)
    lines = (tmp_path / "manifest.jsonl").read_text().splitlines()
    loose = [json.dumps(dict(reversed(json.loads(line).items())), indent=None) for line in lines]
    (tmp_path / "manifest.jsonl").write_text("\r\n".join(loose) + "\r\n\r\n")
    assert manifest.read(tmp_path).hash == data.hash
    changed = [dataclasses.replace(data.examples[0], variant="other"), *data.examples[1:]]
    assert manifest.write(tmp_path, data.info, changed).hash != data.hash


def test_optional_fields_and_byte_order_mark(tmp_path):
    folder_of(tmp_path, "\ufeff" + json.dumps(row()))
    assert manifest.check(tmp_path) == []
    assert manifest.read(tmp_path).examples[0].materials == ()


def test_a_sound_folder(tmp_path):
    make_data(tmp_path, identities=3)
    assert manifest.check(tmp_path) == []
    assert manifest.inspect(tmp_path) == []


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("{nonsense", "is not JSON"),
        ("[1, 2]", "must be a JSON object, is list"),
        ('{"path": "a", "path": "b"}', "field 'path' is written twice"),
        (row(severity=...), "field 'severity' is missing"),
        (row(colour="red"), "unknown field 'colour'"),
        (row(identity=7), "'identity' must be text, is 7"),
        (row(identity=" "), "'identity' is empty"),
        (row(view=True), "'view' must be a whole number"),
        (row(draw=-1), "'draw' must be a whole number"),
        (row(view=1.0), "'view' must be a whole number"),
        (row(severity="L5"), "unknown severity 'L5'; known: pristine, L0"),
        (row(severity="level -1"), "unknown severity"),
        (row(split="dev"), "unknown split 'dev'"),
        (row(path="/etc/passwd"), "is absolute"),
        (row(path="C:/a.png"), "is absolute"),
        (row(path="../a.png"), "leaves the data folder"),
        (row(path="images/../../a.png"), "leaves the data folder"),
        (row(path="images//a.png"), "not in its plain form"),
        (row(path="./images/a.png"), "not in its plain form"),
        (row(path="images\\a.png"), "backslash"),
        (row(path=""), "'path' is empty"),
        (row(path="\ud800.png"), "cannot be written as UTF-8"),
        (row(path="images/none.png"), "images/none.png is missing"),
        (row(path="images"), "images is missing"),
        (row(sha256="abc"), "64 lower-case hex digits"),
        (row(sha256="0" * 64), "is not the file that its 'sha256' pins"),
        (row(materials="wood"), "'materials' must be a list"),
        (row(materials=[{"part": "body"}]), "a material must be"),
        (row(functions=["x", 3]), "'functions' must be a list of names"),
        (row(metrics=[0.5]), "'metrics' must be an object"),
        (row(metrics={"soot_coverage": 1.2}), "must lie in 0-1, is 1.2"),
        (row(metrics={"soot_coverage": "0.2"}), "must be a number"),
        (row(metrics={"soot_coverage": float("nan")}), "must lie in 0-1, is nan"),
    ],
)
def test_each_fault_names_its_line(tmp_path, line, wanted):
    folder_of(tmp_path, row(identity="fine", path="images/b.png"), line)
    faults = manifest.check(tmp_path)
    assert any(f.startswith("manifest.jsonl:2: ") and wanted in f for f in faults), faults


def test_all_faults_come_together(tmp_path):
    folder_of(
        tmp_path,
        row(severity="L9", split="dev", colour="red"),
        "{",
        "",
        row(path="images/b.png", identity="lonely", severity="L1"),
        info={"kind": "things", "name": "a/b", "version": 1, "extra": 0},
    )
    faults = manifest.check(tmp_path)
    lines = [f.split(": ")[0] for f in faults]
    assert lines == ["dataset.json"] * 5 + ["manifest.jsonl:1"] * 3 + ["manifest.jsonl:2"] + [
        "manifest.jsonl:4"
    ]
    assert [str(f) for f in manifest.inspect(tmp_path)][: len(faults)] == faults
    with pytest.raises(FaultsError) as caught:
        manifest.read(tmp_path)
    assert set(caught.value.faults) == set(faults)


def test_rows_against_one_another(tmp_path):
    folder_of(
        tmp_path,
        row(),
        row(),  # the same path again
        row(path="images/b.png", severity="L2", split="test"),
        row(path="images/c.png", identity="late", severity="L1"),
        row(path="images/d.png", identity="late", view=1),
        row(path="images/e.png", identity="late"),
    )
    faults = [f for f in manifest.check(tmp_path) if "missing" not in f]
    assert sorted(faults) == [
        "manifest.jsonl:2: identity 'mug_0' has its pristine row of view 0 on line 1 already",
        "manifest.jsonl:2: path 'images/a.png' is line 1's too",
        "manifest.jsonl:3: identity 'mug_0' is in split 'test' here and in 'train' on line 1",
    ]
    folder_of(tmp_path, row(view=1), row(path="images/b.png", severity="L2"))
    assert manifest.check(tmp_path) == [
        "manifest.jsonl:1: identity 'mug_0' has no pristine row of view 0"
    ]


def test_crops_need_no_pristine_row(tmp_path):
    folder_of(tmp_path, row(severity="L2"), info=dataclasses.asdict(INFO) | {"kind": "crops"})
    assert manifest.check(tmp_path) == []
    folder_of(tmp_path, row(), info=dataclasses.asdict(INFO) | {"kind": "scenes"})
    assert "field 'layout' is missing" in "\n".join(manifest.check(tmp_path))


def test_unreadable_pictures(tmp_path):
    folder_of(tmp_path, row())
    (tmp_path / "images" / "a.png").write_bytes(b"")
    assert manifest.check(tmp_path) == ["manifest.jsonl:1: images/a.png is empty (0 bytes)"]
    assert manifest.check(tmp_path, decode=False) == []


def test_pinned_picture(tmp_path):
    folder_of(tmp_path)
    pin = files.sha256_file(tmp_path / "images" / "a.png")
    folder_of(tmp_path, row(sha256=pin))
    assert manifest.check(tmp_path) == []


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_empty_manifest(tmp_path, text):
    folder_of(tmp_path)
    (tmp_path / "manifest.jsonl").write_text(text)
    assert manifest.check(tmp_path) == ["manifest.jsonl: has no rows"]


def test_not_utf8(tmp_path):
    folder_of(tmp_path, row())
    (tmp_path / "manifest.jsonl").write_bytes(b'{"path": "caf\xe9"}\n')
    assert "manifest.jsonl:1: is not UTF-8" in manifest.check(tmp_path)[0]


@pytest.mark.parametrize("text", ["{", "[]", '"x"'])
def test_damaged_dataset_json(tmp_path, text):
    folder_of(tmp_path, row(), info=text)
    assert manifest.check(tmp_path)[0].startswith("dataset.json:")


def test_folders_that_are_none(tmp_path):
    assert "no such folder" in manifest.check(tmp_path / "none")[0]
    assert "is not a data folder" in manifest.check(tmp_path)[0]
    (tmp_path / "x").mkdir()
    Image.new("RGB", (2, 2)).save(tmp_path / "x" / "1.png")
    with pytest.raises(UserError, match="1 pictures but no manifest.jsonl"):
        manifest.read(tmp_path)
    folder_of(tmp_path, row())
    (tmp_path / "dataset.json").unlink()
    assert manifest.check(tmp_path)[0].startswith("dataset.json: not found")


def test_names_are_kept_byte_for_byte(tmp_path):
    composed, decomposed = (unicodedata.normalize(form, "é.png") for form in ("NFC", "NFD"))
    names = [composed, decomposed, "with space.png", " lead.png", "#%20.png"]
    (tmp_path / "images").mkdir()
    rows = []
    for number, name in enumerate(names):
        Image.new("RGB", (2, 2), (number, 0, 0)).save(tmp_path / "images" / name)
        rows.append(Example(f"images/{name}", f"id{number}", "mug", "", "pristine", "train"))
    manifest.write(tmp_path, INFO, rows)
    assert manifest.check(tmp_path) == []
    assert [e.path for e in manifest.read(tmp_path).examples] == [f"images/{n}" for n in names]


def test_write_refuses_what_read_would(tmp_path):
    with pytest.raises(FaultsError, match="leaves the data folder"):
        manifest.write(tmp_path, INFO, [Example("../a", "i", "mug", "", "pristine", "train")])
    with pytest.raises(FaultsError, match="no pristine row"):
        manifest.write(tmp_path, INFO, [Example("a", "i", "mug", "", "L0", "train")])
    with pytest.raises(FaultsError, match="has no rows"):
        manifest.write(tmp_path, INFO, [])
    with pytest.raises(FaultsError, match="unknown kind"):
        manifest.write(tmp_path, dataclasses.replace(INFO, kind="x"), [])
    assert list(tmp_path.iterdir()) == []


def test_command_line(tmp_path):
    folder_of(tmp_path, row(split="dev"))
    command = [sys.executable, str(BIN / "data"), "check"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stdout.splitlines()[1] == (
        "unknown-split: manifest.jsonl:1: unknown split 'dev'; known: train, val, test"
    )
    assert subprocess.run(command, capture_output=True).returncode == 2


def test_labels_against_the_taxonomy(tmp_path):
    known = taxonomy.load()
    label = {"object_type": known.object_types[0]}
    good = row(
        **label,
        materials=[{"part": "body", "material": known.materials[0]}],
        functions=[known.functions[0]],
    )
    bad = row(
        path="images/b.png",
        identity="other",
        object_type="spaceship",
        materials=[{"part": "hull", "material": "unobtainium"}],
        functions=["flying"],
    )
    folder_of(tmp_path, good, bad, info=dataclasses.asdict(INFO) | {"taxonomy": known.name})
    assert manifest.check(tmp_path) == [
        f"manifest.jsonl:2: {what} is not in taxonomy {known.name!r}"
        for what in ("object type 'spaceship'", "material 'unobtainium'", "function 'flying'")
    ]
    folder_of(tmp_path, good, bad, info=dataclasses.asdict(INFO) | {"taxonomy": "my own 3"})
    assert manifest.check(tmp_path) == []
