import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from plan_facts import GIB, cpu_report, facts_26b, facts_small, gpu_report
from rich.console import Console

from decideploy.errors import ConfigError
from decideploy.hardware import KernelTrial, Reading, SmokeTest
from decideploy.plan import (
    LaunchPlan,
    Observed,
    Workload,
    append_record,
    corrections,
    make_record,
    plan,
    print_reconciliation,
    reconcile,
)
from decideploy.plan.starts import read_records

NOW = datetime(2026, 11, 30, tzinfo=UTC)


@pytest.fixture
def launch() -> LaunchPlan:
    return plan(facts_26b(), gpu_report(80 * GIB))


def as_planned(launch: LaunchPlan, **changes: object) -> Observed:
    memory = launch.memory
    told = Observed(
        moe_backend="HUMMING",
        weights_bytes=memory.weights_bytes,
        kv_cache_bytes=memory.kv_cache_bytes,
        graph_bytes=memory.graph_bytes,
        init_s=20.5,
        startup_s=90.0,
    )
    return replace(told, **changes)


def codes(launch: LaunchPlan, observed: Observed) -> list[str]:
    return [difference.code for difference in reconcile(launch, observed).differences]


def test_a_start_as_planned_has_no_differences(launch: LaunchPlan) -> None:
    assert codes(launch, as_planned(launch)) == []
    assert codes(launch, Observed()) == []


def test_what_differs_is_named(launch: LaunchPlan) -> None:
    memory = launch.memory
    other = as_planned(
        launch,
        moe_backend="MARLIN",
        kv_cache_bytes=memory.kv_cache_bytes // 2,
        weights_bytes=memory.weights_bytes * 11 // 10,
    )
    assert codes(launch, other) == ["moe-backend-differs", "kv-cache-differs", "weights-differ"]
    assert reconcile(launch, other).kernel_differs


def test_less_kv_weighs_more_than_more_of_it(launch: LaunchPlan) -> None:
    planned = launch.memory.kv_cache_bytes
    assert codes(launch, as_planned(launch, kv_cache_bytes=round(planned * 0.97))) == ["kv-cache-differs"]
    assert codes(launch, as_planned(launch, kv_cache_bytes=round(planned * 1.03))) == []
    assert codes(launch, as_planned(launch, kv_cache_bytes=round(planned * 1.11))) == ["kv-cache-differs"]


def test_blocks_follow_from_the_capacity_that_the_engine_logs() -> None:
    launch = plan(facts_small(), cpu_report())
    reserved = launch.memory.kv_floor_bytes // launch.memory.kv_block_bytes - 1
    logged = int(launch.memory.kv_blocks / reserved * launch.max_model_len)
    found = reconcile(launch, Observed(kv_cache_tokens=logged)).figure("kv_blocks")
    assert found.observed == found.predicted == launch.memory.kv_blocks


def test_table_tells_what_was_not_told(launch: LaunchPlan) -> None:
    console = Console(width=120)
    with console.capture() as capture:
        print_reconciliation(reconcile(launch, as_planned(launch, graph_bytes=None)), console)
    text = capture.get()
    assert "not told" in text
    assert "+0.0%" in text
    assert "90.0 s" in text


def record(launch: LaunchPlan, observed: Observed, folder: Path) -> Path:
    return append_record(make_record(launch, observed, reconcile(launch, observed), NOW), folder)


def test_a_start_corrects_the_next_plan_of_that_card(launch: LaunchPlan, tmp_path: Path) -> None:
    memory = launch.memory
    seen = as_planned(
        launch, weights_bytes=memory.weights_bytes + GIB, kv_cache_bytes=memory.kv_cache_bytes + GIB
    )
    path = record(launch, seen, tmp_path)
    assert path.name == "test-card.jsonl"
    measured = corrections(tmp_path)
    again = plan(facts_26b(), gpu_report(80 * GIB), corrections=measured)
    assert reconcile(again, seen).figure("weights").error == 0
    assert reconcile(again, seen).figure("kv_cache").error == 0
    assert again.memory.used_bytes + again.memory.kv_cache_bytes <= again.memory.available_bytes
    # What was measured does not add up over starts.
    record(again, seen, tmp_path)
    third = plan(facts_26b(), gpu_report(80 * GIB), corrections=corrections(tmp_path))
    assert third.memory.kv_cache_bytes == again.memory.kv_cache_bytes


@pytest.mark.parametrize(
    "other",
    [
        {"facts": {"name": "another"}},
        {"workload": Workload(images=False)},
        {"workload": Workload(moe_backend="marlin")},
    ],
)
def test_a_start_corrects_no_plan_of_another_sort(
    launch: LaunchPlan, tmp_path: Path, other: dict[str, object]
) -> None:
    record(launch, as_planned(launch, weights_bytes=launch.memory.weights_bytes + GIB), tmp_path)
    facts = facts_26b(**other.get("facts", {}))
    options = {"workload": other.get("workload")}
    assert plan(facts, gpu_report(80 * GIB), **options, corrections=corrections(tmp_path)) == plan(
        facts, gpu_report(80 * GIB), **options
    )


def test_another_step_takes_the_measured_weights_alone(launch: LaunchPlan, tmp_path: Path) -> None:
    record(launch, as_planned(launch, weights_bytes=launch.memory.weights_bytes + GIB), tmp_path)
    wider = Workload(max_num_seqs=128)
    plain = plan(facts_26b(), gpu_report(80 * GIB), workload=wider)
    told = plan(facts_26b(), gpu_report(80 * GIB), workload=wider, corrections=corrections(tmp_path))
    assert told.memory.used_bytes - plain.memory.used_bytes == GIB


def test_a_start_tells_what_the_kernel_test_gave(tmp_path: Path) -> None:
    trial = KernelTrial(backend="humming", verdict="right", relative_error=0.008, bound=0.02, seconds=9)
    test = Reading(value=SmokeTest(gpu_index=0, trials=(trial,)), source="a small layer")
    tested = plan(facts_26b(), replace(gpu_report(80 * GIB), smoke_test=test))
    path = record(tested, as_planned(tested), tmp_path)
    (read,) = read_records(tmp_path)
    assert read.kernel_test == tested.kernel_test == test
    assert plan(facts_small(), cpu_report()).kernel_test.source == "not run: no GPU is used"
    assert "not NVFP4" in plan(facts_small(), gpu_report(24 * GIB)).kernel_test.source
    # Starts that were recorded before there was such a test are read all the same.
    document = json.loads(path.read_text())
    del document["kernel_test"]
    path.write_text(json.dumps(document) + "\n")
    (old,) = read_records(tmp_path)
    assert (old.kernel_test.value, old.kernel_test.source) == (None, "not recorded")


def test_the_largest_of_several_starts_counts(launch: LaunchPlan, tmp_path: Path) -> None:
    for more in (GIB, 3 * GIB, 2 * GIB):
        record(launch, Observed(weights_bytes=launch.memory.weights_bytes + more), tmp_path)
    told = plan(facts_26b(), gpu_report(80 * GIB), corrections=corrections(tmp_path))
    assert told.memory.used_bytes - launch.memory.used_bytes == 3 * GIB


def test_every_bad_line_is_named(launch: LaunchPlan, tmp_path: Path) -> None:
    path = record(launch, as_planned(launch), tmp_path)
    with path.open("a") as file:
        file.write('{"schema_version": 2}\nnot json\n')
    with pytest.raises(ConfigError) as caught:
        corrections(tmp_path)
    assert "test-card.jsonl:2" in caught.value.what
    assert "test-card.jsonl:3" in caught.value.what
    assert corrections(tmp_path / "nothing") == ()
