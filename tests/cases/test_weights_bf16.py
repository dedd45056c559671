"""Reported: "data type 'bfloat16' not understood" (safetensors #598). Ours: BF16 by hand."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from support import encoders

import converters
from converters import tensors

# 1.0, -2.5 and 3.14 rounded to bfloat16, little endian.
WORDS = (0x3F80, 0xC020, 0x4049)


def _write(folder: Path) -> None:
    header = {"x": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}
    head = json.dumps(header).encode()
    data = struct.pack("<Q", len(head)) + head + struct.pack("<3H", *WORDS)
    (folder / tensors.SINGLE).write_bytes(data)


def test_a_bf16_file_written_by_hand_loads_bit_equal(tmp_path):
    _write(tmp_path)
    checkpoint = tensors.Checkpoint.open(tmp_path)
    assert not checkpoint.faults
    values = checkpoint.read("x")
    assert values.dtype == ml_dtypes.bfloat16
    assert tuple(values.view(np.uint16)) == WORDS
    assert values.astype(np.float32).tolist() == [1.0, -2.5, 3.140625]
    assert jnp.asarray(values).dtype == jnp.bfloat16


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_bf16_host_keeps_or_casts_its_dtype_as_asked(dtype, tmp_path):
    source = encoders.folder("siglip2", tmp_path, dtype="bfloat16")
    host, report = converters.load_host_with_report("siglip2", tmp_path, dtype=dtype)
    assert set(report.source_dtypes) == {"BF16"}
    loaded = host.params["vision"]["blocks"]["mlp"]["fc1"]["kernel"]
    original = source.params["vision"]["blocks"]["mlp"]["fc1"]["kernel"]
    assert loaded.dtype == dtype
    assert (np.asarray(loaded, np.float32) == np.asarray(original, np.float32)).all()
