from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from decideploy.gateway.start import StartMetrics, read_start
from decideploy.hardware import KernelTrial, Reading, SmokeTest
from decideploy.plan import Correction, StartRecord
from decideploy.plan.reconcile import Figure
from decideploy.serve.assembly import kernel_info


def record() -> StartRecord:
    setting = Correction(
        device="NVIDIA H200",
        model="m",
        moe_backend="humming",
        images=True,
        max_num_seqs=64,
        max_num_batched_tokens=4096,
    )
    figures = (
        Figure(name="kv_blocks", unit="blocks", predicted=100, observed=99),
        Figure(name="startup", unit="seconds", predicted=None, observed=12.5),
    )
    return StartRecord(
        time=datetime(2026, 11, 30, tzinfo=UTC),
        correction=setting,
        figures=figures,
        planned_kernel="humming",
        observed_kernel="MARLIN",
        kernel_differs=True,
    )


def test_metrics_come_with_the_record(tmp_path: Path) -> None:
    path, registry = tmp_path / "start.json", CollectorRegistry()
    metrics = StartMetrics(registry)
    metrics.source = lambda: read_start(path)
    assert generate_latest(registry) == b""
    path.write_text(record().model_dump_json())
    told = generate_latest(registry).decode()
    assert 'decideploy_start_figure{figure="kv_blocks",source="planned",unit="blocks"} 100.0' in told
    assert 'decideploy_start_figure{figure="startup",source="observed",unit="seconds"} 12.5' in told
    assert 'figure="startup",source="planned"' not in told
    assert 'decideploy_kernel_mismatch{observed="MARLIN",planned="humming"} 1.0' in told


def test_info_tells_the_kernel_test_of_the_start(tmp_path: Path) -> None:
    path = tmp_path / "start.json"
    path.write_text(record().model_dump_json())
    told = kernel_info(path)
    assert told is not None
    assert (told.planned, told.mismatch, told.test.source) == ("humming", True, "not recorded")
    assert (told.test.kernel, told.test.trials) == (None, ())
    trials = (
        KernelTrial(
            backend="humming", verdict="wrong", relative_error=None, bound=0.02, seconds=9, why="not finite"
        ),
        KernelTrial(backend="marlin", verdict="right", relative_error=0.008, bound=0.02, seconds=9),
    )
    test = Reading(value=SmokeTest(gpu_index=0, trials=trials), source="a small layer")
    path.write_text(record().model_copy(update={"kernel_test": test}).model_dump_json())
    told = kernel_info(path)
    assert told is not None
    assert told.test.model_dump() == {
        "source": "a small layer",
        "kernel": "marlin",
        "trials": (
            {
                "backend": "humming",
                "verdict": "wrong",
                "relative_error": None,
                "bound": 0.02,
                "why": "not finite",
            },
            {"backend": "marlin", "verdict": "right", "relative_error": 0.008, "bound": 0.02, "why": ""},
        ),
    }
    assert kernel_info(tmp_path / "nothing.json") is None


def test_no_record_is_no_start(tmp_path: Path) -> None:
    assert read_start(None) is None
    assert read_start(tmp_path / "start.json") is None
