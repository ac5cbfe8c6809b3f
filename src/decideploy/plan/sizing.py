"""Sizes by card and workload: tokens a step, graphs, longest sequence, share of memory."""

from __future__ import annotations

import bisect
from collections.abc import Callable

from decideploy.errors import ConfigError, ProbeError
from decideploy.hardware import Gpu, HardwareReport
from decideploy.hardware.kernels import is_unified_memory
from decideploy.plan.memory import GIB, IMAGE_TOKENS, MIB
from decideploy.plan.workload import Workload

SMALL_BATCHED_TOKENS = 2_048
_LEAST_BATCHED_TOKENS = 512
_BATCHED_TOKENS = {"latency": 4_096, "throughput": 8_192}
# Up to here a card is small; its first bytes beyond pay for the longer step.
SMALL_GPU_BYTES = 36 * GIB
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
    """Thousandths of the total that vLLM may take: less than usual when others hold memory.

    ConfigError for an asked share that the engine would refuse.
    """
    wanted = round(workload.share * 1000)
    possible = max(free - _GPU_RESERVE_BYTES, 0) * 1000 // total
    if workload.gpu_memory_utilization is not None and wanted > possible:
        raise ConfigError(
            f"{wanted / 1000:.3f} of {total / GIB:.1f} GiB are asked for; {free / GIB:.1f} GiB are free, "
            f"less what the CUDA context takes, which is {possible / 1000:.3f}",
            where="--gpu-memory-utilization",
            next_step=f"ask for {possible / 1000:.3f} or less, leave it out, or end what else holds the GPU",
        )
    return max(min(wanted, possible), 1)


def utilization_reason(total: int, free: int, thousandths: int, source: str) -> str:
    """Why the share is what it is."""
    return (
        f"{thousandths / 1000:.3f} of {total / GIB:.1f} GiB, {free / GIB:.1f} GiB free ({source}); "
        "vLLM refuses a share larger than what is free after its CUDA context"
    )


def gpu_batched_tokens(
    workload: Workload,
    available: int,
    needed: Callable[[int], int],
    reserved: Callable[[int], int],
    small: int,
) -> int:
    """Tokens a step, at most as many as ``workload`` has a use for.

    ``needed`` gives the bytes of all terms with so many, ``reserved`` the whole blocks of KV cache that the
    longest sequence then needs, ``small`` those that a small card has. Memory goes to the longest sequence
    first, then to the usual step, then to the KV cache, and only beyond a small card to a longer step: so
    more memory never gives fewer blocks.
    """
    if workload.max_num_batched_tokens:
        return asked_batched_tokens(workload, images=workload.images)
    least, usual, most = step_sizes(workload)

    def fits(tokens: int) -> bool:
        kept = reserved(tokens) if tokens <= usual else max(reserved(tokens), small)
        return available - needed(tokens) >= kept

    # The largest that fits; what does not fit at all is refused by its smallest sum.
    return max(bisect.bisect_left(range(most + 1), True, lo=least, key=lambda n: not fits(n)) - 1, least)


def step_sizes(workload: Workload) -> tuple[int, int, int]:
    """Tokens of the smallest step, of the usual one, and of that of a large card; as asked, all alike."""
    if asked := workload.max_num_batched_tokens:
        return asked, asked, asked
    least, usual, most = _LEAST_BATCHED_TOKENS, SMALL_BATCHED_TOKENS, _BATCHED_TOKENS[workload.goal]
    return max(least, workload.sequences), max(usual, workload.sequences), max(most, workload.sequences)


def asked_batched_tokens(workload: Workload, *, images: bool) -> int:
    """The asked tokens a step; ConfigError where the engine refuses them."""
    asked = workload.max_num_batched_tokens or 0
    least = {f"{workload.sequences} requests a step have a token each": workload.sequences}
    if images:
        least[f"an image's {IMAGE_TOKENS} tokens are one step's"] = IMAGE_TOKENS
    if faults := [why for why, tokens in least.items() if asked < tokens]:
        raise ConfigError(
            f"{asked} tokens a step are too few: {', '.join(faults)}",
            where="--max-num-batched-tokens",
            next_step=f"ask for {max(least.values())} or more, or lower --max-num-seqs",
        )
    return asked


def batched_reason(batched: int, workload: Workload) -> str:
    """Why a step has so many tokens."""
    if workload.max_num_batched_tokens:
        return "asked for"
    held = batched // workload.median_prompt_tokens
    if batched < SMALL_BATCHED_TOKENS:
        return (
            f"{held} decisions of {workload.median_prompt_tokens} tokens: with more, the longest request "
            "would not fit beside it"
        )
    return (
        f"for {workload.goal}: a step holds {held} decisions of {workload.median_prompt_tokens} tokens; "
        "workspace and KV startup floor grow with it"
    )


def capture_sizes(max_num_seqs: int, prompt_tokens: int) -> tuple[int, ...]:
    """Batch sizes, in tokens, to capture: every decode batch and prompts up to ``prompt_tokens``.

    A batch is padded to the next size, so steps stay within a tenth of a prompt above 512 tokens.
    """
    ceiling = max(prompt_tokens, 1)
    decode = {1, 2, 4, *range(8, min(max_num_seqs, ceiling) + 1, 8)}
    prompts = {*range(96, 513, 32), *range(576, prompt_tokens + 1, 64), prompt_tokens}
    return tuple(sorted(size for size in decode | prompts if 1 <= size <= ceiling))
