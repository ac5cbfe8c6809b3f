import sys
from dataclasses import replace
from pathlib import Path

import pytest

from decideploy.errors import ConfigError
from decideploy.hardware import HardwareReport, card_report
from decideploy.plan import Workload, plan
from decideploy.serve.replicas import Share, shares

sys.path.insert(0, str(Path(__file__).parents[1] / "plan"))
from plan_facts import GIB, facts_26b, host, known, unknown


def box(count: int, **changes: object) -> HardwareReport:
    report = card_report("h200")
    (gpu,) = report.gpus
    gpus = tuple(
        replace(gpu, **{"index": 2 * number, "uuid": known(f"GPU-{number}"), **changes})
        for number in range(count)
    )
    return replace(report, gpus=gpus)


def shown(share: Share) -> str:
    """What the engine of a replica is shown, by the plan of its share."""
    env = plan(facts_26b(), share.hardware, workload=Workload(gpu_index=share.gpu_index)).env | share.env
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    return env["CUDA_VISIBLE_DEVICES"]


def test_each_replica_sees_one_gpu() -> None:
    found = shares(box(3), "auto", cores=range(8))
    assert [share.label for share in found] == ["GPU 0", "GPU 2", "GPU 4"]
    assert [shown(share) for share in found] == [f"GPU-{number}" for number in range(3)]
    assert [[gpu.index for gpu in share.hardware.gpus] for share in found] == [[0], [2], [4]]
    assert [share.gpu_index for share in shares(box(3), 2, cores=range(8))] == [0, 2]


def test_hidden_gpus_are_left_alone() -> None:
    report = box(3)
    hidden = replace(report, gpus=(replace(report.gpus[0], visible=False), *report.gpus[1:]))
    assert [share.gpu_index for share in shares(hidden, "auto", cores=range(8))] == [2, 4]


def test_without_an_id_the_order_of_the_probe_holds() -> None:
    (share,) = shares(box(1, uuid=unknown("test")), "auto", cores=range(8))
    assert shown(share) == "0"


def test_cores_and_memory_are_divided() -> None:
    report = HardwareReport(host=host(31 * GIB), driver_version=unknown("test"), cuda_version=unknown("test"))
    found = shares(report, 3, cores=(7, 1, 2, 3, 5))
    assert [share.env["VLLM_CPU_OMP_THREADS_BIND"] for share in found] == ["1", "2,3", "5,7"]
    assert {share.hardware.host.ram_available_bytes.value for share in found} == {31 * GIB // 3}
    assert report.host.ram_available_bytes.value == 31 * GIB


def test_a_cgroups_limit_is_divided_too() -> None:
    limited = host(31 * GIB, cgroup_limit_bytes=known(10 * GIB), cgroup_used_bytes=known(2 * GIB))
    report = HardwareReport(host=limited, driver_version=unknown("test"), cuda_version=unknown("test"))
    found = shares(report, 2, cores=range(4))
    assert {share.hardware.host.ram_available_bytes.value for share in found} == {4 * GIB}


@pytest.mark.parametrize(
    ("report", "count", "what", "next_step"),
    [
        (box(2), 3, "3 replicas need 3 GPUs, 2 can be used", "ask for 2 or auto"),
        (box(2, mig=known("slice")), "auto", "cut into slices", "-mig 0"),
        (replace(box(1), gpus=()), "auto", "no GPU is visible", "up to the 4 cores"),
        (replace(box(1), gpus=()), 5, "5 replicas need 5 cores, 4 can be used", "ask for 4"),
    ],
)
def test_what_cannot_be_shared_is_told(report: HardwareReport, count: int, what: str, next_step: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        shares(report, count, cores=range(4))
    assert "--replicas" in caught.value.where
    assert next_step in caught.value.next_step
