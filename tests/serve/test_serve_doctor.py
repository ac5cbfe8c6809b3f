import json
import socket
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from rich.console import Console
from waiting import free_port

import decideploy.build
from decideploy.errors import Diagnostic, IntegrityError
from decideploy.hardware import HardwareReport, Holder, KernelTrial, Reading, card_report
from decideploy.plan import Correction, StartRecord, append_record, starts_folder
from decideploy.serve import DoctorReport, doctor, print_doctor
from decideploy.serve.kernel_trials import KernelTestRecord, TrialKey, kernel_tests_folder


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        decideploy.build, "check_installed", lambda: SimpleNamespace(version="0.30.0+cpu", recipe="cpu")
    )


def examine(tmp_path: Path, *codes: str, port: int | None = None) -> DoctorReport:
    port = free_port() if port is None else port
    conditions = tuple(Diagnostic(code=code, what=code, next_step="do it") for code in codes)
    report: HardwareReport = replace(card_report("h100"), conditions=conditions)
    return doctor(port=port, state_dir=tmp_path, probe_hardware=lambda: report)


def test_healthy_host(tmp_path: Path) -> None:
    report = examine(tmp_path, "gpu-memory-held")
    assert report.exit_code == 0
    assert json.loads(json.dumps(report.to_dict()))["schema_version"] == 1


def test_every_fault_is_reported_and_the_first_gives_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong() -> None:
        raise IntegrityError("files differ", next_step="install again")

    monkeypatch.setattr(decideploy.build, "check_installed", wrong)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        report = examine(tmp_path, "shm-small", port=other.getsockname()[1])
    assert [check.exit_code for check in report.checks] == [3, 6, 0, 2, 0, 0, 0, 0]
    assert report.exit_code == 3
    console = Console(width=200)
    with console.capture() as capture:
        print_doctor(report, console)
    assert "install again" in capture.get()
    assert "shm-small" in capture.get()


def test_unwritable_state_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    state = tmp_path / "file" / "state"
    report = doctor(port=free_port(), state_dir=state, probe_hardware=lambda: card_report("h100"))
    (check,) = [check for check in report.checks if check.exit_code]
    assert (check.name, check.exit_code) == ("state folder", 2)


def test_port_that_does_not_exist_is_told(tmp_path: Path) -> None:
    report = examine(tmp_path, port=0)
    assert [check.name for check in report.checks if check.exit_code] == ["port"]


def test_faulty_keys_are_named_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECIDEPLOY_API_KEYS", "tiny-key")
    (check,) = [check for check in examine(tmp_path).checks if check.name == "API keys"]
    assert check.exit_code == 2
    assert "tiny-key" not in str(check)


def test_a_start_with_another_kernel_is_a_warning(tmp_path: Path) -> None:
    setting = Correction(
        device="NVIDIA H200",
        model="m",
        moe_backend="humming",
        images=True,
        max_num_seqs=64,
        max_num_batched_tokens=4096,
    )
    record = StartRecord(
        time=datetime(2026, 11, 30, tzinfo=UTC),
        correction=setting,
        figures=(),
        planned_kernel="humming",
        observed_kernel="MARLIN",
        kernel_differs=True,
    )
    append_record(record, starts_folder(tmp_path))
    report = examine(tmp_path)
    console = Console(width=200)
    with console.capture() as capture:
        print_doctor(report, console)
    assert report.exit_code == 0
    assert "warning" in capture.get()
    assert "planned the humming expert kernel, the engine took MARLIN" in capture.get()
    append_record(
        record.model_copy(update={"observed_kernel": "HUMMING", "kernel_differs": False}),
        starts_folder(tmp_path),
    )
    assert examine(tmp_path).checks[-1].diagnostics == ()


def kernel_record(uuid: str, *trials: KernelTrial, day: int = 1, driver: str = "580.65") -> KernelTestRecord:
    key = TrialKey(
        uuid=uuid, driver=driver, build_sha256="0", packages={}, decideploy="1", order=(f"order {day}",)
    )
    return KernelTestRecord(time=datetime(2026, 11, day, tzinfo=UTC), key=key, trials=trials)


