"""Files of torch.save: read in full without torch, and nothing in them is run."""

from __future__ import annotations

import argparse
import collections
import io
import json
import os
import pathlib
import pickle
import random
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from safetensors.torch import load_file
from support import detectors as tiny

import converters
from converters import torch_archive
from trace_jax.errors import FaultsError, UserError

ROOT = Path(__file__).resolve().parent.parent
# Roboflow's files say nothing of the backbone's heads: they are 64 wide.
CONFIG = {
    **tiny.TINY,
    "backbone_config": {**tiny.BACKBONE, "hidden_size": 64, "num_attention_heads": 1},
    "layer_norm_eps": 1e-6,
}
ARGS = {
    "encoder": "dinov2_windowed_small",
    "sa_nheads": 2,
    "ca_nheads": 4,
    "num_windows": 2,
    "out_feature_indexes": [3, 6, 9, 12],
    "resolution": 96,
    "lr": 1e-4,
    "amp": True,
    "output_dir": "out",
    "class_names": None,
}


def _save(to: Path, **things) -> Path:
    torch.save(things, to)
    return to


def _raw(to: Path, data: bytes, compression: int = zipfile.ZIP_STORED, **storages: bytes) -> Path:
    """A file of torch.save around any pickle."""
    with zipfile.ZipFile(to, "w", compression) as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/byteorder", "little")
        for key, values in storages.items():
            archive.writestr(f"archive/data/{key}", values)
    return to


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """One model as a folder in Hugging Face layout and as Roboflow's file."""
    folder = tmp_path_factory.mktemp("rf_detr")
    tiny.save(tiny.build(CONFIG), folder / "hub")
    state = collections.OrderedDict(load_file(folder / "hub" / "model.safetensors"))
    path = _save(folder / "best.pth", model=state, args=argparse.Namespace(**ARGS), epoch=3)
    return folder / "hub", path


# ---- the publisher's file


