"""NVFP4 quantisation in ModelOpt's layout, in numpy.

A value is ``code * group_scale * tensor_scale``: codes are FP4 E2M1, one FP8 E4M3 scale serves 16 values
along the input dimension, one float32 scale the tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

GROUP_SIZE = 16
FP4_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
FP8_MAX = 448.0
FP4_MAX = 6.0


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedWeight:
    """``weight [out, in/2]`` has the even column in the low nibble; ``scale [out, in/16]`` is FP8 bytes."""

    weight: NDArray[np.uint8]
    scale: NDArray[np.uint8]
    scale_2: np.float32


def tensor_scale(*weights: NDArray[np.float32]) -> np.float32:
    """The float32 scale that one or several weights share: their largest magnitude reaches 448 * 6."""
    largest = max(float(np.abs(weight).max()) for weight in weights)
    return np.float32(largest / (FP8_MAX * FP4_MAX))


def quantize(weight: NDArray[np.float32], scale_2: np.float32) -> QuantizedWeight:
    """Quantise ``[out, in]``; ``in`` must be a multiple of 16."""
    outputs, inputs = weight.shape
    groups = weight.reshape(outputs, inputs // GROUP_SIZE, GROUP_SIZE)
    scale = e4m3_bits(np.abs(groups).max(axis=-1) / (FP4_MAX * scale_2))
    step = e4m3_values(scale) * scale_2
    codes = _fp4_codes(groups / step[..., None]).reshape(outputs, inputs)
    packed = (codes[:, 0::2] | (codes[:, 1::2] << np.uint8(4))).astype(np.uint8)
    return QuantizedWeight(weight=packed, scale=scale, scale_2=scale_2)


def dequantize(quantized: QuantizedWeight) -> NDArray[np.float32]:
    """The float32 values ``[out, in]`` that a quantised weight stands for."""
    packed = quantized.weight
    codes = np.stack([packed & 0xF, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
    sign = np.where(codes & 8, np.float32(-1), np.float32(1))
    step = np.repeat(e4m3_values(quantized.scale) * quantized.scale_2, GROUP_SIZE, axis=-1)
    values: NDArray[np.float32] = (sign * FP4_VALUES[codes & 7] * step).astype(np.float32)
    return values


def _fp4_codes(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    midpoints = (FP4_VALUES[1:] + FP4_VALUES[:-1]) / 2
    magnitude = np.searchsorted(midpoints, np.abs(values), side="right").astype(np.uint8)
    sign = np.signbit(values).astype(np.uint8) << np.uint8(3)
    return (magnitude | sign).astype(np.uint8)


def _e4m3_table() -> NDArray[np.float32]:
    codes = np.arange(0x7F)
    exponent, mantissa = codes >> 3, codes & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal).astype(np.float32)


_E4M3 = _e4m3_table()


def e4m3_bits(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The nearest positive E4M3 byte; never zero, so that a group of zeros still divides."""
    midpoints = (_E4M3[1:] + _E4M3[:-1]) / 2
    return np.clip(np.searchsorted(midpoints, values, side="right"), 1, 0x7E).astype(np.uint8)


def e4m3_values(bits: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Values of positive, finite E4M3 bytes."""
    return _E4M3[bits]


def quantize_expert(projections: Mapping[str, NDArray[np.float32]]) -> dict[str, QuantizedWeight]:
    """An expert's three projections; gate and up share a tensor scale, as the fused kernel has one."""
    gate_up = tensor_scale(projections["gate_proj"], projections["up_proj"])
    scales = {"gate_proj": gate_up, "up_proj": gate_up, "down_proj": tensor_scale(projections["down_proj"])}
    return {name: quantize(weight, scales[name]) for name, weight in projections.items()}
