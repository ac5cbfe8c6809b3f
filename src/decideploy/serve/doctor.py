"""Everything that would stop ``serve``, found at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from decideploy.errors import ConfigError, Diagnostic, Error, ProbeError
from decideploy.hardware import HardwareReport, probe
from decideploy.serve.launch import check_port
from decideploy.serve.preflight import check_libraries, check_state_folder

SCHEMA_VERSION = 1

# What vLLM calls its processes below the server.
_ENGINE_TITLE = "VLLM::"

# True of healthy hosts too: no GPU means the CPU build, held memory is counted by the plan.
_NOTES = frozenset({"gpu-unprobed", "gpu-no-driver", "gpu-memory-held", "gpu-power-capped", "files-few"})


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorCheck:
    """One check; ``exit_code`` is 0 when it passed, else that of the error that ``serve`` would end with."""

    name: str
    detail: str
    exit_code: int = 0
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorReport:
    """Every check of one run."""

    checks: tuple[DoctorCheck, ...]

    @property
    def exit_code(self) -> int:
        """0, or the exit code of the first check that failed."""
        return next((check.exit_code for check in self.checks if check.exit_code), 0)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values with ``schema_version``."""
        return {"schema_version": SCHEMA_VERSION, "exit_code": self.exit_code, **asdict(self)}


def doctor(
    *,
    model: str | None = None,
    revision: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    state_dir: Path | None = None,
    probe_hardware: Callable[[], HardwareReport] = probe,
) -> DoctorReport:
    """Check build, hardware, port, keys and folders; never raises for a fault that it can report.

    With ``model``, a folder or a hub id at ``revision``, also whether it can be had and fits.
    """
    from decideploy.serve.stages import state_folder  # noqa: PLC0415

    hardware = probe_hardware()
    return DoctorReport(
        checks=(
            _guarded("build", _build),
            _hardware(hardware),
            _guarded("GPU holders", lambda: _holders(hardware)),
            _guarded("port", lambda: _port(host, port)),
            _guarded("API keys", _api_keys),
            _guarded("state folder", lambda: check_state_folder(state_folder(state_dir))),
            *_model_checks(model, revision, hardware),
            _kernel_tests(hardware, state_dir),
            _last_starts(state_dir),
        )
    )


def _model_checks(
    model: str | None, revision: str | None, hardware: HardwareReport
) -> tuple[DoctorCheck, ...]:
    from decideploy.artifacts import check_access  # noqa: PLC0415

    if model is None:
        return ()
    access = _guarded("model", lambda: check_access(model, revision=revision))
    if not Path(model).expanduser().is_dir():
        return (access,)
    return access, _guarded("plan", lambda: _plan(Path(model).expanduser(), hardware))


def _plan(model: Path, hardware: HardwareReport) -> str:
    """Whether the model fits what the machine, and the cgroup around it, has free."""
    from decideploy.artifacts import verify  # noqa: PLC0415
    from decideploy.plan import plan  # noqa: PLC0415

    verification = verify(model)
    verification.raise_for_issues()
    launch = plan(verification.known_facts(), hardware)
    return f"{launch.memory.used_bytes / 1024**3:.2f} GiB and the KV cache fit on {launch.device}"


def _holders(report: HardwareReport) -> str:
    """That no engine whose server has died still holds a GPU."""
    held = {holder.pid for gpu in report.visible_gpus for holder in gpu.holders.value or ()}
    if stale := sorted(filter(_is_orphaned_engine, held)):
        raise ProbeError(
            f"engines without a server hold GPU memory: process {', '.join(map(str, stale))}",
            where="NVML, /proc",
            next_step=f"end them: kill {' '.join(map(str, stale))}",
        )
    return f"{len(held)} processes, none of them left over" if held else "none"


def _is_orphaned_engine(pid: int) -> bool:
    """The engine's own processes are named so, and never children of init while their server lives."""
    try:
        process = psutil.Process(pid)
        return process.ppid() <= 1 and "".join(process.cmdline()[:1]).startswith(_ENGINE_TITLE)
    except psutil.Error:
        return False


def _guarded(name: str, check: Callable[[], str]) -> DoctorCheck:
    try:
        return DoctorCheck(name=name, detail=check())
    except Error as error:
        return DoctorCheck(
            name=name, detail=error.what, exit_code=error.exit_code, diagnostics=tuple(error.diagnostics())
        )


