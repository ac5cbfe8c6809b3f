import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from kernel_fakes import FakeKernels
from rich.console import Console
from waiting import until

from decideploy.hardware import HardwareReport, KernelTrial, card_report, load_report, print_report
from decideploy.hardware.smoke import Ended, not_tested, run_command, try_kernels

ORDER = ("humming", "marlin")


def tried(run: FakeKernels, order: tuple[str, ...] = ORDER, card: str = "h200") -> HardwareReport:
    report = card_report(card)
    return try_kernels(report, report.gpus[0], order, run=run)


def trials(report: HardwareReport) -> tuple[KernelTrial, ...]:
    assert report.smoke_test.value is not None
    return report.smoke_test.value.trials


def test_the_first_that_is_right_is_the_kernel_and_no_other_is_tried() -> None:
    run = FakeKernels()
    report = tried(run)
    (trial,) = trials(report)
    assert run.asked == ["humming"]
    assert (trial.verdict, trial.kernel, trial.relative_error, trial.bound) == ("right", "HUMMING", 0, 0.02)
    assert report.smoke_test.value is not None
    assert report.smoke_test.value.kernel == "humming"
    assert report.conditions == card_report("h200").conditions


@pytest.mark.parametrize(
    ("kind", "verdict", "why"),
    [
        ("wrong", "wrong", "relative error 1.000, at most 0.02"),
        ("nan", "wrong", "not finite"),
        ("other", "failed", "the engine took OTHER"),
        ("crash", "failed", "status 1: ValueError: no nvcc"),
        ("killed", "failed", "killed by signal 9"),
        ("timeout", "failed", "no numbers within 600 s"),
        ("silent", "failed", "status 0"),
    ],
)
def test_a_kernel_without_the_right_numbers_is_refused_and_the_next_is_tried(
    kind: str, verdict: str, why: str
) -> None:
    report = tried(FakeKernels({"humming": kind}))
    first, second = trials(report)
    assert (first.verdict, second.verdict) == (verdict, "right")
    assert why in first.why
    assert "humming" in report.refused_kernels(report.gpus[0])
    condition = report.conditions[-1]
    assert condition.code == f"kernel-{verdict}"
    assert why in condition.what
    assert "marlin is used" in condition.next_step


def test_no_kernel_may_be_right() -> None:
    report = tried(FakeKernels({"humming": "wrong", "marlin": "crash"}))
    assert report.smoke_test.value is not None
    assert report.smoke_test.value.kernel is None
    assert [condition.code for condition in report.conditions[-2:]] == ["kernel-wrong", "kernel-failed"]
    assert all("no kernel is left" in condition.next_step for condition in report.conditions[-2:])
    assert report.refused_kernels(report.gpus[0]).keys() == {"humming", "marlin"}


def test_where_no_kernel_gives_numbers_none_is_refused() -> None:
    report = tried(FakeKernels({"humming": "crash", "marlin": "timeout"}))
    assert report.refused_kernels(report.gpus[0]) == {}
    first, second = report.conditions[-2:]
    assert (first.code, second.code) == ("kernel-failed", "kernel-failed")
    assert "the first is used untested" in first.next_step


def test_four_bit_activations_have_their_own_bound() -> None:
    (trial,) = trials(tried(FakeKernels(), ("cutlass",), "b200"))
    assert trial.bound == 0.3


def test_a_refusal_holds_for_the_gpu_that_was_tested() -> None:
    report = tried(FakeKernels({"humming": "wrong"}))
    assert report.refused_kernels(replace(report.gpus[0], index=1)) == {}


def test_known_trials_are_not_repeated() -> None:
    run, report = FakeKernels(), card_report("h200")
    known = KernelTrial(backend="humming", verdict="wrong", relative_error=0.5, bound=0.02, seconds=9)
    tested = try_kernels(report, report.gpus[0], ORDER, known={"humming": known}, run=run)
    assert run.asked == ["marlin"]
    assert trials(tested)[0] == known


def test_a_tested_report_survives_json_and_is_shown(tmp_path: Path) -> None:
    report = tried(FakeKernels({"humming": "nan"}))
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(report.to_dict(), allow_nan=False))
    assert load_report(path) == report
    console = Console(width=300, record=True)
    with console.capture() as capture:
        print_report(report, console)
    text = capture.get()
    assert "humming: wrong" in text
    assert "marlin: right, 0.0000 of 0.02" in text


def test_what_was_not_tested_says_why() -> None:
    report = not_tested(card_report("h200"), "no GPU is visible")
    assert report.smoke_test.value is None
    assert report.smoke_test.source == "not run: no GPU is visible"
    assert report.refused_kernels(report.gpus[0]) == {}


def test_a_command_tells_how_it_ended() -> None:
    code = "import os, sys; sys.exit(os.environ['SAID'])"
    ended = run_command((sys.executable, "-c", code), {"SAID": "no"})
    assert (ended.status, ended.stderr) == (1, "no\n")


def test_past_its_limit_a_command_is_killed() -> None:
    assert run_command((sys.executable, "-c", "import time; time.sleep(600)"), os.environ, limit_s=0.1) == (
        Ended(status=None, stderr="")
    )


def test_nothing_that_a_command_started_outlives_it(tmp_path: Path) -> None:
    code = "\n".join(
        (
            "import pathlib, subprocess, sys",
            "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])",
            "pathlib.Path(sys.argv[1]).write_text(str(child.pid))",
        )
    )
    # Without -W, a warning of the child that is still running would be all that it says.
    ended = run_command((sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "pid")), os.environ)
    assert ended == Ended(status=0, stderr="")
    child = int((tmp_path / "pid").read_text())
    until(lambda: not _runs(child))


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.integration
def test_the_program_reaches_the_choice_of_the_installed_engine() -> None:
    pytest.importorskip("vllm")
    report = card_report("h200")
    (trial,) = trials(try_kernels(report, report.gpus[0], ("marlin",)))
    assert "NvFp4 MoE backend 'MARLIN' does not support" in trial.why
    assert "current device cpu" in trial.why
