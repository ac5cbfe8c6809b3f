"""Rules that read every weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decideploy.artifacts.files import ModelFiles
from decideploy.artifacts.issue import Finding, RuleSet
from decideploy.artifacts.safetensors_file import TensorInfo, read_raw_rows
from decideploy.artifacts.shape import (
    bf16_expert_tensors,
    dense_tensors,
    nvfp4_expert_tensors,
)

RULES = RuleSet()

_BLOCK_BYTES = 64 << 20
_E4M3_NAN = (0x7F, 0xFF)
_BF16_EXPONENT = 0x7F80
_REEXPORT = "export with a ModelOpt release that clamps group scales"
_DOWNLOAD = "download the shard again at the pinned revision, and compare it with its manifest"


def _count(tensor: TensorInfo, is_meant: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> int:
    """How many stored values ``is_meant`` marks."""
    return sum(int(is_meant(block).sum()) for block in _blocks(tensor))


def _blocks(tensor: TensorInfo) -> Iterator[NDArray[Any]]:
    """The tensor as stored, in blocks of rows that take little memory."""
    rows = tensor.shape[0] if tensor.shape else 1
    # A scalar is one row.
    whole = tensor if tensor.shape else replace(tensor, shape=(1,))
    step = max(1, _BLOCK_BYTES * rows // max(1, tensor.size_bytes))
    for start in range(0, rows, step):
        yield read_raw_rows(whole, start, min(rows, start + step))


@RULES.rule(
    "weight-not-finite",
    consequence="every answer that this weight has a part in becomes NaN",
    next_step=_DOWNLOAD,
    deep=True,
)
def weight_not_finite(files: ModelFiles) -> Iterator[Finding]:
    """No bf16 weight is NaN or infinite."""
    for name, tensor in files.tensors.items():
        if tensor.dtype == "BF16":
            count = _count(tensor, lambda block: (block & _BF16_EXPONENT) == _BF16_EXPONENT)
            if count:
                what = f"{count} values of {name} are NaN or infinite"
                yield Finding(what=what, where=tensor.path.name, key=name)


@RULES.rule(
    "weight-zero",
    consequence="the module does nothing: the file was preallocated and never filled, or never trained",
    next_step=_DOWNLOAD,
    deep=True,
)
def weight_zero(files: ModelFiles) -> Iterator[Finding]:
    """No matrix of the language model is all zero, packed experts and their scales included."""
    shape = files.shape
    experts = nvfp4_expert_tensors(shape) if files.is_nvfp4() else bf16_expert_tensors(shape)
    expected = {**dense_tensors(shape), **{name: size for name, (_, size) in experts.items()}}
    for name, size in expected.items():
        tensor = files.tensors.get(name) or files.expert_tensors.get(name)
        # Another shape is another rule's fault.
        whole = tensor is not None and tensor.shape == size and math.prod(size) > 1
        if tensor and whole and not any(block.any() for block in _blocks(tensor)):
            yield Finding(what=f"{name} is all zero", where=tensor.path.name, key=name)


@RULES.rule(
    "group-scale-nan",
    consequence="every output of the expert becomes NaN",
    next_step=_REEXPORT,
    deep=True,
)
def group_scale_nan(files: ModelFiles) -> Iterator[Finding]:
    """No FP8 group scale is one of E4M3's two NaN bytes."""
    for name, tensor in _group_scales(files):
        count = _count(tensor, lambda block: np.isin(block, _E4M3_NAN))
        if count:
            yield Finding(what=f"{count} NaN bytes in {name}", where=tensor.path.name, key=name)


@RULES.rule(
    "group-scale-negative",
    consequence="kernels differ in whether they keep the sign: sixteen weights change theirs",
    next_step=_REEXPORT,
    deep=True,
)
def group_scale_negative(files: ModelFiles) -> Iterator[Finding]:
    """No FP8 group scale is below zero."""
    for name, tensor in _group_scales(files):
        # 0xFF is a NaN, 0x80 is zero.
        count = _count(tensor, lambda block: (block > 0x80) & (block < 0xFF))
        if count:
            yield Finding(what=f"{count} negative scales in {name}", where=tensor.path.name, key=name)


def _group_scales(files: ModelFiles) -> Iterator[tuple[str, TensorInfo]]:
    yield from ((name, tensor) for name, tensor in files.tensors.items() if tensor.dtype == "F8_E4M3")