def _build() -> str:
    from decideploy.build import check_installed  # noqa: PLC0415

    installed = check_installed()
    check_libraries(installed.recipe)
    return f"vllm {installed.version}, every file as built"


def _hardware(report: HardwareReport) -> DoctorCheck:
    stopping = tuple(condition for condition in report.conditions if condition.code not in _NOTES)
    names = [str(gpu.name.value) for gpu in report.visible_gpus] or [f"{report.host.cores.value} CPU cores"]
    return DoctorCheck(
        name="hardware",
        detail=", ".join(names),
        exit_code=ProbeError.exit_code if stopping else 0,
        diagnostics=report.conditions,
    )


def _port(host: str, port: int) -> str:
    check_port(host, port)
    return f"{host}:{port} is free"


def _api_keys() -> str:
    from decideploy.gateway.keys import KEYS_VARIABLE, read_keys  # noqa: PLC0415

    keys = read_keys(None)
    return f"{len(keys)} in {KEYS_VARIABLE}" if keys else "none: whoever reaches the server may ask"


def _kernel_tests(report: HardwareReport, state_dir: Path | None) -> DoctorCheck:
    """What the last numeric test of the expert kernels found on each GPU: told, as it runs again when due."""
    from decideploy.serve.kernel_trials import read_tests  # noqa: PLC0415
    from decideploy.serve.stages import state_folder  # noqa: PLC0415

    last = {record.key.uuid: record for record in read_tests(state_folder(state_dir))}
    details, diagnostics = [], []
    for gpu in report.visible_gpus:
        record = last.get(gpu.uuid.value or "")
        if record is None:
            details.append(f"GPU {gpu.index}: not tested")
            continue
        due = "" if record.key.driver == report.driver_version.value else ", by another driver"
        found = "; ".join(map(str, record.trials)) or "no kernel gave numbers"
        details.append(f"GPU {gpu.index}: {found} ({record.time:%Y-%m-%d %H:%M}{due})")
        diagnostics += [
            Diagnostic(
                code=f"kernel-{trial.verdict}",
                what=f"GPU {gpu.index}: {trial.backend} {trial.why}",
                where=f"test of {record.time:%Y-%m-%d %H:%M}",
                next_step="serve takes the next kernel; `decideploy probe` tests again",
            )
            for trial in record.trials
            if trial.verdict != "right"
        ]
    return DoctorCheck(
        name="expert kernels",
        detail="; ".join(details) or "no GPU is visible",
        diagnostics=tuple(diagnostics),
    )


def _last_starts(state_dir: Path | None) -> DoctorCheck:
    """Whether the last start of each device took the planned expert kernel: told, as the next may differ."""
    from decideploy.plan.starts import read_records, starts_folder  # noqa: PLC0415
    from decideploy.serve.stages import state_folder  # noqa: PLC0415

    try:
        records = read_records(starts_folder(state_folder(state_dir)))
    except ConfigError as error:
        return DoctorCheck(name="last starts", detail=error.what, diagnostics=tuple(error.diagnostics()))
    last = {record.correction.device: record for record in records}
    return DoctorCheck(
        name="last starts",
        detail=f"{len(records)} recorded" if records else "none recorded",
        diagnostics=tuple(
            Diagnostic(
                code="moe-backend-differs",
                what=f"{device}: planned the {record.planned_kernel} expert kernel, "
                f"the engine took {record.observed_kernel}",
                where=f"start of {record.time:%Y-%m-%d %H:%M}",
                next_step="install the patched wheel of `decideploy build`, or start with --strict-kernel",
            )
            for device, record in last.items()
            if record.kernel_differs
        ),
    )


def print_doctor(report: DoctorReport, console: Console | None = None) -> None:
    """Print one row a check, then every diagnostic with its remedy."""
    console = console or Console()
    table = Table("check", "result", "detail", title="What serve needs")
    for check in report.checks:
        table.add_row(check.name, _verdict(check), escape(check.detail))
    console.print(table)
    for check in report.checks:
        for diagnostic in check.diagnostics:
            console.print(str(diagnostic), markup=False, highlight=False, soft_wrap=True)


def _verdict(check: DoctorCheck) -> str:
    if check.exit_code:
        return "[red]fault[/]"
    return "[yellow]warning[/]" if check.diagnostics else "[green]fine[/]"
