"""What is chosen on a CPU: whole GiB of keys and values, short blocks, text alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decideploy.errors import ConfigError, ProbeError
from decideploy.hardware import HardwareReport
from decideploy.plan import memory as mem
from decideploy.plan import sizing
from decideploy.plan.choices import Choices, Inputs, left_bytes, length_reasons, memory_plan, workload_notes
from decideploy.plan.context_length import model_len
from decideploy.plan.kv_cache import KvShape
from decideploy.plan.workload import Workload

if TYPE_CHECKING:
    from decideploy.artifacts import ModelFacts

_MODEL_LEN = 8_192
# The CPU engine's own 128 leaves up to 255 tokens of a shared state to be read again by each question.
_BLOCK_TOKENS = 32
# Steps under way at once: this engine schedules none ahead.
_STEPS_IN_FLIGHT = 1
_SEQUENCES = 4


def cpu_choices(inputs: Inputs) -> Choices:
    """Every choice of a launch on this host; ProbeError or ConfigError for what only a GPU does."""
    facts, hardware, workload = inputs.facts, inputs.hardware, inputs.workload
    _require_possible(facts, hardware, workload)
    batched = _batched_tokens(workload)
    terms = (
        *mem.weight_terms(facts, images=False, lora_rank=inputs.rank),
        *mem.step_terms(facts, max_num_seqs=workload.sequences, batched_tokens=batched),
        *mem.cpu_terms(),
    )
    # A tenth stays for the page cache and everything else on the host.
    available = sizing.host_free(hardware) * 9 // 10
    shape = KvShape.of(facts, _BLOCK_TOKENS)
    spare_gib = left_bytes(available, terms) // mem.GIB
    in_flight = _STEPS_IN_FLIGHT * batched
    length = model_len(
        facts,
        workload,
        shape,
        images=False,
        in_flight=in_flight,
        cap=_MODEL_LEN,
        left_bytes=spare_gib * mem.GIB,
    )
    kv_gib = _kv_gib(shape, length, in_flight, spare_gib)
    memory = memory_plan(
        terms,
        shape,
        length=length,
        in_flight=in_flight,
        available=available,
        where="host memory",
        kv_bytes=kv_gib * mem.GIB,
    )
    return Choices(
        device="cpu",
        flags=("--language-model-only", "--block-size", str(_BLOCK_TOKENS)),
        env={"VLLM_CPU_KVCACHE_SPACE": str(kv_gib), "TORCH_COMPILE_DISABLE": "1"},
        max_model_len=length,
        batched_tokens=batched,
        steps_in_flight=_STEPS_IN_FLIGHT,
        memory=memory,
        reasons={
            **length_reasons(facts, workload, length, memory, images=False),
            "moe_backend": "bf16 experts: the CPU kernel is the only one",
            "VLLM_CPU_KVCACHE_SPACE": f"GiB for {_SEQUENCES} sequences; the engine need not measure",
            "language_model_only": "no images on CPU: its attention reads their tokens in one direction only",
            "max_num_batched_tokens": "asked for"
            if workload.max_num_batched_tokens
            else "the same for either goal on CPU",
            "kv_cache_dtype": "the model's own: the CPU engine has no other choice",
            "block_size": "small, so that most of a state that questions share is found in the cache",
            "compilation": "none: with LoRA the CPU engine runs eager whatever is asked",
            "TORCH_COMPILE_DISABLE": "else a few functions compile at first use, by the host's C++ compiler",
        },
        notes=tuple(workload_notes(workload, memory, shape, length, images=False)),
    )


def _require_possible(facts: ModelFacts, hardware: HardwareReport, workload: Workload) -> None:
    """Raise for what only a GPU does: ProbeError for the model, ConfigError for options."""
    if facts.quant_algo == "NVFP4":
        # Why no GPU was found may be the fault.
        found = [condition.what for condition in hardware.conditions if condition.code.startswith("gpu-")]
        raise ProbeError(
            "; ".join(("NVFP4 experts have no CPU kernel", *found)),
            where=str(facts.path),
            next_step="serve the bf16 model here, or the NVFP4 model on a GPU (plan it with --hardware NAME)",
        )
    asked = {
        "--kv-cache-dtype fp8": workload.kv_cache_dtype != "auto",
        "--kv-cache-memory-bytes": workload.kv_cache_memory_bytes is not None,
        "--gpu-memory-utilization": workload.gpu_memory_utilization is not None,
        "--moe-backend": workload.moe_backend is not None,
        "--tensor-parallel-size": workload.tensor_parallel_size > 1,
        "--draft-model": workload.draft_model is not None,
    }
    if faults := [name for name, is_asked in asked.items() if is_asked]:
        raise ConfigError(
            f"the CPU engine has no such choice: {', '.join(faults)}",
            where=faults[0],
            next_step="leave it out, or plan for a GPU with --hardware NAME",
        )


def _batched_tokens(workload: Workload) -> int:
    if workload.max_num_batched_tokens:
        return sizing.asked_batched_tokens(workload, images=False)
    return max(sizing.SMALL_BATCHED_TOKENS, workload.sequences)


def _kv_gib(shape: KvShape, length: int, in_flight: int, spare_gib: int) -> int:
    wanted = max(shape.floor_bytes(length, in_flight), _SEQUENCES * shape.sequence_bytes(length))
    return max(1, min(-(-wanted // mem.GIB), spare_gib))
