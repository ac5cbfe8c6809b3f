"""Everything that would stop ``serve``, found at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from decideploy.errors import ConfigError, Diagnostic, Error, ProbeError
from decideploy.hardware import HardwareReport, probe
from decideploy.hardware.probe import is_writable
from decideploy.serve.launch import check_port

SCHEMA_VERSION = 1

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
    host: str = "127.0.0.1",
    port: int = 8000,
    state_dir: Path | None = None,
    probe_hardware: Callable[[], HardwareReport] = probe,
) -> DoctorReport:
    """Check build, hardware, port, keys and folders; never raises for a fault that it can report."""
    return DoctorReport(
        checks=(
            _guarded("build", _build),
            _hardware(probe_hardware()),
            _guarded("port", lambda: _port(host, port)),
            _guarded("API keys", _api_keys),
            _guarded("state folder", lambda: _state_folder(state_dir)),
            _last_starts(state_dir),
        )
    )


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


def _state_folder(state_dir: Path | None) -> str:
    from decideploy.serve.stages import state_folder  # noqa: PLC0415

    folder = state_folder(state_dir)
    if not is_writable(folder):
        raise ConfigError(
            "the state folder cannot be written",
            where=str(folder),
            next_step="set DECIDEPLOY_HOME to a writable folder",
        )
    return f"{folder} is writable"


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
