"""Which FP4 kernel a compute capability takes; the table is ``kernels.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from decideploy.errors import ProbeError


@dataclass(frozen=True, kw_only=True, slots=True)
class MinimumVersions:
    """The oldest driver and CUDA version that the CUDA build runs on."""

    driver: str
    cuda: str


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelPath:
    """The expert kernel to ask for.

    ``backend`` is a value of ``--moe-backend``; ``activation`` is W4A4 or W4A16; ``order`` are the backends
    in order of preference; ``dtype`` is set when the model's own dtype cannot run; ``unpadded`` means that
    more than one GPU per engine fails.
    """

    compute_capability: str
    backend: str
    activation: str
    order: tuple[str, ...]
    reason: str
    dtype: str | None = None
    unpadded: bool = False


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(files("decideploy.hardware").joinpath("kernels.toml").read_text("utf-8"))


def minimum_versions() -> MinimumVersions:
    """Driver and CUDA version that the CUDA build needs."""
    return MinimumVersions(**_table()["minimum"])


def is_unified_memory(compute_capability: str | None) -> bool:
    """Whether GPUs of this compute capability share the host's memory."""
    return compute_capability in _table()["unified_memory"]["compute_capability"]


def attention_backend(
    compute_capability: str | None, *, packages: Mapping[str, str | None] | None
) -> tuple[str, str] | None:
    """``--attention-backend`` and why, None where the engine's own choice runs; ``packages`` as below."""
    row = _table()["attention"]
    if compute_capability not in row["compute_capability"]:
        return None
    if packages is None or packages.get(row["package"]) is not None:
        return None
    return row["without"], f"FlashAttention 4 needs {row['package']}, which is not installed"


def kernel_path(
    compute_capability: str, *, patched: bool = True, packages: Mapping[str, str | None] | None = None
) -> KernelPath:
    """The path for ``compute_capability`` ("9.0").

    ``patched`` is whether kernel choice follows the adapter (patch 0003); ``packages`` are the installed
    kernel packages, None when unknown, then all are taken as present, as in the lock. ProbeError when no
    row fits.
    """
    row = _row(compute_capability)
    order = tuple(row["patched" if patched else "stock"])
    backend = next(name for name in order if _is_present(name, packages))
    return KernelPath(
        compute_capability=compute_capability,
        backend=backend,
        activation=row["activation"][backend],
        order=order,
        reason=_reason(row["reason"], patched, order, backend),
        dtype=row.get("dtype"),
        unpadded=backend in _table()["tensor_parallel"]["unpadded"],
    )


def _row(compute_capability: str) -> Mapping[str, Any]:
    rows: list[Mapping[str, Any]] = _table()["path"]
    for row in rows:
        if compute_capability in row["compute_capability"]:
            return row
    known = [name for row in rows for name in row["compute_capability"]]
    raise ProbeError(
        f"no FP4 path is known for compute capability {compute_capability}",
        where="decideploy/hardware/kernels.toml",
        next_step=f"use a GPU of compute capability {', '.join(known)}, or add a row after a numeric test",
    )


def _is_present(backend: str, packages: Mapping[str, str | None] | None) -> bool:
    package = _table()["packages"].get(backend)
    return package is None or packages is None or packages.get(package) is not None


def _reason(text: str, patched: bool, order: tuple[str, ...], backend: str) -> str:
    if not patched:
        return "LoRA restricts every expert kernel without the kernel-choice patch: Marlin"
    if backend != order[0]:
        package = _table()["packages"].get(order[0], order[0])
        return f"{text}; {order[0]} needs {package}, which is not installed"
    return text
