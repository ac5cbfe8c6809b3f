"""Sizes by card and workload: tokens a step, graphs, longest sequence, share of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from decideploy.errors import ConfigError, ProbeError
from decideploy.hardware import Gpu, HardwareReport
from decideploy.hardware.kernels import is_unified_memory
from decideploy.plan.kv_cache import KvShape
from decideploy.plan.memory import GIB, MIB
from decideploy.plan.workload import Workload

if TYPE_CHECKING:
    from decideploy.artifacts import ModelFacts

SMALL_BATCHED_TOKENS = 2_048
_BATCHED_TOKENS = {"latency": 4_096, "throughput": 8_192}
# Up to here a card is small; its first bytes beyond pay for the longer step.
_SMALL_GPU_BYTES = 36 * GIB
_SHORTEST_MODEL_LEN = 512
# vLLM compares free memory with its share after the CUDA context exists.
_GPU_RESERVE_BYTES = 768 * MIB


def gpu_memory(gpu: Gpu, hardware: HardwareReport) -> tuple[int, int, str]:
    """Total and free bytes, and whence. On unified memory the host's figures count; unknown is an error."""
    if is_unified_memory(gpu.compute_capability.value) and hardware.host.ram_total_bytes.value:
        total = gpu.total_bytes.value or hardware.host.ram_total_bytes.value
        return total, min(total, host_free(hardware)), "unified memory: what the host has available"
    if gpu.total_bytes.value is None:
        raise ProbeError(
            f"the memory of GPU {gpu.index} is unknown",
            where=gpu.total_bytes.source,
            next_step="plan for a known card with --hardware NAME",
        )
    if gpu.free_bytes.value is None:
        return gpu.total_bytes.value, gpu.total_bytes.value, "an empty card is assumed"
    return gpu.total_bytes.value, gpu.free_bytes.value, "free memory, not total"


def host_free(hardware: HardwareReport) -> int:
    """Bytes that a new process may take: available RAM within the cgroup's limit; unknown is an error."""
    host = hardware.host
    if host.ram_available_bytes.value is None:
        raise ProbeError(
            "the available memory of the host is unknown",
            where=host.ram_available_bytes.source,
            next_step="run `decideploy probe` on the host",
        )
    limit = host.cgroup_limit_bytes.value
    if limit is None:
        return host.ram_available_bytes.value
    return min(host.ram_available_bytes.value, max(limit - (host.cgroup_used_bytes.value or 0), 0))


def utilization(total: int, free: int, workload: Workload) -> int:
    """Thousandths of the total that vLLM may take: the asked share, less when others hold memory."""
    asked = round(workload.gpu_memory_utilization * 1000)
    possible = max(free - _GPU_RESERVE_BYTES, 0) * 1000 // total
    return max(min(asked, possible), 1)


def utilization_reason(total: int, free: int, thousandths: int, source: str) -> str:
    """Why the share is what it is."""
    return (
        f"{thousandths / 1000:.3f} of {total / GIB:.1f} GiB, {free / GIB:.1f} GiB free ({source}); "
        "vLLM refuses a share larger than what is free after its CUDA context"
    )


def gpu_batched_tokens(total: int, workload: Workload, needed: Callable[[int], int]) -> int:
    """Tokens a step; ``needed`` gives the bytes of all terms for so many.

    By the card, not by what is free now, and more only where the card pays for it: more memory never gives
    less KV.
    """
    if workload.max_num_batched_tokens:
        return workload.max_num_batched_tokens
    small, large = (
        max(n, workload.sequences) for n in (SMALL_BATCHED_TOKENS, _BATCHED_TOKENS[workload.goal])
    )
    spare = round((total - _SMALL_GPU_BYTES) * workload.gpu_memory_utilization)
    return large if spare >= needed(large) - needed(small) else small


def batched_reason(batched: int, workload: Workload) -> str:
    """Why a step has so many tokens."""
    if workload.max_num_batched_tokens:
        return "asked for"
    held = batched // workload.median_prompt_tokens
    return (
        f"for {workload.goal}: a step holds {held} decisions of {workload.median_prompt_tokens} tokens; "
        "workspace and KV startup floor grow with it"
    )


def capture_sizes(max_num_seqs: int, prompt_tokens: int) -> tuple[int, ...]:
    """Batch sizes, in tokens, to capture: every decode batch and prompts up to ``prompt_tokens``.

    A batch is padded to the next size, so steps stay within a tenth of a prompt above 512 tokens.
    """
    decode = {1, 2, 4, *range(8, max_num_seqs + 1, 8)}
    prompts = {*range(96, 513, 32), *range(576, prompt_tokens + 1, 64), prompt_tokens}
    ceiling = max(prompt_tokens, 1)
    return tuple(sorted(size for size in decode | prompts if 1 <= size <= ceiling))


def model_len(
    facts: ModelFacts, workload: Workload, shape: KvShape, *, in_flight: int, cap: int, left_bytes: int
) -> int:
    """The asked length, else the longest power of two whose startup floor fits ``left_bytes``."""
    longest = facts.max_position_embeddings
    if workload.max_model_len is not None:
        if workload.max_model_len > longest:
            raise ConfigError(
                f"max_model_len {workload.max_model_len} exceeds the model's {longest}",
                where="--max-model-len",
                next_step=f"ask for {longest} or less",
            )
        return workload.max_model_len
    lengths = [min(longest, cap)]
    while lengths[-1] > _SHORTEST_MODEL_LEN:
        lengths.append(max(lengths[-1] // 2, _SHORTEST_MODEL_LEN))
    return next((n for n in lengths if shape.floor_bytes(n, in_flight) <= left_bytes), lengths[-1])