WRONG = KernelTrial(
    backend="humming", verdict="wrong", relative_error=0.5, bound=0.02, seconds=9, why="gives wrong numbers"
)
RIGHT = KernelTrial(backend="marlin", verdict="right", relative_error=0.008, bound=0.02, seconds=9)


def test_the_last_kernel_test_of_each_gpu_is_shown(tmp_path: Path) -> None:
    folder = kernel_tests_folder(tmp_path)
    folder.mkdir(parents=True)
    records = (
        kernel_record("GPU-0", RIGHT),
        kernel_record("GPU-0", WRONG, RIGHT, day=2),
        kernel_record("GPU-1", driver="570.1"),
        kernel_record("GPU-of-another-host", WRONG),
    )
    for number, record in enumerate(records):
        (folder / f"{number}.json").write_text(record.model_dump_json())
    (folder / "broken.json").write_text("{")
    card = card_report("h100")
    gpus = tuple(
        replace(card.gpus[0], index=index, uuid=Reading(value=f"GPU-{index}", source="NVML"))
        for index in range(3)
    )
    driver = Reading(value="580.65", source="NVML")
    hardware = replace(card, gpus=gpus, driver_version=driver)
    report = doctor(port=free_port(), state_dir=tmp_path, probe_hardware=lambda: hardware)
    (check,) = [check for check in report.checks if check.name == "expert kernels"]
    first, other = check.detail.split("; GPU 1: ")
    assert first == (
        "GPU 0: humming: wrong in 9.0 s, it gives wrong numbers; "
        "marlin: right, 0.0080 of 0.02 in 9.0 s (2026-11-02 00:00)"
    )
    assert other == "no kernel gave numbers (2026-11-01 00:00, by another driver); GPU 2: not tested"
    assert [diagnostic.code for diagnostic in check.diagnostics] == ["kernel-wrong"]
    assert check.exit_code == 0


@pytest.mark.parametrize(
    ("title", "parent", "status"),
    [("VLLM::EngineCore", 1, 6), ("VLLM::EngineCore", 700, 0), ("python", 1, 0)],
)
def test_an_engine_whose_server_died_is_told(
    title: str, parent: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = SimpleNamespace(ppid=lambda: parent, cmdline=lambda: [title])
    monkeypatch.setattr(psutil, "Process", lambda _pid: process)
    card = card_report("h100")
    held = replace(card.gpus[0], holders=Reading(value=(Holder(pid=4711),), source="NVML"))
    hardware = replace(card, gpus=(held,))
    report = doctor(port=free_port(), state_dir=tmp_path, probe_hardware=lambda: hardware)
    (check,) = [check for check in report.checks if check.name == "GPU holders"]
    assert check.exit_code == status
    assert ("kill 4711" in str(check.diagnostics)) is (status == 6)


@pytest.mark.parametrize(("limit_bytes", "status"), [(1 << 20, 7), (1 << 36, 0)])
def test_a_cgroup_limit_below_the_plan_is_told(
    limit_bytes: int, status: int, tmp_path: Path, demo_model: Path
) -> None:
    card = card_report("h100")
    known = {"ram_total_bytes": 1 << 36, "ram_available_bytes": 1 << 36, "cgroup_limit_bytes": limit_bytes}
    readings = {name: Reading(value=value, source="test") for name, value in known.items()}
    hardware = replace(card, gpus=(), host=replace(card.host, **readings))
    report = doctor(
        model=str(demo_model), port=free_port(), state_dir=tmp_path, probe_hardware=lambda: hardware
    )
    found = {check.name: check.exit_code for check in report.checks}
    assert (found["model"], found["plan"]) == (0, status)


def test_a_model_that_is_nowhere_is_told(tmp_path: Path) -> None:
    report = doctor(
        model="no-model", port=free_port(), state_dir=tmp_path, probe_hardware=lambda: card_report("h100")
    )
    assert [check.name for check in report.checks if check.exit_code] == ["model"]
