"""GPUs as NVML tells them. ``Nvml`` is the one replaceable seam to the driver."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from decideploy.errors import Diagnostic
from decideploy.hardware.report import Gpu, Reading, unknown

T = TypeVar("T")


class Nvml(Protocol):
    """The part of nvidia-ml-py's ``pynvml`` that the probe calls."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: D102, N802
    def nvmlShutdown(self) -> None: ...  # noqa: D102, N802
    def nvmlSystemGetDriverVersion(self) -> str: ...  # noqa: D102, N802
    def nvmlSystemGetCudaDriverVersion(self) -> int: ...  # noqa: D102, N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: D102, N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...  # noqa: D102, N802
    def nvmlDeviceGetName(self, handle: Any) -> str: ...  # noqa: D102, N802
    def nvmlDeviceGetUUID(self, handle: Any) -> str: ...  # noqa: D102, N802
    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]: ...  # noqa: D102, N802
    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any: ...  # noqa: D102, N802
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]: ...  # noqa: D102, N802


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuReading:
    """All that NVML told."""

    gpus: tuple[Gpu, ...]
    driver_version: Reading[str]
    cuda_version: Reading[str]
    conditions: tuple[Diagnostic, ...]


# NVML's return codes, as in nvml.h.
_NO_PERMISSION, _DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND, _GPU_IS_LOST, _VERSION_MISMATCH = 4, 9, 12, 15, 18

_CONDITIONS = {
    _NO_PERMISSION: (
        "gpu-no-permission",
        "this user may not open the NVIDIA device files",
        "add the user to the group that owns /dev/nvidia*, or pass the devices into the container",
    ),
    _DRIVER_NOT_LOADED: (
        "gpu-driver-not-loaded",
        "the NVIDIA kernel driver is not loaded",
        "load it with `modprobe nvidia`, or install the driver; without a GPU the CPU build serves",
    ),
    _LIBRARY_NOT_FOUND: (
        "gpu-no-driver",
        "no NVIDIA driver library on this machine",
        "on a GPU host install the driver, or start the container with its GPUs; else use the CPU build",
    ),
    _GPU_IS_LOST: (
        "gpu-lost",
        "a GPU has fallen off the bus",
        "reboot the host; `dmesg | grep -i xid` tells the cause",
    ),
    _VERSION_MISMATCH: (
        "gpu-driver-mismatch",
        "the NVIDIA library and the loaded kernel driver have different versions",
        "reboot, or unload and load the driver modules: the driver was updated while it was in use",
    ),
}


def load_nvml() -> Nvml | None:
    """nvidia-ml-py's module, None when it is not installed."""
    try:
        module: Nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    return module


def read_gpus(nvml: Nvml | None, *, visible_devices: str | None) -> GpuReading:
    """Every GPU, with what cannot be read marked unknown.

    ``visible_devices`` is the value of CUDA_VISIBLE_DEVICES, None when unset.
    """
    if nvml is None:
        return _no_gpus(
            Diagnostic(
                code="gpu-unprobed",
                what="nvidia-ml-py is not installed, so GPUs were not looked for",
                next_step="on a GPU host: pip install 'decideploy[gpu]'",
            )
        )
    try:
        with _session(nvml):
            return _read(nvml, visible_devices)
    except nvml.NVMLError as error:
        return _no_gpus(_condition(error))


@contextmanager
def _session(nvml: Nvml) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def _no_gpus(condition: Diagnostic) -> GpuReading:
    reading = unknown(condition.what)
    return GpuReading(gpus=(), driver_version=reading, cuda_version=reading, conditions=(condition,))


def _condition(error: Exception) -> Diagnostic:
    code, what, next_step = _CONDITIONS.get(
        getattr(error, "value", -1),
        ("gpu-unreadable", f"NVML failed: {error}", "run `nvidia-smi`; its message names the fault"),
    )
    return Diagnostic(code=code, what=what, where="NVML", next_step=next_step)


def _read(nvml: Nvml, visible_devices: str | None) -> GpuReading:
    conditions: list[Diagnostic] = []
    gpus = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            conditions.append(_condition(error))
            continue
        gpus.append(_gpu(nvml, index, handle, visible_devices))
    return GpuReading(
        gpus=tuple(gpus),
        driver_version=_ask(nvml, "nvmlSystemGetDriverVersion", nvml.nvmlSystemGetDriverVersion),
        cuda_version=_ask(nvml, "nvmlSystemGetCudaDriverVersion", lambda: _cuda_version(nvml)),
        conditions=tuple(conditions),
    )


def _gpu(nvml: Nvml, index: int, handle: Any, visible_devices: str | None) -> Gpu:
    memory = _memory(nvml, handle)
    uuid = _ask(nvml, "nvmlDeviceGetUUID", lambda: nvml.nvmlDeviceGetUUID(handle))
    return Gpu(
        index=index,
        name=_ask(nvml, "nvmlDeviceGetName", lambda: nvml.nvmlDeviceGetName(handle)),
        compute_capability=_ask(
            nvml,
            "nvmlDeviceGetCudaComputeCapability",
            lambda: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        ),
        total_bytes=_usable(memory),
        free_bytes=_part(memory, "free"),
        uuid=uuid,
        holders=_ask(nvml, "nvmlDeviceGetComputeRunningProcesses", lambda: _holders(nvml, handle)),
        visible=_is_visible(index, uuid.value, visible_devices),
    )


def _ask(nvml: Nvml, source: str, question: Callable[[], T]) -> Reading[T]:
    """The answer, or unknown with NVML's words: one value that fails must not hide the others."""
    try:
        return Reading(value=question(), source=source)
    except nvml.NVMLError as error:
        return unknown(f"{source}: {error}")


def _memory(nvml: Nvml, handle: Any) -> Reading[Any]:
    """The second form of the memory info, which tells what the driver keeps; the first where that fails."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    if version is not None:
        told = _ask(
            nvml, "nvmlDeviceGetMemoryInfo", lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=version)
        )
        if told.known:
            return told
    return _ask(nvml, "nvmlDeviceGetMemoryInfo", lambda: nvml.nvmlDeviceGetMemoryInfo(handle))


def _usable(memory: Reading[Any]) -> Reading[int]:
    """What CUDA calls the total, of which the engine takes its share: the driver's own part is not in it."""
    reserved = int(getattr(memory.value, "reserved", 0))
    total = _part(memory, "total")
    if total.value is None or not reserved:
        return total
    return Reading(value=total.value - reserved, source=f"{total.source} - reserved")


def _part(memory: Reading[Any], name: str) -> Reading[int]:
    if memory.value is None:
        return unknown(memory.source)
    return Reading(value=int(getattr(memory.value, name)), source=f"{memory.source}.{name}")


def _cuda_version(nvml: Nvml) -> str:
    number = nvml.nvmlSystemGetCudaDriverVersion()
    return f"{number // 1000}.{number % 1000 // 10}"


def _holders(nvml: Nvml, handle: Any) -> tuple[int, ...]:
    return tuple(int(process.pid) for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle))


def _is_visible(index: int, uuid: str | None, visible_devices: str | None) -> bool:
    if visible_devices is None:
        return True
    names = [name.strip() for name in visible_devices.split(",") if name.strip()]
    return str(index) in names or any(uuid is not None and uuid.startswith(n) for n in names if n != "")
