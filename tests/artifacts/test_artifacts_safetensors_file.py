from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decideploy.artifacts.safetensors_file import (
    MalformedFileError,
    StoredTensor,
    bf16_bits,
    read_float32,
    read_float32_row,
    read_header,
    to_float32,
    write_tensors,
)


def raw_file(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"{", b"", "not JSON"),
        ([], b"", "not a JSON object"),
        (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":1}', b"", "twice"),
        ({"a": {"dtype": "F32"}}, b"", "lacks"),
        ({"a": entry(0, 4, [1], "F31")}, bytes(4), "unknown dtype"),
        ({"a": entry(0, 4, [-1])}, bytes(4), "natural number"),
        ({"a": entry(0, 4, [True])}, bytes(4), "natural number"),  # type: ignore[list-item]
        ({"a": entry(0, 4, [2])}, bytes(4), "takes 8"),
        ({"a": entry(0, 4, [1])}, bytes(8), "unnamed bytes"),
        ({"a": entry(0, 4, [1]), "b": entry(2, 6, [1])}, bytes(6), "overlaps"),
        ({"a": entry(0, 8, [2])}, bytes(4), "overlaps the end"),
    ],
)
def test_malformed_files_are_told_apart(tmp_path: Path, header: Any, data: bytes, message: str) -> None:
    with pytest.raises(MalformedFileError, match=message):
        read_header(raw_file(tmp_path / "x.safetensors", header, data))


@pytest.mark.parametrize("content", [b"", b"1234567", struct.pack("<Q", 1 << 60), struct.pack("<Q", 9)])
def test_impossible_header_length_is_not_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(MalformedFileError):
        read_header(tmp_path / "x")


def test_the_official_library_reads_what_is_written(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    scalar = np.array(2.5, np.float32)
    tensors = {"b": values, "a": scalar}
    size = write_tensors(tmp_path / "x", {n: StoredTensor(dtype="F32", values=v) for n, v in tensors.items()})
    assert size == (tmp_path / "x").stat().st_size
    loaded = load_file(tmp_path / "x")
    assert np.array_equal(loaded["b"], values)
    assert loaded["a"] == scalar
    header = read_header(tmp_path / "x")
    assert np.array_equal(read_float32_row(header["b"], 1), values[1])
    assert read_float32(header["a"]) == scalar


@given(st.floats(width=32, min_value=2.0**-99, max_value=2.0**99), st.sampled_from([1, -1]))
def test_bf16_rounds_to_the_nearest_ties_to_even(magnitude: float, sign: int) -> None:
    bits = int(bf16_bits(np.array([sign * magnitude]))[0])
    values = to_float32(np.array([bits - 1, bits, bits + 1], np.uint16), "BF16").astype(np.float64)
    below, chosen, above = np.abs(values - sign * magnitude)
    assert chosen <= min(below, above)
    assert chosen < min(below, above) or bits % 2 == 0
