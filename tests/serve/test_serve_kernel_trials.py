from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernel_fakes import FakeKernels

from decideploy.errors import ConfigError, ProbeError
from decideploy.hardware import HardwareReport, Reading, card_report
from decideploy.plan import Workload
from decideploy.serve.kernel_trials import kernel_tests_folder, with_kernel_test

BUILD: Any = SimpleNamespace(recipe="cuda", files_sha256="a" * 64)


def known(value: Any) -> Reading[Any]:
    return Reading(value=value, source="test")


@pytest.fixture
def report() -> HardwareReport:
    """An H200 that can be told from another."""
    card = card_report("h200")
    gpu = replace(card.gpus[0], uuid=known("GPU-1"))
    host = replace(card.host, packages=known({"humming-kernels": "0.1.12"}))
    return replace(card, gpus=(gpu,), host=host, driver_version=known("580.82"))


@pytest.fixture
def run_test(tmp_path: Path, report: HardwareReport) -> Any:
    """A function that tests with a fake, and returns the backends whose process ran."""

    def tested(run: FakeKernels, changed: HardwareReport = report, **changes: Any) -> HardwareReport:
        build = changes.pop("build", BUILD)
        workload = changes.pop("workload", Workload())
        return with_kernel_test(changed, build, workload, tmp_path, run=run, **changes)

    return tested


def asked(run_test: Any, *args: Any, **changes: Any) -> list[str]:
    run = FakeKernels()
    run_test(run, *args, **changes)
    return run.asked


def test_a_later_start_does_not_pay_again(run_test: Any) -> None:
    first, second = FakeKernels({"humming": "wrong"}), FakeKernels()
    found = run_test(first).smoke_test
    assert first.asked == ["humming", "marlin"]
    assert run_test(second).smoke_test == found
    assert second.asked == []


def test_a_remembered_refusal_is_told_again(run_test: Any) -> None:
    run_test(FakeKernels({"humming": "wrong"}))
    assert [condition.code for condition in run_test(FakeKernels()).conditions] == ["kernel-wrong"]


def test_another_card_driver_build_package_or_order_is_tested_anew(
    run_test: Any, report: HardwareReport
) -> None:
    (gpu,) = report.gpus
    changed = (
        replace(report, gpus=(replace(gpu, uuid=known("GPU-2")),)),
        replace(report, driver_version=known("590.1")),
        replace(report, host=replace(report.host, packages=known({"humming-kernels": "0.1.13"}))),
    )
    assert asked(run_test) == ["humming"]
    for other in changed:
        assert asked(run_test, other) == ["humming"]
    assert asked(run_test, build=SimpleNamespace(recipe="cuda", files_sha256="b" * 64)) == ["humming"]
    assert asked(run_test, workload=Workload(moe_backend="marlin")) == ["marlin"]
    assert asked(run_test) == []


def test_again_repeats_and_replaces_what_was_remembered(run_test: Any) -> None:
    run_test(FakeKernels({"humming": "wrong"}))
    assert asked(run_test, again=True) == ["humming"]
    assert run_test(FakeKernels()).smoke_test.value.kernel == "humming"


def test_what_failed_is_tried_again_and_what_gave_numbers_is_not(run_test: Any) -> None:
    run_test(FakeKernels({"humming": "timeout"}))
    run = FakeKernels({"humming": "timeout"})
    assert run_test(run).smoke_test.value.kernel == "marlin"
    assert run.asked == ["humming"]


def test_a_card_that_cannot_be_told_from_another_is_not_remembered(
    run_test: Any, report: HardwareReport
) -> None:
    nameless = replace(report, gpus=(replace(report.gpus[0], uuid=known(None)),))
    assert asked(run_test, nameless) == asked(run_test, nameless) == ["humming"]


@pytest.mark.parametrize("text", ["{", "\udcff", '{"schema_version": 9}'])
def test_a_record_that_cannot_be_read_is_replaced(run_test: Any, tmp_path: Path, text: str) -> None:
    run_test(FakeKernels())
    (path,) = kernel_tests_folder(tmp_path).iterdir()
    path.write_text(text, errors="surrogateescape")
    assert asked(run_test) == ["humming"]
    assert asked(run_test) == []


def test_a_folder_that_cannot_be_written_is_an_error(report: HardwareReport, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        with_kernel_test(report, BUILD, Workload(), tmp_path / "file", run=FakeKernels())


def test_a_package_that_is_missing_takes_its_kernel_out(run_test: Any, report: HardwareReport) -> None:
    bare = replace(report, host=replace(report.host, packages=known({"humming-kernels": None})))
    assert asked(run_test, bare) == ["marlin"]


def test_the_processes_get_the_caches_the_card_and_the_dtype_of_the_engine(
    run_test: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    run, turing = FakeKernels(), card_report("t4")
    run_test(run, turing, workload=Workload(gpu_index=0, cache_root=tmp_path / "cache"))
    (environment,) = run.environments
    assert environment["TRITON_CACHE_DIR"] == str(tmp_path / "cache" / "triton")
    assert environment["CUDA_VISIBLE_DEVICES"] == "0"
    assert "PYTHONPATH" not in environment
    assert run.dtypes == ["float16"]


def test_what_cannot_be_tested_says_why(run_test: Any, report: HardwareReport) -> None:
    run = FakeKernels()
    cpu: Any = SimpleNamespace(recipe="cpu", files_sha256="")
    unread = replace(report, gpus=(replace(report.gpus[0], compute_capability=known(None)),))
    assert run_test(run, build=cpu).smoke_test.source == "not run: the cpu build is installed"
    assert run_test(run, replace(report, gpus=())).smoke_test.source == "not run: no GPU is visible"
    assert "compute capability of GPU 0 is unknown" in run_test(run, unread).smoke_test.source
    assert run.asked == []


def test_a_card_without_a_path_is_an_error(run_test: Any, report: HardwareReport) -> None:
    old = replace(report, gpus=(replace(report.gpus[0], compute_capability=known("6.1")),))
    with pytest.raises(ProbeError, match="no FP4 path"):
        run_test(FakeKernels(), old)
