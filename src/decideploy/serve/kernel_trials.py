"""The numeric test of the expert kernels, as one installation needs it, and what earlier ones found."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from decideploy import __version__
from decideploy.hardware import Gpu, HardwareReport, KernelTrial, kernel_path
from decideploy.hardware.smoke import Run, not_tested, try_kernels
from decideploy.plan.argv import gpu_env, make_env
from decideploy.plan.cuda import chosen_gpu
from decideploy.plan.workload import Workload
from decideploy.serve.engine_log import unwritable
from decideploy.serve.launch import engine_environment

if TYPE_CHECKING:
    from decideploy.build import InstalledBuild


class TrialKey(BaseModel):
    """What a result holds for: one card, its driver, one build with its kernel packages, and this test."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    uuid: str
    driver: str
    build_sha256: str
    packages: Mapping[str, str | None]
    decideploy: str
    order: tuple[str, ...]

    @property
    def file_name(self) -> str:
        """A name of its own for each key."""
        return f"{hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:32]}.json"


class KernelTestRecord(BaseModel):
    """The trials of a test that gave numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    time: datetime
    key: TrialKey
    trials: tuple[KernelTrial, ...]


def kernel_tests_folder(state_folder: Path) -> Path:
    """Where results are kept."""
    return state_folder / "kernel-tests"


def with_kernel_test(
    report: HardwareReport,
    build: InstalledBuild,
    workload: Workload,
    state_folder: Path,
    *,
    again: bool = False,
    run: Run | None = None,
) -> HardwareReport:
    """``report`` with the kernels tried that ``workload`` would get, or why this build takes none.

    What an earlier test of the same card, driver, build and order found is not repeated, except ``again``.
    Raises ProbeError for a card without FP4 path, ConfigError when the folder cannot be written.
    """
    if build.recipe != "cuda":
        return not_tested(report, f"the {build.recipe} build is installed")
    if not report.visible_gpus:
        return not_tested(report, "no GPU is visible")
    gpu = chosen_gpu(report, workload)
    if gpu.compute_capability.value is None:
        return not_tested(report, f"the compute capability of GPU {gpu.index} is unknown")
    path = kernel_path(
        gpu.compute_capability.value,
        patched=workload.patched,
        packages=report.host.packages.value,
        tensor_parallel_size=workload.tensor_parallel_size,
    )
    order = (workload.moe_backend,) if workload.moe_backend else path.usable
    key = _key(report, gpu, build, order)
    folder = kernel_tests_folder(state_folder)
    tested = try_kernels(
        report,
        gpu,
        order,
        dtype=path.dtype,
        env=engine_environment({**make_env(workload), **gpu_env(gpu, workload)}),
        known={} if key is None or again else _recall(key, folder),
        run=run,
    )
    if key is not None and tested.smoke_test.value is not None:
        _remember(key, tested.smoke_test.value.trials, folder)
    return tested


def read_tests(state_folder: Path) -> tuple[KernelTestRecord, ...]:
    """What tests found, oldest first; a file that cannot be read is one that is tested again."""
    found = []
    for path in kernel_tests_folder(state_folder).glob("*.json"):
        try:
            found.append(KernelTestRecord.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError):
            continue
    return tuple(sorted(found, key=lambda record: record.time))


def _key(report: HardwareReport, gpu: Gpu, build: InstalledBuild, order: tuple[str, ...]) -> TrialKey | None:
    """None where the card or its driver cannot be told from another."""
    if gpu.uuid.value is None or report.driver_version.value is None:
        return None
    return TrialKey(
        uuid=gpu.uuid.value,
        driver=report.driver_version.value,
        build_sha256=build.files_sha256,
        packages=report.host.packages.value or {},
        decideploy=__version__,
        order=order,
    )


def _recall(key: TrialKey, folder: Path) -> dict[str, KernelTrial]:
    """Earlier trials by backend; none where no record can be read, so that they are repeated."""
    try:
        record = KernelTestRecord.model_validate_json((folder / key.file_name).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError):
        return {}
    return {trial.backend: trial for trial in record.trials} if record.key == key else {}


def _remember(key: TrialKey, trials: tuple[KernelTrial, ...], folder: Path) -> None:
    """Keep what gave numbers; what failed may have lacked memory or a compiler, and is tried again."""
    kept = tuple(trial for trial in trials if trial.verdict != "failed")
    path = folder / key.file_name
    record = KernelTestRecord(time=datetime.now(UTC), key=key, trials=kept)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(record.model_dump_json(indent=1), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error
