"""GPUs as NVML tells them. ``Nvml`` is the one replaceable seam to the driver."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import psutil

from decideploy.errors import Diagnostic
from decideploy.hardware.report import Gpu, Holder, Reading, unknown

T = TypeVar("T")


class Nvml(Protocol):
    """The part of nvidia-ml-py's ``pynvml`` that must be there; questions of one GPU are asked by name."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: D102, N802
    def nvmlShutdown(self) -> None: ...  # noqa: D102, N802
    def nvmlSystemGetDriverVersion(self) -> str: ...  # noqa: D102, N802
    def nvmlSystemGetCudaDriverVersion(self) -> int: ...  # noqa: D102, N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: D102, N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...  # noqa: D102, N802


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuReading:
    """All that NVML told."""

    gpus: tuple[Gpu, ...]
    driver_version: Reading[str]
    cuda_version: Reading[str]
    conditions: tuple[Diagnostic, ...]


# NVML's return codes, as in nvml.h.
_NO_PERMISSION, _DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND, _GPU_IS_LOST, _VERSION_MISMATCH = 4, 9, 12, 15, 18
# The most links of any card; more are answered with an error.
_NVLINKS = 18

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
    gpus: list[Gpu] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            conditions.append(_condition(error))
            continue
        reader = _Reader(nvml, index, visible_devices)
        gpus += reader.gpus(handle)
        conditions += reader.conditions()
    system = _Reader(nvml, 0, visible_devices)
    return GpuReading(
        gpus=tuple(gpus),
        driver_version=system.ask("nvmlSystemGetDriverVersion"),
        cuda_version=system.ask("nvmlSystemGetCudaDriverVersion", reading=_cuda_version),
        conditions=tuple(conditions),
    )


