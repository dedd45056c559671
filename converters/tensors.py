"""Safetensors files, read lazily: one tensor at a time, in pieces, never a whole file.

The header is parsed here, because the safetensors package's numpy front end knows no bfloat16 and
because a damaged folder should be reported in full before the first byte is converted. Bytes come
by plain reads into buffers of our own rather than through a memory map: mapped pages would count
as this process's memory.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from io import RawIOBase
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from trace_jax.errors import UserError
from trace_jax.files import atomic_writer

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

# The format's own limit for headers is 100 MB; a length beyond it means that this is another file.
_MAX_HEADER = 100_000_000
# Bytes held at a time while a tensor is read.
_PIECE = 32 * 2**20


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies.

    Attributes:
      file: its safetensors file.
      dtype: the format's name, e.g. "BF16".
      shape: sizes.
      start: offset of its first byte from the file's start.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * DTYPES[self.dtype].itemsize


class Checkpoint:
    """The tensors of a folder by name.

    Attributes:
      tensors: name to TensorInfo.
      files: the safetensors files, sorted.
      faults: what is wrong with the files; tensors touched by a fault are left out of `tensors`.
    """

    def __init__(
        self, tensors: Mapping[str, TensorInfo], files: tuple[Path, ...], faults: tuple[str, ...]
    ) -> None:
        self.tensors = dict(tensors)
        self.files = files
        self.faults = faults
        self._hashes: dict[str, str] = {}

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Reads every header of a folder: model.safetensors.index.json and its shards, or
        model.safetensors alone.

        Raises:
          UserError: the folder has neither. Damage inside the files is collected in `faults`.
        """
        faults: list[str] = []
        if (folder / INDEX).is_file():
            listed = _read_index(folder / INDEX)
            names = sorted(set(listed.values()))
        elif (folder / SINGLE).is_file():
            listed, names = None, [SINGLE]
        else:
            others = sorted(p.name for p in folder.glob("*") if p.suffix in (".bin", ".h5", ".pt"))
            found = f" ({', '.join(others)} cannot be used)" if others else ""
            raise UserError(
                f"{folder}: has neither {SINGLE} nor {INDEX}{found}. "
                "Point --weights at a folder with safetensors in Hugging Face layout."
            )
        tensors: dict[str, TensorInfo] = {}
        for name in names:
            for key, info in _read_header(folder / name, faults).items():
                if key in tensors:
                    faults.append(f"{key}: stored twice, in {tensors[key].file.name} and {name}")
                tensors[key] = info
        if listed is not None:
            present = {n for n in names if (folder / n).is_file()}
            for key, name in listed.items():
                if name in present and (key not in tensors or tensors[key].file.name != name):
                    faults.append(f"{key}: the index says {name}, which does not hold it")
            faults += [
                f"{key}: in {info.file.name} but not in the index"
                for key, info in tensors.items()
                if key not in listed
            ]
        return cls(tensors, tuple(folder / n for n in names), tuple(faults))

    def renamed(self, prefixes: Mapping[str, str]) -> Checkpoint:
        """The same tensors under other names.

        Args:
          prefixes: beginning of a name to what stands there instead. Names that begin otherwise
            stay as they are.
        """
        faults = list(self.faults)
        tensors: dict[str, TensorInfo] = {}
        for name, info in self.tensors.items():
            old = next((p for p in prefixes if name.startswith(p)), None)
            new = name if old is None else prefixes[old] + name[len(old) :]
            if new in tensors:
                faults.append(f"{name}: stored twice, the other as {new}")
            tensors[new] = info
        return Checkpoint(tensors, self.files, tuple(faults))

    def pieces(self, name: str) -> Iterator[tuple[int, int, np.ndarray]]:
        """A tensor's rows in pieces of at most 32 MiB (or one row), each in a fresh array.

        Yields:
          first row, row past the last, their values in the file's dtype. A scalar is one row.

        Its SHA-256 is known once the last piece was taken.
        """
        info = self.tensors[name]
        dtype = DTYPES[info.dtype]
        rows = info.shape[0] if info.shape else 1
        row_shape = info.shape[1:]
        row_bytes = math.prod(row_shape) * dtype.itemsize
        step = max(1, _PIECE // max(row_bytes, 1))
        digest = hashlib.sha256()
        with open(info.file, "rb", buffering=0) as stream:
            stream.seek(info.start)
            for first in range(0, rows, step):
                last = min(rows, first + step)
                values = np.empty((last - first, *row_shape), dtype)
                _read_exactly(stream, values, info.file)
                digest.update(_bytes(values))
                yield first, last, values
        self._hashes[name] = digest.hexdigest()

    def read(self, name: str) -> np.ndarray:
        """One whole tensor in the file's dtype."""
        info = self.tensors[name]
        out = np.empty(info.shape, DTYPES[info.dtype])
        rows = out.reshape(info.shape if info.shape else (1,))
        for first, last, values in self.pieces(name):
            rows[first:last] = values
        return out

    def digest(self, name: str) -> str:
        """Hex SHA-256 of a tensor's bytes; reads it unless `pieces` already went through it."""
        if name not in self._hashes:
            for _ in self.pieces(name):
                pass
        return self._hashes[name]

    def weights_hash(self, names: Iterable[str]) -> str:
        """Identity of a set of tensors, whatever files they are spread over.

        Hex SHA-256 over one line a tensor, sorted by name: name, dtype, shape and the SHA-256 of
        its bytes. (Hashing each tensor apart lets them be read in any order.)
        """
        lines = []
        for name in sorted(names):
            info = self.tensors[name]
            lines.append(json.dumps([name, info.dtype, list(info.shape), self.digest(name)]) + "\n")
        return hashlib.sha256("".join(lines).encode("utf-8")).hexdigest()


def write(
    path: Path,
    shapes: Mapping[str, tuple[str, tuple[int, ...]]],
    tensors: Iterable[tuple[str, np.ndarray]],
) -> str:
    """Writes one safetensors file atomically, one tensor in memory at a time.

    Args:
      path: the file.
      shapes: name to (dtype name, shape), in the order in which the tensors lie in the file.
      tensors: the values, in the same order.

    Returns:
      The weights hash (see `Checkpoint.weights_hash`).
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape) in shapes.items():
        end = offset + math.prod(shape) * DTYPES[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(header, separators=(",", ":")).encode("utf-8")
    head += b" " * (-len(head) % 8)  # the format wants the data aligned to 8 bytes
    lines = {}
    with atomic_writer(path) as stream:
        stream.write(struct.pack("<Q", len(head)) + head)
        for (name, values), (expected, (dtype, shape)) in zip(tensors, shapes.items(), strict=True):
            if (name, values.dtype, values.shape) != (expected, DTYPES[dtype], shape):
                raise ValueError(f"{name}: not the tensor announced as {expected} {dtype} {shape}")
            data = _bytes(np.ascontiguousarray(values))
            stream.write(data)
            digest = hashlib.sha256(data).hexdigest()
            lines[name] = json.dumps([name, dtype, list(shape), digest]) + "\n"
    return hashlib.sha256("".join(lines[n] for n in sorted(lines)).encode("utf-8")).hexdigest()


def dtype_name(dtype: Any) -> str:
    """The format's name of a numpy dtype."""
    return _NAMES[np.dtype(dtype)]


def _read_index(path: Path) -> dict[str, str]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        listed = value["weight_map"]
        if not all(isinstance(n, str) and "/" not in n for n in listed.values()):
            raise ValueError("weight_map names no plain file")
        return dict(listed)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: is no index of safetensors ({error}). Copy it again.") from error


def _read_header(path: Path, faults: list[str]) -> dict[str, TensorInfo]:
    """Tensors of one file; what is wrong goes to `faults`."""
    if not path.is_file():
        faults.append(f"{path.name}: this shard is missing")
        return {}
    size = path.stat().st_size
    with open(path, "rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= _MAX_HEADER:
            faults.append(f"{path.name}: is no safetensors file ({size} bytes)")
            return {}
        text = stream.read(length)
    if len(text) < length:
        faults.append(f"{path.name}: is truncated inside its header ({size} bytes)")
        return {}
    try:
        header = json.loads(text)
    except ValueError as error:
        faults.append(f"{path.name}: its header is no JSON ({error})")
        return {}
    found: dict[str, TensorInfo] = {}
    cut, end_of_data = 0, 8 + length
    for key, entry in header.items():
        if key == "__metadata__":
            continue
        try:
            dtype, shape = entry["dtype"], tuple(int(n) for n in entry["shape"])
            start, end = (int(n) for n in entry["data_offsets"])
        except (KeyError, TypeError, ValueError):
            faults.append(f"{path.name}: {key}: its header entry is damaged")
            continue
        end_of_data = max(end_of_data, 8 + length + end)
        if dtype not in DTYPES:
            faults.append(f"{path.name}: {key}: dtype {dtype} is not supported")
            continue
        info = TensorInfo(path, dtype, shape, 8 + length + start)
        if min(shape, default=0) < 0 or start < 0 or end - start != info.nbytes:
            faults.append(f"{path.name}: {key}: {end - start} bytes for {dtype} {list(shape)}")
        elif info.start + info.nbytes > size:
            cut += 1
        else:
            found[key] = info
    if cut:
        faults.append(
            f"{path.name}: is truncated: {size} of {end_of_data} bytes, {cut} tensors are cut off"
        )
    return found


def _bytes(values: np.ndarray) -> memoryview:
    """The memory of a contiguous array; ml_dtypes have no buffer of their own."""
    return memoryview(values.reshape(-1).view(np.uint8).data)


def _read_exactly(stream: RawIOBase, out: np.ndarray, path: Path) -> None:
    view = _bytes(out)
    while len(view):
        count = stream.readinto(view)
        if not count:
            raise UserError(f"{path}: ended early while it was read. Copy it again.")
        view = view[count:]
