"""Machines as NVML tells them, behind the one seam.

H200: name, capability, memory and driver were recorded from a real one, its other answers and all other
machines are written from public specifications and NVIDIA's documentation of NVML, with the errors that it
names for questions a card does not support; they were seen on no such card.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

MIB = 1024**2
NOT_SUPPORTED, GPU_IS_LOST = 3, 15


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        names = {3: "Not Supported", 4: "Insufficient Permissions", 15: "GPU is lost"}
        super().__init__(names.get(value, f"code {value}"))
        self.value = value


@dataclass(frozen=True, kw_only=True)
class Device:
    """Answers for one GPU or slice; None is answered "Not Supported"."""

    name: str
    capability: tuple[int, int]
    total: int | None
    reserved: int = 0
    used: int = 0
    uuid: str = "GPU-0"
    mig: int | None = None
    slices: tuple["Device", ...] = ()
    ecc: int | None = None
    power_w: int | None = None
    power_default_w: int | None = None
    pcie: tuple[int, int, int, int] | None = (4, 16, 4, 16)
    nvlinks: int = 0
    holders: tuple[Any, ...] = ()
    lost: bool = False


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A driver and its GPUs, in the shape of nvidia-ml-py's module."""

    devices: tuple[Device, ...]
    driver: str = "580.95.05"
    cuda: int = 13_000
    recorded: bool = False
    NVMLError: type[Exception] = NvmlError
    nvmlMemory_v2: int = field(default=0x2000028)  # noqa: N815

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answer = ANSWERS.get(name)
        if answer is None:
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            if args and isinstance(args[0], Device) and args[0].lost:
                raise NvmlError(GPU_IS_LOST)
            value = answer(self, *args)
            if value is None and name not in ("nvmlInit", "nvmlShutdown"):
                raise NvmlError(NOT_SUPPORTED)
            return value

        return call


def memory(_: Machine, device: Device, version: int | None = None) -> Any:
    if device.total is None:
        return None
    free = device.total - device.reserved - device.used
    told = SimpleNamespace(total=device.total, free=free, used=device.used)
    if version is not None:
        told.reserved = device.reserved
    return told


def pcie(place: int) -> Callable[[Machine, Device], int | None]:
    return lambda _, device: device.pcie and device.pcie[place]


def mig_slice(_: Machine, device: Device, number: int) -> Device | None:
    return device.slices[number] if number < len(device.slices) else None


def mode(name: str) -> Callable[[Machine, Device], list[int] | None]:
    return lambda _, device: None if getattr(device, name) is None else [getattr(device, name)] * 2


def milliwatts(name: str) -> Callable[[Machine, Device], int | None]:
    return lambda _, device: getattr(device, name) and getattr(device, name) * 1000


ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlInit": lambda _: None,
    "nvmlShutdown": lambda _: None,
    "nvmlSystemGetDriverVersion": lambda machine: machine.driver,
    "nvmlSystemGetCudaDriverVersion": lambda machine: machine.cuda,
    "nvmlDeviceGetCount": lambda machine: len(machine.devices),
    "nvmlDeviceGetHandleByIndex": lambda machine, index: machine.devices[index],
    "nvmlDeviceGetName": lambda _, device: device.name,
    "nvmlDeviceGetUUID": lambda _, device: device.uuid,
    "nvmlDeviceGetCudaComputeCapability": lambda _, device: device.capability,
    "nvmlDeviceGetMemoryInfo": memory,
    "nvmlDeviceGetMigMode": mode("mig"),
    "nvmlDeviceGetMaxMigDeviceCount": lambda _, device: len(device.slices) + 1,
    "nvmlDeviceGetMigDeviceHandleByIndex": mig_slice,
    "nvmlDeviceGetEccMode": mode("ecc"),
    "nvmlDeviceGetPowerManagementLimit": milliwatts("power_w"),
    "nvmlDeviceGetPowerManagementDefaultLimit": milliwatts("power_default_w"),
    "nvmlDeviceGetCurrPcieLinkGeneration": pcie(0),
    "nvmlDeviceGetCurrPcieLinkWidth": pcie(1),
    "nvmlDeviceGetMaxPcieLinkGeneration": pcie(2),
    "nvmlDeviceGetMaxPcieLinkWidth": pcie(3),
    "nvmlDeviceGetNvLinkState": lambda _, device, link: 1 if link < device.nvlinks else None,
    "nvmlDeviceGetComputeRunningProcesses": lambda _, device: list(device.holders),
    "nvmlDeviceGetGraphicsRunningProcesses": lambda _, device: [],
}


def one(
    name: str, capability: tuple[int, int], total_mib: int | None, watts: int | None, **more: Any
) -> Machine:
    total = None if total_mib is None else total_mib * MIB
    values: dict[str, Any] = {"power_w": watts, "power_default_w": watts} | more
    return Machine(devices=(Device(name=name, capability=capability, total=total, **values),))


FIFTH = {"pcie": (5, 16, 5, 16), "ecc": 1}

# By the card's key in cards.toml.
MACHINES: dict[str, Machine] = {
    "t4": one("Tesla T4", (7, 5), 15_360, 70, ecc=1, pcie=(3, 16, 3, 16)),
    "rtx3090": one("NVIDIA GeForce RTX 3090", (8, 6), 24_576, 350, nvlinks=0),
    "rtx4090": one("NVIDIA GeForce RTX 4090", (8, 9), 24_564, 450, ecc=0),
    "a100-40g": one("NVIDIA A100-SXM4-40GB", (8, 0), 40_960, 400, ecc=1, mig=0, nvlinks=12),
    "a100-80g": one("NVIDIA A100-SXM4-80GB", (8, 0), 81_920, 400, ecc=1, mig=0, nvlinks=12),
    "l40s": one("NVIDIA L40S", (8, 9), 46_068, 350, ecc=1),
    "h100": one("NVIDIA H100 80GB HBM3", (9, 0), 81_559, 700, mig=0, nvlinks=18, **FIFTH),
    "h200": Machine(
        devices=(
            Device(
                name="NVIDIA H200",
                capability=(9, 0),
                total=150_754_820_096,
                reserved=644_939_776,
                ecc=1,
                mig=0,
                pcie=(5, 16, 5, 16),
                power_w=700,
                power_default_w=700,
                nvlinks=18,
            ),
        ),
        driver="580.159.04",
        recorded=True,
    ),
    "b200": one("NVIDIA B200", (10, 0), 183_359, 1000, mig=0, nvlinks=18, **FIFTH),
    "b300": one("NVIDIA B300 SXM6 AC", (10, 3), 274_432, 1100, mig=0, nvlinks=18, **FIFTH),
    "rtx5090": one("NVIDIA GeForce RTX 5090", (12, 0), 32_607, 575, pcie=(5, 16, 5, 16)),
    "pro6000": one("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0), 97_887, 600, mig=0, **FIFTH),
    # The memory is the host's, so that NVML has no figure for it.
    "spark": one("NVIDIA GB10", (12, 1), None, None, pcie=None),
}

SLICE = Device(
    name="NVIDIA A100-SXM4-80GB MIG 3g.40gb",
    capability=(8, 0),
    total=40_192 * MIB,
    uuid="MIG-1",
    pcie=None,
)
CUT = Machine(
    devices=(
        Device(
            name="NVIDIA A100-SXM4-80GB", capability=(8, 0), total=81_920 * MIB, ecc=1, mig=1, slices=(SLICE,)
        ),
    )
)
