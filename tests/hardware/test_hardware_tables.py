import re
from pathlib import Path

import pytest

import decideploy.hardware
from decideploy.errors import ConfigError, ProbeError
from decideploy.hardware import attention_backend, card_report, kernel_path, known_cards, load_hardware
from decideploy.hardware.kernels import is_unified_memory

NONE_INSTALLED: dict[str, str | None] = {"flashinfer-python": None, "humming-kernels": None}


@pytest.mark.parametrize(
    ("capability", "patched", "bare", "activation"),
    [
        ("7.5", "marlin", "marlin", "W4A16"),
        ("8.0", "marlin", "marlin", "W4A16"),
        ("8.9", "marlin", "marlin", "W4A16"),
        ("9.0", "humming", "marlin", "W4A16"),
        ("10.0", "flashinfer_trtllm", "cutlass", "W4A4"),
        ("10.3", "flashinfer_trtllm", "cutlass", "W4A4"),
        ("12.0", "flashinfer_cutlass", "cutlass", "W4A4"),
        ("12.1", "flashinfer_cutlass", "cutlass", "W4A4"),
    ],
)
def test_kernel_by_compute_capability(capability: str, patched: str, bare: str, activation: str) -> None:
    assert kernel_path(capability).backend == patched
    assert kernel_path(capability).activation == activation
    without = kernel_path(capability, packages=NONE_INSTALLED)
    assert without.backend == bare
    stock = kernel_path(capability, patched=False)
    assert (stock.backend, stock.activation) == ("marlin", "W4A16")


def test_missing_package_is_told() -> None:
    assert "humming-kernels, which is not installed" in kernel_path("9.0", packages=NONE_INSTALLED).reason


@pytest.mark.parametrize(
    ("capability", "packages", "forced"),
    [
        ("9.0", {"nvidia-cutlass-dsl": None}, True),
        ("9.0", {}, True),
        ("10.0", NONE_INSTALLED, True),
        ("9.0", {"nvidia-cutlass-dsl": "4.7.1"}, False),
        ("9.0", None, False),
        ("8.9", NONE_INSTALLED, False),
        ("12.0", NONE_INSTALLED, False),
    ],
)
def test_attention_without_cute_is_triton(
    capability: str, packages: dict[str, str | None] | None, *, forced: bool
) -> None:
    found = attention_backend(capability, packages=packages)
    assert (found is not None) == forced
    if found:
        assert found[0] == "TRITON_ATTN"
        assert "nvidia-cutlass-dsl, which is not installed" in found[1]


def test_turing_runs_in_fp16() -> None:
    assert kernel_path("7.5").dtype == "float16"
    assert kernel_path("8.0").dtype is None


def test_unknown_capability_is_refused() -> None:
    with pytest.raises(ProbeError, match=r"13\.7"):
        kernel_path("13.7")


def test_every_card_has_a_kernel_path() -> None:
    for card in known_cards().values():
        assert kernel_path(card.compute_capability).backend
        assert card.memory_bytes > 8 * 1024**3


def test_only_the_spark_shares_host_memory() -> None:
    shared = [name for name, card in known_cards().items() if is_unified_memory(card.compute_capability)]
    assert shared == ["spark"]


def test_card_report_marks_what_no_card_tells() -> None:
    report = card_report("RTX4090")
    (gpu,) = report.gpus
    assert gpu.compute_capability.value == "8.9"
    assert gpu.free_bytes.value is None
    assert report.host.ram_total_bytes.value is None


def test_unknown_card_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_hardware(str(tmp_path / "gtx970"))
    assert "rtx4090" in str(caught.value)


def test_hardware_needs_nothing_of_what_is_built_on_it() -> None:
    """Arrows point one way: errors, then hardware, then plan, then serve; the demo model is a model."""
    above = ("artifacts", "bench", "calibrate", "cli", "decide", "demo", "gateway", "plan", "serve")
    folder = Path(decideploy.hardware.__file__).parent
    imports = {
        (path.name, name)
        for path in folder.glob("*.py")
        for name in re.findall(
            r"^\s*(?:from|import) decideploy\.(\w+)", path.read_text("utf-8"), re.MULTILINE
        )
    }
    assert len(imports) > 10
    assert [pair for pair in sorted(imports) if pair[1] in above] == []
