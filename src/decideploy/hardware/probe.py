"""Read the hardware: GPUs through NVML, the host through /proc, /sys and psutil. No torch."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import psutil
from packaging.version import InvalidVersion, Version

from decideploy.errors import Diagnostic
from decideploy.hardware.kernels import minimum_versions
from decideploy.hardware.nvml import Nvml, load_nvml, read_gpus
from decideploy.hardware.report import GIB, Gpu, HardwareReport, Host, Reading, unknown

# The engine's shared-memory message ring alone is 160 MiB; a container's default of 64 MiB ends in SIGBUS.
_SHM_NEEDED_BYTES = 256 * 1024**2

# A connection and its event take one each; at most 512 requests run and wait.
_FILES_NEEDED = 4096
_LIMITS = {"open files": resource.RLIMIT_NOFILE, "locked bytes": resource.RLIMIT_MEMLOCK}

_KERNEL_PACKAGES = ("flashinfer-python", "humming-kernels", "nvidia-cutlass-dsl")


def probe(
    *, nvml: Nvml | None = None, root: Path = Path("/"), environ: Mapping[str, str] | None = None
) -> HardwareReport:
    """What hardware is here. Never raises for missing hardware: no GPU gives a CPU report.

    ``nvml`` replaces the driver, ``root`` the file system that holds proc, sys and dev, ``environ`` the
    environment.
    """
    environ = os.environ if environ is None else environ
    found = read_gpus(nvml or load_nvml(), visible_devices=environ.get("CUDA_VISIBLE_DEVICES"))
    host = _host(root, environ)
    return HardwareReport(
        host=host,
        gpus=found.gpus,
        driver_version=found.driver_version,
        cuda_version=found.cuda_version,
        conditions=(
            *found.conditions,
            *_driver_conditions(found.driver_version, found.cuda_version, found.gpus),
            *_gpu_conditions(found.gpus),
            *_power_conditions(found.gpus),
            *_host_conditions(host),
        ),
    )


def cache_roots(environ: Mapping[str, str]) -> dict[str, Path]:
    """The folders that vLLM, Triton, Inductor, FlashInfer and Hugging Face write, by variable."""
    home = Path(environ.get("HOME") or tempfile.gettempdir())
    xdg = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    user = environ.get("USER") or str(os.getuid())
    defaults = {
        "VLLM_CACHE_ROOT": xdg / "vllm",
        "TRITON_CACHE_DIR": home / ".triton" / "cache",
        "TORCHINDUCTOR_CACHE_DIR": Path(tempfile.gettempdir()) / f"torchinductor_{user}",
        "FLASHINFER_WORKSPACE_BASE": home,
        "HF_HOME": xdg / "huggingface",
    }
    return {name: Path(environ.get(name) or default) for name, default in defaults.items()}


def is_writable(folder: Path) -> bool:
    """Whether a file can be made in ``folder``, or in the nearest parent that exists.

    Tried, not asked: access bits say yes on read-only mounts and full quotas.
    """
    existing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    try:
        with tempfile.TemporaryFile(dir=existing):
            return True
    except OSError:
        return False


def _host(root: Path, environ: Mapping[str, str]) -> Host:
    memory = psutil.virtual_memory()
    return Host(
        cores=Reading(value=len(os.sched_getaffinity(0)), source="sched_getaffinity"),
        ram_total_bytes=Reading(value=memory.total, source="psutil.virtual_memory"),
        ram_available_bytes=Reading(value=memory.available, source="psutil.virtual_memory"),
        cgroup_limit_bytes=_cgroup(root, "memory.max", "memory.limit_in_bytes", memory.total),
        cgroup_used_bytes=_cgroup(root, "memory.current", "memory.usage_in_bytes", None),
        shm_bytes=_shm(root),
        disk_free_bytes=_disk_free(cache_roots(environ)["HF_HOME"]),
        ulimits=Reading(
            value={name: resource.getrlimit(number)[0] for name, number in _LIMITS.items()},
            source="getrlimit",
        ),
        container=_container(root, environ),
        cpu_flags=_cpu_flags(root),
        cache_roots=Reading(
            value={name: is_writable(path) for name, path in cache_roots(environ).items()},
            source="a file made and removed",
        ),
        packages=Reading(
            value={name: _installed(name) for name in _KERNEL_PACKAGES}, source="importlib.metadata"
        ),
    )


def _cgroup(root: Path, v2: str, v1: str, ceiling: int | None) -> Reading[int]:
    for path in (root / "sys/fs/cgroup" / v2, root / "sys/fs/cgroup/memory" / v1):
        text = _read_text(path)
        if text is None:
            continue
        # Version 1 writes "no limit" as a number near 2**63; above the RAM it limits nothing.
        if not text.isdigit() or (ceiling is not None and int(text) > ceiling):
            return unknown(f"{path}: no limit")
        return Reading(value=int(text), source=str(path))
    return unknown("no memory cgroup")


def _shm(root: Path) -> Reading[int]:
    path = root / "dev/shm"
    try:
        return Reading(value=shutil.disk_usage(path).total, source=f"statvfs {path}")
    except OSError as error:
        return unknown(f"{path}: {error.strerror}")


def _disk_free(folder: Path) -> Reading[int]:
    """Where models are downloaded to, or the nearest parent that exists."""
    existing = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    try:
        return Reading(value=shutil.disk_usage(existing).free, source=f"statvfs {existing}")
    except OSError as error:
        return unknown(f"{existing}: {error.strerror}")


def _container(root: Path, environ: Mapping[str, str]) -> Reading[str]:
    """What marks of a container there are; without one this counts as the host itself."""
    for path, kind in ((".dockerenv", "docker"), ("run/.containerenv", "podman")):
        if (root / path).exists():
            return Reading(value=kind, source=str(root / path))
    if "KUBERNETES_SERVICE_HOST" in environ:
        return Reading(value="kubernetes", source="$KUBERNETES_SERVICE_HOST")
    if environ.get("container"):
        return Reading(value=environ["container"], source="$container")
    groups = _read_text(root / "proc/1/cgroup")
    if groups is None:
        return unknown(f"{root / 'proc/1/cgroup'} cannot be read")
    marked = any(word in groups for word in ("docker", "kubepods", "containerd", "lxc"))
    return Reading(value="container" if marked else "none", source=str(root / "proc/1/cgroup"))


def _cpu_flags(root: Path) -> Reading[Mapping[str, bool]]:
    path = root / "proc/cpuinfo"
    lines = (_read_text(path) or "").splitlines()
    flags = next((set(line.split()) for line in lines if line.startswith(("flags", "Features"))), None)
    if flags is None:
        return unknown(f"{path}: no flags")
    return Reading(
        value={
            "avx2": "avx2" in flags,
            "avx512f": "avx512f" in flags,
            "amx": "amx_tile" in flags,
            "bf16": bool({"avx512_bf16", "amx_bf16", "bf16"} & flags),
        },
        source=str(path),
    )


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        return None


def _driver_conditions(
    driver: Reading[str], cuda: Reading[str], gpus: tuple[Gpu, ...]
) -> tuple[Diagnostic, ...]:
    needed = minimum_versions()
    pairs = [
        ("gpu-driver-too-old", "driver", driver, needed.driver),
        ("gpu-cuda-too-old", "CUDA of the driver", cuda, needed.cuda),
    ]
    return tuple(
        Diagnostic(
            code=code,
            what=f"{name} {reading.value} is older than {minimum}, which the CUDA build needs",
            where=reading.source,
            next_step=f"install NVIDIA driver {needed.driver} or newer",
        )
        for code, name, reading, minimum in pairs
        if gpus and reading.value is not None and _older(reading.value, minimum)
    )


def _older(found: str, minimum: str) -> bool:
    try:
        return Version(found) < Version(minimum)
    except InvalidVersion:
        return False


def _gpu_conditions(gpus: tuple[Gpu, ...]) -> tuple[Diagnostic, ...]:
    return tuple(
        Diagnostic(
            code="gpu-memory-held",
            what=f"GPU {gpu.index} is held by {', '.join(map(str, gpu.holders.value))}",
            where=gpu.holders.source,
            next_step="stop these processes if they are stale; the plan counts only free memory",
        )
        for gpu in gpus
        if gpu.visible and gpu.holders.value
    )


def _power_conditions(gpus: tuple[Gpu, ...]) -> tuple[Diagnostic, ...]:
    return tuple(
        Diagnostic(
            code="gpu-power-capped",
            what=f"GPU {gpu.index} may draw {gpu.power_limit_w.value} W of its {gpu.power_default_w.value} W",
            where=gpu.power_limit_w.source,
            next_step="expect slower decisions than measured elsewhere, or raise it with `nvidia-smi -pl`",
        )
        for gpu in gpus
        if gpu.visible and (gpu.power_limit_w.value or 0) < (gpu.power_default_w.value or 0)
        if gpu.power_limit_w.known
    )


def _host_conditions(host: Host) -> tuple[Diagnostic, ...]:
    conditions = []
    if host.shm_bytes.value is not None and host.shm_bytes.value < _SHM_NEEDED_BYTES:
        conditions.append(
            Diagnostic(
                code="shm-small",
                what=f"/dev/shm is {host.shm_bytes.value / GIB:.2f} GiB, the engine needs 0.25 GiB",
                where=host.shm_bytes.source,
                next_step="start the container with --shm-size=1g (or --ipc=host)",
            )
        )
    files = (host.ulimits.value or {}).get("open files", -1)
    if 0 <= files < _FILES_NEEDED:
        conditions.append(
            Diagnostic(
                code="files-few",
                what=f"a process may open {files} files; each connection is one",
                where=host.ulimits.source,
                next_step=f"raise the limit: `ulimit -n {_FILES_NEEDED}`, or LimitNOFILE in the unit",
            )
        )
    closed = [name for name, writable in (host.cache_roots.value or {}).items() if not writable]
    if closed:
        conditions.append(
            Diagnostic(
                code="cache-not-writable",
                what=f"cannot write the cache folders of {', '.join(closed)}",
                where=host.cache_roots.source,
                next_step="set these variables, or DECIDEPLOY_HOME for all of them, to writable folders",
            )
        )
    return tuple(conditions)
