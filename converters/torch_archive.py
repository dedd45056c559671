"""Files of torch.save, read without torch and without running anything they say.

Such a file is a zip archive: `data.pkl` describes the objects, one entry a storage holds the
numbers, uncompressed. A pickle is a program. This one is read by a reader that knows a handful of
names - what torch writes for tensors, OrderedDict, argparse.Namespace - and stands for each by a
plain container of its own; any other name ends the reading. Numbers are not touched here: a tensor
becomes the place in the file where they lie, and `Checkpoint` reads them from there.
"""

from __future__ import annotations

import dataclasses
import io
import math
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converters.tensors import DTYPES, Checkpoint, TensorInfo
from trace_jax.errors import UserError

# torch's names of storages and the dtypes of the safetensors format.
_STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
# Descriptions of published checkpoints have about 100 kB.
_MAX_PICKLE = 64 * 2**20
# Reach the pickle module's registries or nested streams; torch writes none of them.
_FORBIDDEN = ("EXT1", "EXT2", "EXT4", "PERSID", "INST", "OBJ", "NEXT_BUFFER", "READONLY_BUFFER")
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_LOCAL_HEADER = struct.Struct("<4s22xHH")


class Record:
    """What stands for an argparse.Namespace: its attributes, and nothing else of it."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise UserError("a namespace without attributes")
        self.values = state


@dataclasses.dataclass(frozen=True)
class _Storage:
    """One entry of numbers: the entry's name and the dtype's."""

    key: str
    dtype: str


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """A view into a storage, in elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Archive:
    """An opened file.

    Attributes:
      path: the file.
      tree: the object that was saved; tensors are views that `checkpoint` resolves.
      entries: storage key to (offset of its first byte from the file's start, bytes).
    """

    path: Path
    tree: Mapping[Any, Any]
    entries: Mapping[str, tuple[int, int]]

    def checkpoint(self, key: str) -> Checkpoint:
        """The tensors of one state dict.

        Args:
          key: its name in the saved object, e.g. "model".

        Raises:
          UserError: there is no such state dict. What is wrong with single tensors is collected in
            the checkpoint's `faults`.
        """
        state = self.tree.get(key)
        if not isinstance(state, Mapping):
            found = ", ".join(sorted(str(name) for name in self.tree))
            raise UserError(f"{self.path}: holds no state dict {key!r}, but {found or 'nothing'}")
        tensors: dict[str, TensorInfo] = {}
        faults: list[str] = []
        for name, value in state.items():
            if not isinstance(value, _Tensor) or not isinstance(name, str):
                faults.append(f"{name}: is no tensor but {type(value).__name__}")
                continue
            fault = self._fault(value)
            if fault:
                faults.append(f"{self.path.name}: {name}: {fault}")
                continue
            dtype = value.storage.dtype
            start = self.entries[value.storage.key][0]
            start += value.offset * DTYPES[dtype].itemsize
            tensors[name] = TensorInfo(self.path, dtype, value.shape, start)
        return Checkpoint(tensors, (self.path,), tuple(faults))

    def settings(self, key: str) -> dict[str, Any]:
        """Attributes of a saved namespace, or items of a saved dict; empty where there is none."""
        value = self.tree.get(key)
        if isinstance(value, Record):
            return dict(value.values)
        return dict(value) if isinstance(value, Mapping) else {}

    def _fault(self, tensor: _Tensor) -> str:
        if tensor.storage.key not in self.entries:
            return f"its storage {tensor.storage.key!r} is missing"
        numbers = (*tensor.shape, *tensor.strides, tensor.offset)
        if any(type(n) is not int or n < 0 for n in numbers):
            return "its shape is damaged"
        step = 1
        for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
            if size > 1 and stride != step:
                return "its numbers do not lie in order (save a contiguous copy)"
            step *= size
        have = self.entries[tensor.storage.key][1]
        need = (tensor.offset + math.prod(tensor.shape)) * DTYPES[tensor.storage.dtype].itemsize
        return f"needs {need} bytes of a storage of {have}" if need > have else ""


def read(path: Path) -> Archive:
    """Opens a file of torch.save.

    Raises:
      UserError: the file is no such archive, is truncated or damaged, was written by a torch
        before 1.6, or names a global other than those known here.
    """
    try:
        with open(path, "rb") as stream:
            if stream.read(len(_LEGACY)) == _LEGACY:
                raise UserError(
                    f"{path}: was written by a torch before 1.6, or by its legacy option. "
                    "Load it there and save it again."
                )
            with zipfile.ZipFile(stream) as archive:
                return _read(path, archive, stream)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError, struct.error) as error:
        raise UserError(
            f"{path}: is no file of torch.save, or is truncated ({error}). Copy it again."
        ) from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error


