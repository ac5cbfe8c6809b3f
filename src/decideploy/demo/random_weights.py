"""Random tensors that are bit-identical on every machine.

Only the raw output of PCG64 and exact integer and IEEE arithmetic are used: a normal sampler may call the
platform's ``log`` and ``exp``, and numpy does not promise its stream between releases.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
from numpy.typing import NDArray

_PIECES = 4
# The sum of four independent uniform 16-bit integers: mean and standard deviation.
_MEAN = _PIECES * 65_535 / 2
_STD = math.sqrt(_PIECES * (65_536**2 - 1) / 12)


def bell(seed: int, name: str, shape: tuple[int, ...], std: float) -> NDArray[np.float32]:
    """Bell-shaped values of mean 0 and the given standard deviation, bounded by 3.5 of it.

    ``name`` keys the stream: adding a tensor to the model leaves all others as they are.
    """
    pieces = _words(seed, name, math.prod(shape)).view(np.uint16).reshape(-1, _PIECES)
    total = pieces.sum(axis=1, dtype=np.int64)
    values: NDArray[np.float32] = ((total - _MEAN) * (std / _STD)).astype(np.float32)
    return values.reshape(shape)


def flat(seed: int, name: str, shape: tuple[int, ...], std: float) -> NDArray[np.float32]:
    """Uniform values of mean 0 and the given standard deviation: four values for the price of one."""
    size = math.prod(shape)
    values = _words(seed, name, -(-size // 4)).view(np.uint16)[:size]
    centred = values.astype(np.int32) - 32_768
    return (centred * (std * math.sqrt(12) / 65_536)).astype(np.float32).reshape(shape)


def _words(seed: int, name: str, size: int) -> NDArray[np.uint64]:
    stream = np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))
    return np.asarray(stream.random_raw(size), dtype="<u8")