class _Reader:
    """Asks about one GPU. A question that fails is answered unknown, so that it hides no other; faults that
    concern the whole GPU become conditions.
    """

    def __init__(self, nvml: Nvml, index: int, visible_devices: str | None) -> None:
        self._nvml, self._index, self._visible_devices = nvml, index, visible_devices
        self._faults: dict[int, Diagnostic] = {}

    def conditions(self) -> tuple[Diagnostic, ...]:
        """What made questions fail that concerns the whole GPU."""
        return tuple(self._faults.values())

    def ask(self, name: str, *args: Any, reading: Callable[[Any], T] = lambda answer: answer) -> Reading[T]:
        """NVML's answer as ``reading`` reads it, or unknown with NVML's words."""
        try:
            return Reading(value=reading(getattr(self._nvml, name)(*args)), source=name)
        except AttributeError:
            return unknown(f"{name}: not in this nvidia-ml-py")
        except self._nvml.NVMLError as error:
            code = getattr(error, "value", -1)
            if code in (_NO_PERMISSION, _GPU_IS_LOST):
                self._faults[code] = replace(_condition(error), where=f"GPU {self._index}: {name}")
            return unknown(f"{name}: {error}")

    def gpus(self, handle: Any) -> list[Gpu]:
        """The GPU, and its slices where it is cut into some: then the engine can take these alone."""
        mig = self.ask("nvmlDeviceGetMigMode", handle, reading=lambda modes: "on" if modes[0] else "off")
        a_slice = Reading(value="slice", source="nvmlDeviceGetMigDeviceHandleByIndex")
        slices = [self._gpu(part, a_slice) for part in self._slices(mig, handle)]
        whole = self._gpu(handle, mig)
        if mig.value == "on" and not slices:
            self._faults[-1] = Diagnostic(
                code="gpu-mig-empty",
                what=f"GPU {self._index} is in MIG mode and has no slice that could be used",
                where="nvmlDeviceGetMigMode",
                next_step="make one (`nvidia-smi mig -cgi PROFILE -C`), or leave it (`nvidia-smi -mig 0`)",
            )
        return [replace(whole, visible=False) if mig.value == "on" else whole, *slices]

    def _slices(self, mig: Reading[str], handle: Any) -> Iterator[Any]:
        if mig.value != "on":
            return
        most: Reading[int] = self.ask("nvmlDeviceGetMaxMigDeviceCount", handle)
        for number in range(most.value or 0):
            part: Reading[Any] = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            if part.known:
                yield part.value

    def _gpu(self, handle: Any, mig: Reading[str]) -> Gpu:
        memory = self._memory(handle)
        uuid: Reading[str] = self.ask("nvmlDeviceGetUUID", handle)
        return Gpu(
            index=self._index,
            name=self.ask("nvmlDeviceGetName", handle),
            compute_capability=self.ask(
                "nvmlDeviceGetCudaComputeCapability", handle, reading=lambda pair: "{}.{}".format(*pair)
            ),
            total_bytes=_usable(memory),
            free_bytes=_part(memory, "free"),
            uuid=uuid,
            holders=self._holders(handle),
            mig=mig,
            ecc=self.ask("nvmlDeviceGetEccMode", handle, reading=lambda modes: bool(modes[0])),
            power_limit_w=self.ask("nvmlDeviceGetPowerManagementLimit", handle, reading=_watts),
            power_default_w=self.ask("nvmlDeviceGetPowerManagementDefaultLimit", handle, reading=_watts),
            pcie=self._pcie(handle),
            nvlinks=self._nvlinks(handle),
            visible=_is_visible(self._index, uuid.value, self._visible_devices),
        )

    def _memory(self, handle: Any) -> Reading[Any]:
        """The second form of the memory info, which tells what the driver keeps; the first if that fails."""
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        told: Reading[Any] = unknown("nvmlMemory_v2: not in this nvidia-ml-py")
        if version is not None:
            told = self.ask("nvmlDeviceGetMemoryInfo", handle, version)
        return told if told.known else self.ask("nvmlDeviceGetMemoryInfo", handle)

    def _holders(self, handle: Any) -> Reading[tuple[Holder, ...]]:
        name = "nvmlDeviceGetComputeRunningProcesses"
        computing: Reading[list[Any]] = self.ask(name, handle)
        if computing.value is None:
            return unknown(computing.source)
        drawing: Reading[list[Any]] = self.ask("nvmlDeviceGetGraphicsRunningProcesses", handle)
        by_pid = {
            int(process.pid): _holder(process) for process in (*(drawing.value or ()), *computing.value)
        }
        return Reading(value=tuple(by_pid.values()), source=name)

    def _pcie(self, handle: Any) -> Reading[str]:
        names = ("CurrPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkGeneration", "MaxPcieLinkWidth")
        found: list[Reading[int]] = [self.ask(f"nvmlDeviceGet{name}", handle) for name in names]
        if missing := next((reading for reading in found if not reading.known), None):
            return unknown(missing.source)
        generation, width, most_generation, most_width = (reading.value for reading in found)
        text = f"{generation}.0 x{width} (card: {most_generation}.0 x{most_width})"
        return Reading(value=text, source="nvmlDeviceGetCurrPcieLink*")

    def _nvlinks(self, handle: Any) -> Reading[int]:
        name = "nvmlDeviceGetNvLinkState"
        first: Reading[int] = self.ask(name, handle, 0)
        if first.value is None:
            return unknown(first.source)
        others: list[Reading[int]] = [self.ask(name, handle, link) for link in range(1, _NVLINKS)]
        return Reading(value=sum(reading.value or 0 for reading in (first, *others)), source=name)


def _holder(process: Any) -> Holder:
    size = getattr(process, "usedGpuMemory", None)
    return Holder(pid=int(process.pid), name=_process_name(int(process.pid)), size_bytes=size)


def _process_name(pid: int) -> str | None:
    """None for a process of another container or of another user's host."""
    try:
        return psutil.Process(pid).name()
    except (psutil.Error, ValueError):
        return None


def _watts(milliwatts: int) -> int:
    return round(milliwatts / 1000)


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


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _is_visible(index: int, uuid: str | None, visible_devices: str | None) -> bool:
    if visible_devices is None:
        return True
    names = [name.strip() for name in visible_devices.split(",") if name.strip()]
    return str(index) in names or any(uuid is not None and uuid.startswith(n) for n in names if n != "")
