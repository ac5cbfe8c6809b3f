import json
import os
import resource
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvml_machines import CUT, MACHINES, Machine

from decideploy.errors import ProbeError
from decideploy.hardware import HardwareReport, kernel_path, known_cards, load_report, probe
from decideploy.hardware.kernels import is_unified_memory
from decideploy.plan.sizing import gpu_memory

GIB = 1024**3


def read(machine: Machine, root: Path, **environ: str) -> HardwareReport:
    return probe(nvml=machine, root=root, environ={"HOME": str(root), **environ})  # type: ignore[arg-type]


def with_device(machine: Machine, **changes: Any) -> Machine:
    (device,) = machine.devices
    return replace(machine, devices=(replace(device, **changes),))


def codes(report: HardwareReport) -> set[str]:
    return {condition.code for condition in report.conditions if condition.code.startswith("gpu")}


@pytest.mark.parametrize("key", MACHINES)
def test_a_card_is_read_as_the_table_of_cards_has_it(key: str, tmp_path: Path) -> None:
    report, card = read(MACHINES[key], tmp_path), known_cards()[key]
    (gpu,) = report.gpus
    assert report.platform == "cuda"
    assert gpu.compute_capability.value == card.compute_capability
    assert kernel_path(card.compute_capability).backend
    assert codes(report) == set()


def test_the_recorded_h200_is_read_whole(tmp_path: Path) -> None:
    assert [key for key, machine in MACHINES.items() if machine.recorded] == ["h200"]
    (gpu,) = read(MACHINES["h200"], tmp_path).gpus
    assert gpu.total_bytes.value == 150_109_880_320
    assert (gpu.ecc.value, gpu.mig.value, gpu.power_limit_w.value) == (True, "off", 700)
    assert (gpu.pcie.value, gpu.nvlinks.value) == ("5.0 x16 (card: 5.0 x16)", 18)
    assert gpu.pcie.source == "nvmlDeviceGetCurrPcieLink*"


def test_what_a_card_does_not_tell_is_unknown_in_its_words(tmp_path: Path) -> None:
    (gpu,) = read(MACHINES["rtx3090"], tmp_path).gpus
    for reading in (gpu.mig, gpu.ecc, gpu.nvlinks):
        assert reading.value is None
        assert reading.source.endswith("Not Supported")
    assert gpu.power_limit_w.value == 350


def test_unified_memory_is_that_of_the_host(tmp_path: Path) -> None:
    report = read(MACHINES["spark"], tmp_path)
    (gpu,) = report.gpus
    assert gpu.total_bytes.value is None
    assert is_unified_memory(gpu.compute_capability.value)
    total, free, source = gpu_memory(gpu, report)
    assert total == report.host.ram_total_bytes.value
    assert free <= total
    assert "unified" in source
    with pytest.raises(ProbeError):
        gpu_memory(read(with_device(MACHINES["h200"], total=None), tmp_path).gpus[0], report)


def test_the_slices_of_a_cut_card_are_what_the_engine_can_take(tmp_path: Path) -> None:
    report = read(CUT, tmp_path)
    whole, part = report.gpus
    assert (whole.visible, whole.mig.value) == (False, "on")
    assert (part.visible, part.mig.value, part.index) == (True, "slice", 0)
    assert part.total_bytes.value == 40_192 * 1024**2
    assert codes(report) == set()
    assert [gpu.uuid.value for gpu in read(CUT, tmp_path, CUDA_VISIBLE_DEVICES="MIG-1").visible_gpus] == [
        "MIG-1"
    ]


def test_a_cut_card_without_slices_is_a_condition(tmp_path: Path) -> None:
    report = read(with_device(CUT, slices=()), tmp_path)
    assert report.platform == "cpu"
    assert codes(report) == {"gpu-mig-empty"}


def test_holders_have_name_and_size(tmp_path: Path) -> None:
    holders = (
        SimpleNamespace(pid=os.getpid(), usedGpuMemory=3 * GIB),
        SimpleNamespace(pid=2**22 + 1, usedGpuMemory=None),
    )
    report = read(with_device(MACHINES["h200"], holders=holders, used=3 * GIB), tmp_path)
    (gpu,) = report.gpus
    assert gpu.holders.value is not None
    own, other = gpu.holders.value
    assert own.name
    assert own.size_bytes == 3 * GIB
    assert (other.name, other.size_bytes) == (None, None)
    (condition,) = [c for c in report.conditions if c.code == "gpu-memory-held"]
    assert "3.00 GiB" in condition.what
    assert "unknown name, unknown size" in condition.what


def test_a_power_cap_is_told(tmp_path: Path) -> None:
    report = read(with_device(MACHINES["rtx4090"], power_w=250), tmp_path)
    assert codes(report) == {"gpu-power-capped"}


def test_a_gpu_that_falls_off_the_bus_while_it_is_read_leaves_the_others(tmp_path: Path) -> None:
    good = MACHINES["h100"].devices[0]
    report = read(Machine(devices=(replace(good, lost=True), replace(good, uuid="GPU-1"))), tmp_path)
    lost, kept = report.gpus
    assert lost.total_bytes.value is None
    assert kept.total_bytes.value
    (condition,) = [c for c in report.conditions if c.code == "gpu-lost"]
    assert condition.where.startswith("GPU 0")
    assert "reboot" in condition.next_step


def test_an_older_nvidia_ml_py_leaves_values_unknown(tmp_path: Path) -> None:
    class Old:
        def __getattr__(self, name: str) -> Any:
            if "NvLink" in name or name == "nvmlMemory_v2":
                raise AttributeError(name)
            return getattr(MACHINES["h200"], name)

    (gpu,) = read(Old(), tmp_path).gpus  # type: ignore[arg-type]
    assert gpu.nvlinks.value is None
    assert "nvidia-ml-py" in gpu.nvlinks.source
    assert gpu.total_bytes.value == 150_754_820_096


def test_every_machine_survives_its_file(tmp_path: Path) -> None:
    for machine in (*MACHINES.values(), CUT):
        report = read(machine, tmp_path)
        path = tmp_path / "probe.json"
        path.write_text(json.dumps(report.to_dict()))
        assert load_report(path) == report


@pytest.mark.parametrize(
    ("files", "environ", "kind"),
    [
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({}, {"container": "lxc"}, "lxc"),
        ({"proc/1/cgroup": "0::/kubepods/pod1"}, {}, "container"),
        ({"proc/1/cgroup": "0::/init.scope"}, {}, "none"),
        ({}, {}, None),
    ],
)
def test_container_or_bare(
    tmp_path: Path, files: dict[str, str], environ: dict[str, str], kind: str | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    host = read(MACHINES["h200"], tmp_path, **environ).host
    assert host.container.value == kind
    assert host.container.source
    assert host.disk_free_bytes.known
    assert host.ulimits.value is not None
    assert set(host.ulimits.value) == {"open files", "locked bytes"}


def test_few_open_files_are_a_condition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    report = read(MACHINES["h200"], tmp_path)
    assert "files-few" in {condition.code for condition in report.conditions}


def test_version_1_of_cgroups_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "sys/fs/cgroup/memory"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(str(GIB))
    (folder / "memory.usage_in_bytes").write_text("5")
    host = read(MACHINES["h200"], tmp_path).host
    assert (host.cgroup_limit_bytes.value, host.cgroup_used_bytes.value) == (GIB, 5)
