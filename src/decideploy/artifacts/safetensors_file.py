"""Read and write safetensors files with bounded memory and without torch.

A file is an 8-byte little-endian header length, a JSON header, then the tensors' bytes. The header is
read by this module, not by the safetensors library, because a verifier must say which byte is wrong
where the library only refuses.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decideploy.texts import distinct_keys

# The 47,000 tensors of the published model take 6.5 MB in one file; the format allows 100 MB, which a hostile
# file could use to cost seconds and hundreds of megabytes.
MAX_HEADER_BYTES = 10_000_000
MAX_TENSORS = 60_000
# One entry is read at a time from a slice of this many characters: what does not end within it is no entry.
_MAX_ENTRY_CHARS = 4096
_MAX_METADATA_CHARS = 1_000_000
_MAX_OFFSET = 1 << 62
_MAX_DIMENSIONS = 8

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
    "BOOL": "u1",
    "U8": "u1",
    "I8": "i1",
    "F8_E8M0": "u1",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "BF16": "<u2",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "I16": "<i2",
    "U16": "<u2",
    "I32": "<i4",
    "U32": "<u4",
    "I64": "<i8",
    "U64": "<u8",
}


class MalformedFileError(Exception):
    """The bytes are not a safetensors file; the message says why."""


class UnavailableError(Exception):
    """A rule needs something that is missing or malformed.

    The rule that owns that thing reports it; every other rule simply cannot look.
    """


class NotFetchedError(UnavailableError):
    """A rule needs values of a remote file of which only the header was read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorInfo:
    """One tensor as its file's header tells it; ``begin`` and ``end`` are absolute file offsets.

    ``fetched`` is false where the header is known and the values were left on the hub.
    """

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    fetched: bool = True

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
    tensors = _parse(raw, path, size_bytes)
    _check_layout(tensors, begin=8 + length, end=size_bytes)
    return tensors


def _parse(raw: bytes, path: Path, size_bytes: int) -> dict[str, TensorInfo]:
    """Tensors by name, read one by one: a hostile header ends at its first strange entry."""
    if len(raw) > _MAX_METADATA_CHARS and not raw.isascii():
        raise MalformedFileError("header is not ASCII")
    if raw.count(b'"dtype"') > MAX_TENSORS:
        raise MalformedFileError(f"header has more than {MAX_TENSORS} tensors")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedFileError(f"header is not JSON: {error}") from error
    tensors = {}
    for name, entry in _entries(text):
        tensors[name] = tensor = _tensor(path, name, entry, 8 + len(raw))
        if tensor.end > size_bytes:
            beyond = tensor.end - size_bytes
            raise MalformedFileError(f"{name[:100]} overlaps the end of the file by {beyond} bytes")
    return tensors


def _entries(text: str) -> Iterator[tuple[str, Any]]:
    names: set[str] = set()
    position = _expect(text, 0, "{")
    while not text.startswith("}", position):
        if names:
            position = _expect(text, position, ",")
        name, entry, position = _plain_entry(text, position) or _any_entry(text, position)
        if name in names:
            raise MalformedFileError("header names a tensor twice")
        names.add(name)
        if name != "__metadata__":
            yield name, entry
    if text[position + 1 :].strip(_SPACE):
        raise MalformedFileError("header is not JSON: something follows its end")


_SPACE = " \t\r\n"
_GAP = re.compile(f"[{_SPACE}]*")


_DECODER = json.JSONDecoder(object_pairs_hook=distinct_keys)


_NUMBER = "(?:0|[1-9][0-9]{0,17})"
_PLAIN_ENTRY = re.compile(
    rf'"([\w.]{{1,500}})":\{{"dtype":"(\w{{1,20}})","shape":\[((?:{_NUMBER}(?:,{_NUMBER}){{0,7}})?)\],'
    rf'"data_offsets":\[({_NUMBER}),({_NUMBER})\]\}}',
    re.ASCII,
)


def _plain_entry(text: str, position: int) -> tuple[str, Any, int] | None:
    """An entry as the common writers spell it, None for any other: JSON's own parser takes thrice as long."""
    match = _PLAIN_ENTRY.match(text, position)
    if match is None:
        return None
    name, dtype, shape, begin, end = match.groups()
    sizes = [int(size) for size in shape.split(",")] if shape else []
    entry = {"dtype": dtype, "shape": sizes, "data_offsets": [int(begin), int(end)]}
    return name, entry, _skip(text, match.end())


def _any_entry(text: str, position: int) -> tuple[str, Any, int]:
    name, position = _value(text, position, _MAX_ENTRY_CHARS)
    if not isinstance(name, str):
        raise MalformedFileError(f"header is not JSON: a key is {name!r}"[:200])
    position = _expect(text, position, ":")
    limit = _MAX_METADATA_CHARS if name == "__metadata__" else _MAX_ENTRY_CHARS
    entry, position = _value(text, position, limit)
    return name, entry, position


def _skip(text: str, position: int) -> int:
    # Writers put no space between the parts: look for one before the search for all.
    if text[position : position + 1] not in _SPACE:
        return position
    match = _GAP.match(text, position)
    return match.end() if match else position


def _expect(text: str, position: int, mark: str) -> int:
    position = _skip(text, position)
    if not text.startswith(mark, position):
        if mark == "{":
            raise MalformedFileError("header is not a JSON object")
        raise MalformedFileError(f"header is not JSON: no {mark} at {position}")
    return _skip(text, position + 1)


def _value(text: str, position: int, limit: int) -> tuple[Any, int]:
    part = text[position : position + limit]
    try:
        value, used = _DECODER.raw_decode(part)
    except (ValueError, RecursionError) as error:
        reason = f"no entry ends within {limit} characters" if len(part) == limit else str(error)
        raise MalformedFileError(f"header is not JSON at {position}: {reason}") from error
    return value, _skip(text, position + used)


def _tensor(path: Path, name: str, entry: Any, data_begin: int) -> TensorInfo:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        sizes = (begin, end, *shape)
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedFileError(f"entry of {name!r} lacks dtype, shape or data_offsets") from error
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise MalformedFileError(f"{name!r} has unknown dtype {dtype!r}"[:200])
    if any(type(number) is not int or not 0 <= number < _MAX_OFFSET for number in sizes):
        raise MalformedFileError(f"{name!r} has a shape or offset that is not a natural number")
    if len(shape) > _MAX_DIMENSIONS:
        raise MalformedFileError(f"{name!r} has {len(shape)} dimensions")
    takes = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != takes:
        raise MalformedFileError(
            f"{name!r} spans {end - begin} bytes, but {dtype} {list(shape)} takes {takes}"
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
    if not tensor.fetched:
        raise NotFetchedError(tensor.name)
    dtype = np.dtype(_NUMPY_DTYPE[tensor.dtype])
    return np.fromfile(tensor.path, dtype=dtype, count=count, offset=tensor.begin + first * dtype.itemsize)


def read_scalars(tensors: Iterable[TensorInfo]) -> dict[str, float]:
    """Values of float32 scalars by name, each file opened once; those that were not fetched are left out."""
    by_path: dict[Path, list[TensorInfo]] = {}
    for tensor in tensors:
        if tensor.fetched:
            by_path.setdefault(tensor.path, []).append(tensor)
    values: dict[str, float] = {}
    for path, held in by_path.items():
        with path.open("rb", buffering=0) as file:
            for tensor in held:
                content = os.pread(file.fileno(), 4, tensor.begin)
                values[tensor.name] = struct.unpack("<f", content)[0]
    return values


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
