"""Read and write safetensors files with bounded memory and without torch.

A file is an 8-byte little-endian header length, a JSON header, then the tensors' bytes. The header is
read by this module, not by the safetensors library, because a verifier must say which byte is wrong
where the library only refuses.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The format's own limit; a larger length is garbage read as a number, and must not be allocated.
MAX_HEADER_BYTES = 100_000_000

DTYPE_BYTES: Mapping[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}

_NUMPY_DTYPE: Mapping[str, str] = {
    "U8": "u1",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "BF16": "<u2",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "I32": "<i4",
    "I64": "<i8",
}


class MalformedFileError(Exception):
    """The bytes are not a safetensors file; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorInfo:
    """One tensor as its file's header tells it; ``begin`` and ``end`` are absolute file offsets."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return self.end - self.begin


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Tensors of one file by name, from its header alone.

    Raises MalformedFileError when the header or the file's length contradicts the format.
    """
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise MalformedFileError(f"{size_bytes} bytes are too few for a safetensors header")
        (length,) = struct.unpack("<Q", prefix)
        if length > min(MAX_HEADER_BYTES, size_bytes - 8):
            raise MalformedFileError(f"header length {length} does not fit in a file of {size_bytes} bytes")
        raw = file.read(length)
    entries = _parse_entries(raw)
    tensors = {name: _tensor(path, name, entry, 8 + length) for name, entry in entries.items()}
    _check_layout(tensors, begin=8 + length, end=size_bytes)
    return tensors


def _parse_entries(raw: bytes) -> dict[str, Any]:
    try:
        header = json.loads(raw, object_pairs_hook=_unique_keys)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise MalformedFileError(f"header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise MalformedFileError("header is not a JSON object")
    header.pop("__metadata__", None)
    return header


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise MalformedFileError("header names a tensor twice")
    return entries


def _tensor(path: Path, name: str, entry: Any, data_begin: int) -> TensorInfo:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        sizes = (begin, end, *shape)
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedFileError(f"entry of {name!r} lacks dtype, shape or data_offsets") from error
    if dtype not in DTYPE_BYTES:
        raise MalformedFileError(f"{name!r} has unknown dtype {dtype!r}")
    if not all(type(number) is int and number >= 0 for number in sizes):
        raise MalformedFileError(f"{name!r} has a shape or offset that is not a natural number")
    if end - begin != math.prod(shape) * DTYPE_BYTES[dtype]:
        raise MalformedFileError(
            f"{name!r} spans {end - begin} bytes, but {dtype} {list(shape)} takes "
            f"{math.prod(shape) * DTYPE_BYTES[dtype]}"
        )
    return TensorInfo(
        name=name, path=path, dtype=dtype, shape=shape, begin=data_begin + begin, end=data_begin + end
    )


def _check_layout(tensors: Mapping[str, TensorInfo], *, begin: int, end: int) -> None:
    spans = sorted((tensor.begin, tensor.end, tensor.name) for tensor in tensors.values())
    edges = [(begin, begin, "the header"), *spans, (end, end, "the end of the file")]
    for (_, previous_end, before), (next_begin, _, after) in pairwise(edges):
        if previous_end < next_begin:
            raise MalformedFileError(f"{next_begin - previous_end} unnamed bytes lie before {after}")
        if previous_end > next_begin:
            raise MalformedFileError(f"{before} overlaps {after} by {previous_end - next_begin} bytes")


def read_raw(tensor: TensorInfo) -> NDArray[Any]:
    """The tensor as stored: BF16 comes as its uint16 bits, FP8 as its bytes."""
    return read_raw_rows(tensor, 0, tensor.shape[0]) if tensor.shape else _read(tensor, 0, 1).reshape(())


def read_raw_rows(tensor: TensorInfo, start: int, stop: int) -> NDArray[Any]:
    """Rows ``[start, stop)`` of the first dimension, as stored; the other rows are not read."""
    width = math.prod(tensor.shape[1:])
    values = _read(tensor, start * width, (stop - start) * width)
    return values.reshape(stop - start, *tensor.shape[1:])


def _read(tensor: TensorInfo, first: int, count: int) -> NDArray[Any]:
    dtype = np.dtype(_NUMPY_DTYPE[tensor.dtype])
    return np.fromfile(tensor.path, dtype=dtype, count=count, offset=tensor.begin + first * dtype.itemsize)


def read_float32(tensor: TensorInfo) -> NDArray[np.float32]:
    """The tensor's values in float32; exact for BF16, F16 and F32."""
    return to_float32(read_raw(tensor), tensor.dtype)


def read_float32_row(tensor: TensorInfo, row: int) -> NDArray[np.float32]:
    """One row of a matrix in float32, reading only that row."""
    values: NDArray[np.float32] = to_float32(read_raw_rows(tensor, row, row + 1), tensor.dtype)[0]
    return values


def to_float32(raw: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Stored values as float32."""
    if dtype == "BF16":
        raw = (raw.astype(np.uint32) << 16).view(np.float32)
    values: NDArray[np.float32] = raw.astype(np.float32, copy=False)
    return values


def bf16_bits(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Round finite values to bfloat16, ties to even, by integers: the same bits on every machine."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTensor:
    """A tensor ready to be written: ``values`` hold the stored bits (see ``read_raw``)."""

    dtype: str
    values: NDArray[Any]


def bf16(values: NDArray[Any]) -> StoredTensor:
    """Values rounded to bfloat16."""
    return StoredTensor(dtype="BF16", values=bf16_bits(values))


def float32(values: NDArray[Any]) -> StoredTensor:
    """Values stored as float32."""
    return StoredTensor(dtype="F32", values=np.asarray(values, dtype=np.float32))


def write_tensors(path: Path, tensors: Mapping[str, StoredTensor]) -> int:
    """Write one file, tensors in name order; returns its size in bytes.

    The order and the padding are fixed here, so equal tensors give equal files whatever library is installed.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in sorted(tensors):
        stored = tensors[name]
        end = offset + stored.values.nbytes
        shape = list(stored.values.shape)
        header[name] = {"dtype": stored.dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            values = tensors[name].values
            file.write(np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).data)
    return 8 + len(text) + offset