def _read(path: Path, archive: zipfile.ZipFile, stream: io.BufferedReader) -> Archive:
    infos = {info.filename: info for info in archive.infolist()}
    roots = [n.removesuffix("data.pkl") for n in infos if n.count("/") == 1 and "/data.pkl" in n]
    if len(roots) != 1 or f"{roots[0]}data.pkl" not in infos:
        raise UserError(f"{path}: is a zip archive, but none of torch.save (no data.pkl)")
    root = roots[0]
    size = path.stat().st_size
    places = {
        name: _place(path, info, stream, size)
        for name, info in infos.items()
        if name.startswith(root)
    }
    order = f"{root}byteorder"
    if order in places and _bytes(stream, places[order]).strip() != b"little":
        raise UserError(f"{path}: its numbers are not little-endian")
    where = places[f"{root}data.pkl"]
    if where[1] > _MAX_PICKLE:
        raise UserError(f"{path}: its description has {where[1]} bytes, which no checkpoint needs")
    tree = _objects(path, _bytes(stream, where))
    data = f"{root}data/"
    entries = {n.removeprefix(data): place for n, place in places.items() if n.startswith(data)}
    return Archive(path, tree, entries)


def _place(
    path: Path, info: zipfile.ZipInfo, stream: io.BufferedReader, size: int
) -> tuple[int, int]:
    """Where an entry's bytes lie. The local header says how long it is itself."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise UserError(f"{path}: {info.filename} is compressed or encrypted; torch does neither")
    stream.seek(info.header_offset)
    signature, name, extra = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
    start = info.header_offset + _LOCAL_HEADER.size + name + extra
    if signature != b"PK\x03\x04" or start + info.file_size > size:
        raise UserError(f"{path}: {info.filename} is damaged or cut off. Copy it again.")
    return start, info.file_size


def _bytes(stream: io.BufferedReader, place: tuple[int, int]) -> bytes:
    stream.seek(place[0])
    return stream.read(place[1])


def _objects(path: Path, data: bytes) -> Mapping[Any, Any]:
    try:
        _check_opcodes(data)
        tree = _Reader(io.BytesIO(data)).load()
    except UserError as error:
        raise UserError(f"{path}: is refused: {error}") from error
    except Exception as error:
        # A damaged pickle can fail in any way; nothing of ours runs in there but containers.
        raise UserError(f"{path}: its description is damaged ({error!r})") from error
    if not isinstance(tree, Mapping):
        raise UserError(f"{path}: holds no dict but {type(tree).__name__}")
    return tree


def _check_opcodes(data: bytes) -> None:
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in _FORBIDDEN:
            raise UserError(f"its description uses the pickle instruction {opcode.name}")
        # The memo is a list as long as the largest place asked for.
        places = argument if opcode.name.endswith("PUT") and isinstance(argument, int) else 0
        if places > len(data):
            raise UserError(f"its description asks for {places} places of memory")


class _Reader(pickle.Unpickler):
    """An unpickler that knows these names and no others."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        known = _KNOWN.get((module, name))
        if known is None:
            raise UserError(
                f"it names {module}.{name}. A file of weights needs tensors, dicts and a namespace "
                "of settings; loading anything else could run code. Convert it where it was "
                "written, keeping its state dict alone."
            )
        return known

    def persistent_load(self, pid: Any) -> _Storage:
        if not (isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage"):
            raise UserError(f"its description points to {pid!r}, which is no storage")
        _, dtype, key, _, _ = pid
        if dtype not in DTYPES or not isinstance(key, str):
            raise UserError(f"its description points to a storage of {dtype!r}")
        return _Storage(key, dtype)


class _Items(dict[Any, Any]):
    """Stands for collections.OrderedDict. Attributes that a pickle sets on it are dropped."""

    def __setstate__(self, state: Any) -> None:
        pass


class _RebuildTensor:
    """Stands for torch._utils._rebuild_tensor_v2. An object without attributes, not a function:
    pickles can set attributes of whatever they can name.
    """

    __slots__ = ()

    def __call__(self, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
        """What follows the strides is about gradients."""
        if not isinstance(storage, _Storage) or len(shape) != len(strides):
            raise UserError("its description makes a tensor of no storage")
        return _Tensor(storage, offset, tuple(shape), tuple(strides))


class _RebuildParameter:
    """Stands for torch._utils._rebuild_parameter."""

    __slots__ = ()

    def __call__(self, tensor: Any, *_: Any) -> _Tensor:
        if not isinstance(tensor, _Tensor):
            raise UserError("its description makes a parameter of no tensor")
        return tensor


_KNOWN: dict[tuple[str, str], Any] = {
    ("argparse", "Namespace"): Record,
    ("collections", "OrderedDict"): _Items,
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_parameter"): _RebuildParameter(),
    ("torch._utils", "_rebuild_tensor"): _RebuildTensor(),
    ("torch._utils", "_rebuild_tensor_v2"): _RebuildTensor(),
    ("types", "SimpleNamespace"): Record,
}