def test_a_published_file_is_the_same_host_as_the_hubs_folder(published, tmp_path):
    folder, path = published
    from_folder = converters.load_host("rf_detr", folder)
    host, report = converters.load_host_with_report("rf_detr", path)
    assert host.model == from_folder.model
    assert host.spec.weights_hash == from_folder.spec.weights_hash
    for ours, theirs in zip(
        jax.tree.leaves(dict(host.params)), jax.tree.leaves(dict(from_folder.params)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert report.files == ("best.pth",) and report.preprocessor == "best.pth"
    # The size it was trained at, not that of its position grid.
    assert host.image_size == 96 and from_folder.image_size == 64
    written = converters.save_host(host, tmp_path)
    again = converters.load_host("rf_detr", tmp_path)
    assert written == again.spec.weights_hash == host.spec.weights_hash
    assert again.model == host.model and again.image_size == 96


def test_a_file_is_read_without_torch(published):
    code = (
        "import sys, converters\n"
        "host = converters.load_host('rf_detr', sys.argv[1])\n"
        "assert 'torch' not in sys.modules\n"
        "print(host.spec.num_params)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(published[1])],
        env={"JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


def test_what_a_file_lacks_is_told_at_once(published, tmp_path):
    state = dict(torch.load(published[1], weights_only=False)["model"])
    del state["class_embed.bias"]
    state["step"] = 7
    args = argparse.Namespace(**{**ARGS, "ca_nheads": None})
    path = _save(tmp_path / "a.pth", model=state, args=args)
    with pytest.raises(FaultsError) as caught:
        converters.load_host("rf_detr", path)
    message = str(caught.value)
    for part in ("class_embed.bias: missing", "args.ca_nheads is None", "step: is no tensor"):
        assert part in message, message
    with pytest.raises(UserError, match="no state dict 'model', but weights"):
        converters.load_host("rf_detr", _save(tmp_path / "b.pth", weights=state))
    # Another family never takes such files.
    with pytest.raises(UserError, match="is a file"):
        converters.load_host("siglip2", path)


# ---- tensors


def test_tensors_of_every_kind_are_found(tmp_path):
    base = torch.arange(24, dtype=torch.float32)
    state = {
        "whole": base.reshape(2, 3, 4),
        "part": base[8:20].reshape(3, 4),
        "parameter": torch.nn.Parameter(base[:5].clone()),
        "half": base.to(torch.float16),
        "bfloat": base.to(torch.bfloat16)[1:],
        "count": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "flags": torch.tensor([True, False]),
        "column": base.reshape(6, 4)[:, :1].clone(),
    }
    found = torch_archive.read(_save(tmp_path / "a.pth", model=state)).checkpoint("model")
    assert not found.faults and found.tensors.keys() == state.keys()
    for name, tensor in state.items():
        got = found.read(name)
        assert got.shape == tuple(tensor.shape), name
        want = tensor.detach().float().numpy()
        np.testing.assert_array_equal(got.astype(np.float32), want, err_msg=name)
    assert found.tensors["bfloat"].dtype == "BF16"


def test_views_that_skip_numbers_are_named(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    state = {"turned": base.T, "spread": base[:, ::2], "repeated": base[:1].expand(3, 4)}
    found = torch_archive.read(_save(tmp_path / "a.pth", model=state)).checkpoint("model")
    assert not found.tensors and len(found.faults) == 3
    assert all("do not lie in order" in fault for fault in found.faults)


# ---- what a file must not do


class _Call:
    """Pickles to a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


# Protocol 2 writes the names of Python 2.
ATTACKS = {
    "system": (lambda mark: _Call(os.system, f"touch {mark}"), "posix.system"),
    "popen": (
        lambda mark: _Call(subprocess.Popen, ["touch", mark]),
        r"(subprocess|commands)\.Popen",
    ),
    "eval": (lambda mark: _Call(eval, f"open({mark!r}, 'w')"), r"(builtins|__builtin__)\.eval"),
    "open": (lambda mark: _Call(open, mark, "w"), r"(io|__builtin__)\.open"),
    "path": (lambda mark: pathlib.PurePosixPath(mark), "pathlib"),
    "torch": (lambda mark: _Call(torch.load, mark), "torch.serialization.load"),
    "getattr": (lambda mark: _Call(getattr, "a", "format"), r"(builtins|__builtin__)\.getattr"),
    "device": (lambda mark: torch.device("cpu"), "torch.device"),
}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("name", ATTACKS)
def test_other_names_end_the_reading(name, protocol, tmp_path):
    make, named = ATTACKS[name]
    mark = tmp_path / "mark"
    thing = make(str(mark))
    for number, things in enumerate(
        ({"model": {"a": thing}}, {"model": {}, "args": argparse.Namespace(hidden=[thing])})
    ):
        path = tmp_path / f"{number}.pth"
        torch.save(things, path, pickle_protocol=protocol)
        with pytest.raises(UserError, match=f"is refused: it names {named}"):
            torch_archive.read(path)
    assert not mark.exists()


def _storage(key: bytes = b"0") -> bytes:
    """The pickle of a pointer to a storage of float32."""
    return (
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x00"
        + key
        + (b"X\x03\x00\x00\x00cpuK\x04tQ")
    )


_REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
_MODEL = b"\x80\x02}X\x05\x00\x00\x00model}X\x01\x00\x00\x00a"


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"\x80\x02}r\xff\xff\xff\x7f.", "places of memory"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"(iposix\nsystem\n.", "INST"),
        (b"\x80\x02Pname\n.", "PERSID"),
        (b"\x80\x02K\x01Q.", "which is no storage"),
        (b"\x80\x02ccollections\nOrderedDict.sneaky\n)R.", "OrderedDict.sneaky"),
        (b"\x80\x02].", "holds no dict but list"),
        (b"\x80\x02}", "damaged"),
        (b"", "damaged"),
        # A tensor made of no storage, and attributes set on what stands for torch's function.
        (_MODEL + _REBUILD + b"(K\x01K\x00))tRsu.", "damaged|no storage"),
        (b"\x80\x02" + _REBUILD + b"}X\x08\x00\x00\x00__call__K\x01sb.", "damaged"),
        (b"\x80\x02cargparse\nNamespace\n)\x81K\x01b.", "namespace without attributes"),
    ],
)
def test_crafted_descriptions_are_refused(data, match, tmp_path):
    with pytest.raises(UserError, match=match):
        torch_archive.read(_raw(tmp_path / "a.pth", data))


@pytest.mark.parametrize(
    ("offset", "shape", "stride", "match"),
    [
        (b"K\x00", b"K\x05\x85", b"K\x01\x85", "needs 20 bytes of a storage of 16"),
        (b"J\xff\xff\xff\xff", b"K\x01\x85", b"K\x01\x85", "shape is damaged"),
        (b"K\x00", b"J\xff\xff\xff\xff\x85", b"K\x01\x85", "shape is damaged"),
        (b"K\x02", b"K\x03\x85", b"K\x01\x85", "needs 20 bytes of a storage of 16"),
        (b"K\x00", b"\x88\x85", b"K\x01\x85", "shape is damaged"),
        (b"K\x00", b"K\x04\x85", b"K\x01\x85", ""),
    ],
)
def test_tensors_stay_inside_their_storage(offset, shape, stride, match, tmp_path):
    tensor = _REBUILD + b"(" + _storage() + offset + shape + stride + b"\x89}tR"
    path = _raw(tmp_path / "a.pth", _MODEL + tensor + b"ss.", **{"0": bytes(16)})
    found = torch_archive.read(path).checkpoint("model")
    if match:
        assert not found.tensors
        assert match in found.faults[0]
    else:
        assert not found.faults
        np.testing.assert_array_equal(found.read("a"), np.zeros(4, np.float32))


def test_a_missing_storage_is_named(tmp_path):
    tensor = _REBUILD + b"(" + _storage(b"9") + b"K\x00K\x04\x85K\x01\x85\x89}tR"
    path = _raw(tmp_path / "a.pth", _MODEL + tensor + b"ss.", **{"0": bytes(16)})
    assert "storage '9' is missing" in torch_archive.read(path).checkpoint("model").faults[0]


# ---- damage


def test_files_of_another_kind_are_refused(tmp_path):
    path = tmp_path / "a.pth"
    torch.save({"model": {}}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(UserError, match="before 1.6"):
        torch_archive.read(path)
    path.write_bytes(pickle.dumps({"model": {}}))
    with pytest.raises(UserError, match="no file of torch.save"):
        torch_archive.read(path)
    path.write_bytes(b"")
    with pytest.raises(UserError, match="no file of torch.save"):
        torch_archive.read(path)
    with pytest.raises(UserError, match="compressed"):
        torch_archive.read(_raw(path, pickle.dumps({"model": {}}, 2), zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("letters/a.txt", "a")
    with pytest.raises(UserError, match="no data.pkl"):
        torch_archive.read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps({}, 2))
        archive.writestr("a/byteorder", "big")
    with pytest.raises(UserError, match="little-endian"):
        torch_archive.read(path)
    with pytest.raises(UserError, match="cannot be read"):
        torch_archive.read(tmp_path / "none.pth")


def test_truncated_files_are_refused_wherever_they_end(published, tmp_path):
    data = published[1].read_bytes()
    path = tmp_path / "a.pth"
    for share in np.linspace(0.0, 1.0, 23)[:-1]:
        path.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(UserError, match=r"a\.pth"):
            torch_archive.read(path)
    path.write_bytes(data[:-1])
    with pytest.raises(UserError):
        converters.load_host("rf_detr", path)


def test_damaged_descriptions_never_raise_anything_else(tmp_path):
    buffer = io.BytesIO()
    state = {f"layer.{n}.weight": torch.zeros(2, 3) for n in range(4)}
    torch.save({"model": state, "args": argparse.Namespace(**ARGS)}, buffer)
    with zipfile.ZipFile(buffer) as archive:
        name = next(n for n in archive.namelist() if n.endswith("data.pkl"))
        data = archive.read(name)
    rng = random.Random(0)
    read = 0
    for _ in range(400):
        broken = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        path = _raw(tmp_path / "a.pth", bytes(broken), **{str(n): bytes(24) for n in range(4)})
        try:
            archive = torch_archive.read(path)
            archive.checkpoint("model")
            archive.settings("args")
            read += 1
        except UserError as error:
            assert str(path) in str(error)
    assert 0 < read < 400


def test_a_damaged_directory_never_raises_anything_else(tmp_path):
    buffer = io.BytesIO()
    torch.save({"model": {"a": torch.zeros(8)}}, buffer)
    data = buffer.getvalue()
    start = data.index(b"PK\x01\x02")
    rng = random.Random(1)
    path = tmp_path / "a.pth"
    for _ in range(400):
        broken = bytearray(data)
        where = rng.randrange(start, len(broken) - 4)
        struct.pack_into("<B", broken, where, rng.randrange(256))
        path.write_bytes(bytes(broken))
        try:
            torch_archive.read(path).checkpoint("model")
        except UserError as error:
            assert str(path) in str(error)


def test_convert_takes_a_published_file(published, tmp_path):
    out, report = tmp_path / "out", tmp_path / "report.json"
    flags = ["--host=rf_detr", f"--weights={published[1]}", f"--to={out}", f"--report={report}"]
    done = subprocess.run([str(ROOT / "bin" / "convert"), *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "bit-equal to the source" in done.stdout
    found = json.loads(report.read_text())
    assert found["weights_hash"] == found["written_hash"]
