import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from decideploy.errors import ConfigError
from decideploy.hardware import load_report, print_report, probe

GIB = 1024**3


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


class FakeNvml:
    """One H200, half of it held by another process; ``faults`` maps a call to the NVML code it raises."""

    NVMLError = NvmlError

    def __init__(self, **faults: int) -> None:
        self.faults = faults
        self.shut_down = False
        self.answers: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlSystemGetDriverVersion": "580.82.07",
            "nvmlSystemGetCudaDriverVersion": 13000,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlDeviceGetUUID": "GPU-abc",
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=140 * GIB, free=70 * GIB),
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=4242)],
        }

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shut_down = True

    def __getattr__(self, name: str) -> Any:
        if name not in self.answers:
            raise AttributeError(name)

        def call(*_args: object) -> Any:
            if name in self.faults:
                raise NvmlError(self.faults[name])
            return self.answers[name]

        return call


def codes(report: Any) -> list[str]:
    return [condition.code for condition in report.conditions]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\nflags : fpu avx2 avx512f avx512_bf16\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{GIB}\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text("1000\n")
    (tmp_path / "dev/shm").mkdir(parents=True)
    return tmp_path


def test_gpu_is_read_through_nvml(root: Path) -> None:
    nvml = FakeNvml()
    report = probe(nvml=nvml, root=root, environ={"HOME": str(root)})
    (gpu,) = report.gpus
    assert report.platform == "cuda"
    assert (gpu.name.value, gpu.compute_capability.value) == ("NVIDIA H200", "9.0")
    assert (gpu.total_bytes.value, gpu.free_bytes.value) == (140 * GIB, 70 * GIB)
    assert (report.driver_version.value, report.cuda_version.value) == ("580.82.07", "13.0")
    assert gpu.free_bytes.source == "nvmlDeviceGetMemoryInfo.free"
    assert [holder.pid for holder in gpu.holders.value] == [4242]
    assert "gpu-memory-held" in codes(report)
    assert nvml.shut_down


class NvmlWithReserved(FakeNvml):
    """A driver that tells what it keeps for itself: these are an H200's figures."""

    nvmlMemory_v2 = 0x2000028  # noqa: N815

    def nvmlDeviceGetMemoryInfo(self, _handle: object, version: int | None = None) -> SimpleNamespace:  # noqa: N802
        total, free = 150_754_820_096, 150_109_880_320
        return SimpleNamespace(total=total, free=free, **({"reserved": total - free} if version else {}))


def test_total_is_what_cuda_can_take(root: Path) -> None:
    (gpu,) = probe(nvml=NvmlWithReserved(), root=root, environ={"HOME": str(root)}).gpus
    assert gpu.total_bytes.value == gpu.free_bytes.value == 150_109_880_320
    assert gpu.total_bytes.source == "nvmlDeviceGetMemoryInfo.total - reserved"


def test_one_unreadable_value_is_unknown_and_hides_no_other(root: Path) -> None:
    report = probe(nvml=FakeNvml(nvmlDeviceGetMemoryInfo=3), root=root, environ={"HOME": str(root)})
    (gpu,) = report.gpus
    assert gpu.total_bytes.value is None
    assert "code 3" in gpu.total_bytes.source
    assert gpu.compute_capability.value == "9.0"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (4, "gpu-no-permission"),
        (9, "gpu-driver-not-loaded"),
        (12, "gpu-no-driver"),
        (15, "gpu-lost"),
        (18, "gpu-driver-mismatch"),
        (999, "gpu-unreadable"),
    ],
)
def test_driver_faults_have_names_and_remedies(root: Path, number: int, code: str) -> None:
    report = probe(nvml=FakeNvml(nvmlInit=number), root=root, environ={"HOME": str(root)})
    assert report.platform == "cpu"
    (condition,) = [condition for condition in report.conditions if condition.code == code]
    assert condition.next_step


def test_a_lost_gpu_does_not_end_the_probe(root: Path) -> None:
    report = probe(nvml=FakeNvml(nvmlDeviceGetHandleByIndex=15), root=root, environ={"HOME": str(root)})
    assert report.gpus == ()
    assert "gpu-lost" in codes(report)


def test_old_driver_is_named(root: Path) -> None:
    nvml = FakeNvml()
    nvml.answers |= {"nvmlSystemGetDriverVersion": "535.104.05", "nvmlSystemGetCudaDriverVersion": 12020}
    found = codes(probe(nvml=nvml, root=root, environ={"HOME": str(root)}))
    assert {"gpu-driver-too-old", "gpu-cuda-too-old"} <= set(found)


@pytest.mark.parametrize(
    ("devices", "platform"),
    [("", "cpu"), ("0", "cuda"), ("1", "cpu"), ("GPU-abc", "cuda"), ("GPU-a", "cuda"), ("GPU-x", "cpu")],
)
def test_hidden_gpus_do_not_count(root: Path, devices: str, platform: str) -> None:
    environ = {"HOME": str(root), "CUDA_VISIBLE_DEVICES": devices}
    assert probe(nvml=FakeNvml(), root=root, environ=environ).platform == platform


