"""Which part of the machine each replica gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from decideploy.errors import ConfigError
from decideploy.hardware import HardwareReport, Reading
from decideploy.plan.sizing import host_free

Count: TypeAlias = int | Literal["auto"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The hardware that one replica sees. ``label`` names it to people.

    ``gpu_index`` is that of its GPU, by which the plan shows its engine no other; None on CPU, where ``env``
    binds the engine to its cores.
    """

    hardware: HardwareReport
    label: str
    gpu_index: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def shares(hardware: HardwareReport, count: Count, *, cores: Sequence[int]) -> tuple[Share, ...]:
    """One share a replica: a GPU each, or equal parts of host memory and of ``cores``, the usable ones.

    ConfigError for more replicas than GPUs or cores, for "auto" on a CPU, and for GPUs that are cut into
    slices; ProbeError when the host's memory is unknown.
    """
    if hardware.platform == "cuda":
        return _of_gpus(hardware, count)
    return _of_cores(hardware, count, sorted(cores))


def _of_gpus(hardware: HardwareReport, count: Count) -> tuple[Share, ...]:
    gpus = hardware.visible_gpus
    if any(gpu.mig.value == "slice" for gpu in gpus):
        raise ConfigError(
            "a visible GPU is cut into slices, and a replica takes a whole one",
            where="--replicas",
            next_step="hide it with CUDA_VISIBLE_DEVICES, or leave MIG mode (`nvidia-smi -mig 0`)",
        )
    wanted = len(gpus) if count == "auto" else count
    if wanted > len(gpus):
        raise ConfigError(
            f"{wanted} replicas need {wanted} GPUs, {len(gpus)} can be used",
            where="--replicas",
            next_step=f"ask for {len(gpus)} or auto, or make more visible in CUDA_VISIBLE_DEVICES",
        )
    return tuple(
        Share(
            hardware=replace(hardware, gpus=(gpu,)),
            label=f"GPU {gpu.index}",
            gpu_index=gpu.index,
        )
        for gpu in gpus[:wanted]
    )


def _of_cores(hardware: HardwareReport, count: Count, cores: Sequence[int]) -> tuple[Share, ...]:
    if count == "auto":
        raise ConfigError(
            "no GPU is visible, so their number tells nothing",
            where="--replicas auto",
            next_step=f"give a number, up to the {len(cores)} cores here, or make a GPU visible",
        )
    if count > len(cores):
        raise ConfigError(
            f"{count} replicas need {count} cores, {len(cores)} can be used",
            where="--replicas",
            next_step=f"ask for {len(cores)} or fewer",
        )
    found = []
    for number in range(count):
        own = cores[number * len(cores) // count : (number + 1) * len(cores) // count]
        found.append(
            Share(
                hardware=_part_of_memory(hardware, count),
                label=f"{'core' if len(own) == 1 else 'cores'} {','.join(map(str, own))}",
                env={"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, own))},
            )
        )
    return tuple(found)


def _part_of_memory(hardware: HardwareReport, count: int) -> HardwareReport:
    source = f"{hardware.host.ram_available_bytes.source}, among {count} replicas"
    part = Reading(value=host_free(hardware) // count, source=source)
    return replace(hardware, host=replace(hardware.host, ram_available_bytes=part))
