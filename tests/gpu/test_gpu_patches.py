"""The patches that matter on CUDA: the engine without each of them, and with all."""

import shutil
import subprocess
from pathlib import Path

import pytest
from decisions import bare_prompt, random_decisions
from probes import read_with

from decideploy.build import read_series
from decideploy.decide import PromptEncoder
from decideploy.pins import data_root

pytestmark = pytest.mark.gpu

UPSTREAM = Path(__file__).parents[2] / "upstream"
HUMMING = ("--moe-backend", "humming")


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """A function that gives vLLM with the upstream files in place of those that one patch changes."""
    import vllm

    def tree(number: str) -> Path:
        folder = tmp_path_factory.mktemp(f"without-{number}")
        # Links, because the compiled parts are most of a gigabyte.
        subprocess.run(["cp", "-rs", str(Path(vllm.__file__).parent), str(folder)], check=True)
        (patch,) = (patch for patch in read_series(data_root()) if patch.name.startswith(number))
        for path in patch.paths:
            (folder / path).unlink()
            if (UPSTREAM / path).exists():
                shutil.copy(UPSTREAM / path, folder / path)
        return folder

    return tree


@pytest.fixture(scope="module")
def prompts(demo_model_nvfp4):
    encoder = PromptEncoder.from_model(demo_model_nvfp4)
    return [encoder.encode(bare_prompt(decision)) for decision in random_decisions(6, seed=4)]


def test_lm_head_lora_needs_0001(demo_model_nvfp4, without):
    found, log = read_with(demo_model_nvfp4, vllm=without("0001"))
    assert "When using LoRA, vocab size must be <= 258048" in found["error"], log[-4000:]


def test_humming_is_refused_without_0003(demo_model_nvfp4, without, figure):
    found, log = read_with(demo_model_nvfp4, *HUMMING, vllm=without("0003"))
    figure("without patch 0003, humming", found.get("error", "answers")[:160])
    assert "error" in found, log[-4000:]


@pytest.mark.parametrize("backend", ["humming", "marlin"])
def test_patched_engine_reads_every_slot(demo_model_nvfp4, prompts, figure, backend):
    found, log = read_with(demo_model_nvfp4, "--moe-backend", backend, prompts=prompts)
    assert "error" not in found, log[-4000:]
    assert [len(row) for row in found["adapted"]] == [24] * len(prompts)
    moved = max(abs(a[k] - b[k]) for a, b in zip(found["adapted"], found["base"], strict=True) for k in a)
    figure(f"{backend}, eager: adapter moves slots by up to, nats", f"{moved:.2f}")
    assert moved > 0.5