def test_host_is_read_with_sources(root: Path) -> None:
    host = probe(nvml=FakeNvml(nvmlInit=12), root=root, environ={"HOME": str(root)}).host
    assert host.cgroup_limit_bytes.value == GIB
    assert host.cgroup_limit_bytes.source.endswith("memory.max")
    assert host.cpu_flags.value == {"avx2": True, "avx512f": True, "amx": False, "bf16": True}
    assert host.ram_total_bytes.value is not None
    assert host.shm_bytes.known


def test_missing_files_are_unknown_never_a_guess(tmp_path: Path) -> None:
    host = probe(nvml=FakeNvml(nvmlInit=12), root=tmp_path, environ={"HOME": str(tmp_path)}).host
    assert host.cgroup_limit_bytes.value is None
    assert host.cpu_flags.value is None
    assert host.shm_bytes.value is None


@pytest.mark.parametrize("text", ["max", str(2**63 - 4096)])
def test_no_cgroup_limit_is_unknown(root: Path, text: str) -> None:
    (root / "sys/fs/cgroup/memory.max").write_text(text)
    host = probe(nvml=FakeNvml(nvmlInit=12), root=root, environ={"HOME": str(root)}).host
    assert host.cgroup_limit_bytes.value is None


def test_unwritable_cache_is_a_condition(root: Path) -> None:
    # A file where a folder should be: refused for every user, root included.
    (root / "file").write_text("")
    environ = {"HOME": str(root), "VLLM_CACHE_ROOT": str(root / "file" / "vllm")}
    report = probe(nvml=FakeNvml(nvmlInit=12), root=root, environ=environ)
    assert report.host.cache_roots.value is not None
    assert report.host.cache_roots.value["VLLM_CACHE_ROOT"] is False
    assert report.host.cache_roots.value["TRITON_CACHE_DIR"] is True
    assert "cache-not-writable" in codes(report)


def test_report_survives_json(root: Path, tmp_path: Path) -> None:
    report = probe(nvml=FakeNvml(), root=root, environ={"HOME": str(root)})
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(report.to_dict()))
    assert load_report(path) == report


@pytest.mark.parametrize(
    ("text", "told"),
    [("[]", "not a JSON object"), ("{", "cannot read"), ('{"schema_version": 99}', "schema_version 99")],
)
def test_broken_report_is_a_config_error(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "probe.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        load_report(path)


GPU = ("gpus", 0)


@pytest.mark.parametrize(
    ("keys", "value", "told"),
    [
        (
            (*GPU, "total_bytes", "value"),
            "150000000000",
            "gpus.0.total_bytes.value: Input should be a valid int",
        ),
        ((*GPU, "total_bytes", "value"), 0, "greater than 0"),
        ((*GPU, "total_bytes", "value"), True, "gpus.0.total_bytes.value"),
        ((*GPU, "total_bytes", "value"), 1.5, "gpus.0.total_bytes.value"),
        ((*GPU, "total_bytes", "value"), 10**400, "gpus.0.total_bytes.value"),
        ((*GPU, "free_bytes", "value"), -1, "gpus.0.free_bytes.value"),
        ((*GPU, "free_bytes", "value"), 1 << 50, "gpus.0.free_bytes.value: .* more than the total"),
        ((*GPU, "holders", "value"), ["one"], "gpus.0.holders.value.0"),
        ((*GPU, "holders"), None, "gpus.0.holders"),
        ((*GPU, "visible"), "yes", "gpus.0.visible"),
        ((*GPU, "compute_capability"), "9.0", "gpus.0.compute_capability"),
        ((*GPU, "colour"), "green", "gpus.0.colour"),
        (("gpus",), {}, "gpus"),
        (("host", "cores", "value"), 0, "host.cores.value"),
        (("host", "cpu_flags", "value"), {"avx2": 1}, "host.cpu_flags.value.avx2"),
        (("host", "ram_available_bytes", "value"), 1 << 60, "host.ram_available_bytes.value: .* more than"),
        (("host",), [], "host"),
        (("driver_version", "value"), 580, "driver_version.value"),
    ],
)
def test_a_wrong_value_is_named_by_its_key(
    root: Path, tmp_path: Path, keys: tuple[str | int, ...], value: object, told: str
) -> None:
    document: Any = json.loads(
        json.dumps(probe(nvml=FakeNvml(), root=root, environ={"HOME": str(root)}).to_dict())
    )
    within = document
    for key in keys[:-1]:
        within = within[key]
    within[keys[-1]] = value
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=told) as caught:
        load_report(path)
    assert str(path) in caught.value.where
    assert "probe --json" in caught.value.next_step


@pytest.mark.parametrize("text", ["[" * 100_000, '{"schema_version": ' + "9" * 5000 + "}", "\udcff"])
def test_a_report_that_no_parser_takes_is_a_config_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "probe.json"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(ConfigError, match="cannot read"):
        load_report(path)


def test_table_shows_unknown_and_conditions(root: Path) -> None:
    console = Console(width=200, record=True, quiet=True)
    console.quiet = False
    with console.capture() as capture:
        print_report(
            probe(nvml=FakeNvml(nvmlDeviceGetName=3), root=root, environ={"HOME": str(root)}), console
        )
    text = capture.get()
    assert "unknown" in text
    assert "140.00 GiB" in text
    assert "gpu-memory-held" in text
