"""What is chosen on a GPU: kernel, tokens of a step, graphs, share of memory, images, draft."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from decideploy.errors import ConfigError, ProbeError
from decideploy.hardware import (
    Gpu,
    HardwareReport,
    KernelPath,
    attention_backend,
    kernel_path,
    own_attention,
)
from decideploy.hardware.kernels import check_backend, check_fp8_kv
from decideploy.plan import memory as mem
from decideploy.plan import sizing
from decideploy.plan.argv import gpu_env, image_flags, image_reasons
from decideploy.plan.choices import (
    Choices,
    Inputs,
    left_bytes,
    length_reasons,
    memory_plan,
    sum_bytes,
    workload_notes,
)
from decideploy.plan.context_length import least_len, model_len
from decideploy.plan.correction import Correction, correction_terms
from decideploy.plan.kv_cache import KvShape
from decideploy.plan.memory import MemoryPlan, MemoryTerm
from decideploy.plan.workload import Workload

if TYPE_CHECKING:
    from decideploy.artifacts import ModelFacts

_MODEL_LEN = 32_768
_BLOCK_TOKENS = 16
# Steps under way at once: this engine schedules one ahead.
_STEPS_IN_FLIGHT = 2


def cuda_choices(inputs: Inputs) -> Choices:
    """Every choice of a launch on the asked GPU, or on as many as the engine is split over."""
    facts, hardware, workload = inputs.facts, inputs.hardware, inputs.workload
    gpu = chosen_gpu(hardware, workload)
    _require_gpus(facts, gpu, hardware, workload)
    kernel = _kernel(facts, gpu, hardware, workload)
    backend = workload.moe_backend or (kernel.backend if kernel else None)
    attention = _attention(gpu, hardware, workload)
    total, free, source = sizing.gpu_memory(gpu, hardware)
    share = sizing.utilization(total, free, workload)
    available = -(-total * share // 1000)
    shape = KvShape.of(facts, _BLOCK_TOKENS, workload.kv_cache_dtype, gpus=workload.tensor_parallel_size)
    sum_of = functools.partial(_terms, inputs, backend, total)
    batched = _batched_tokens(inputs, backend, shape, total=total, available=available)
    device = gpu.name.value or "unknown card"
    terms = correction_terms(sum_of(batched), inputs.corrections, _setting(inputs, device, backend, batched))
    in_flight = _STEPS_IN_FLIGHT * batched
    length = model_len(
        facts,
        workload,
        shape,
        images=workload.images,
        in_flight=in_flight,
        cap=_MODEL_LEN,
        left_bytes=workload.kv_cache_memory_bytes or left_bytes(available, terms),
    )
    memory = memory_plan(
        terms,
        shape,
        length=length,
        in_flight=in_flight,
        available=available,
        where=f"GPU {gpu.index}",
        kv_bytes=workload.kv_cache_memory_bytes,
    )
    sizes = _graph_sizes(workload, batched)
    return Choices(
        device=device,
        flags=(
            *_memory_flags(workload, share),
            *("--cudagraph-capture-sizes", *map(str, sizes)),
            *_kernel_flags(workload, kernel, backend),
            *image_flags(workload),
            *_draft_flags(workload),
            *(("--attention-backend", attention[0]) if attention else ()),
        ),
        env=gpu_env(gpu, workload),
        max_model_len=length,
        batched_tokens=batched,
        steps_in_flight=_STEPS_IN_FLIGHT,
        memory=memory,
        images=workload.images,
        capture_sizes=sizes,
        kernel=kernel,
        moe_backend=backend,
        reasons={
            **_kernel_reasons(kernel, workload),
            **length_reasons(facts, workload, length, memory, images=workload.images),
            **image_reasons(workload),
            "attention_backend": attention[1] if attention else _own_attention(facts, gpu),
            **_memory_reasons(workload, sizing.utilization_reason(total, free, share, source)),
            "max_num_batched_tokens": sizing.batched_reason(batched, workload),
            "cudagraph_capture_sizes": f"System 1 only prefills: graphs for prompts to {sizes[-1]} tokens",
            **_draft_reasons(workload),
        },
        notes=tuple(_notes(kernel, workload, memory, shape, length)),
    )


def _batched_tokens(
    inputs: Inputs, backend: str | None, shape: KvShape, *, total: int, available: int
) -> int:
    """Tokens a step: see :func:`sizing.gpu_batched_tokens`."""
    facts, workload = inputs.facts, inputs.workload
    length = least_len(facts, workload, images=workload.images)
    _, usual, _ = sizing.step_sizes(workload)
    card = sizing.SMALL_GPU_BYTES
    left = round(card * workload.share) - sum_bytes(_terms(inputs, backend, card, usual))

    def reserved(tokens: int) -> int:
        floor = shape.floor_bytes(length, _STEPS_IN_FLIGHT * tokens)
        return max(floor, workload.kv_cache_memory_bytes or 0)

    return sizing.gpu_batched_tokens(
        workload,
        available,
        lambda tokens: sum_bytes(_terms(inputs, backend, total, tokens)),
        reserved,
        shape.whole_blocks(max(left, 0)),
    )


def chosen_gpu(hardware: HardwareReport, workload: Workload) -> Gpu:
    """The asked GPU, else the first visible one, which is also the one that the engine takes."""
    gpus = hardware.visible_gpus
    if workload.gpu_index is None:
        return gpus[0]
    for gpu in gpus:
        if gpu.index == workload.gpu_index:
            return gpu
    raise ConfigError(
        f"GPU {workload.gpu_index} is not visible",
        where="gpu_index",
        next_step=f"use one of {', '.join(str(gpu.index) for gpu in gpus)}",
    )


def _require_gpus(facts: ModelFacts, gpu: Gpu, hardware: HardwareReport, workload: Workload) -> None:
    """ConfigError when the engine cannot be split over so many GPUs, or a probed host has fewer."""
    count = len(hardware.visible_gpus)
    parallel = workload.tensor_parallel_size
    kv_heads = (facts.num_key_value_heads, facts.num_global_key_value_heads)
    if facts.num_attention_heads % parallel or any(
        heads % parallel and parallel % heads for heads in kv_heads
    ):
        raise ConfigError(
            f"{facts.num_attention_heads} attention heads, with {' and '.join(map(str, kv_heads))} of keys "
            f"and values, cannot be split over {parallel} GPUs",
            where="--tensor-parallel-size",
            next_step="ask for a power of two of GPUs, or run one replica a GPU",
        )
    if gpu.free_bytes.known and count < parallel:
        raise ConfigError(
            f"{parallel} GPUs are asked for, {count} can be used",
            where="--tensor-parallel-size",
            next_step=f"ask for {count} or fewer, or make more visible in CUDA_VISIBLE_DEVICES",
        )


def _kernel(facts: ModelFacts, gpu: Gpu, hardware: HardwareReport, workload: Workload) -> KernelPath | None:
    """The FP4 path, None for a model that is not NVFP4."""
    if facts.quant_algo != "NVFP4":
        return None
    capability = gpu.compute_capability
    if capability.value is None:
        raise ProbeError(
            f"the compute capability of GPU {gpu.index} is unknown, so is its FP4 path",
            where=capability.source,
            next_step="plan for a known card with --hardware NAME",
        )
    refused = hardware.refused_kernels(gpu)
    if workload.moe_backend:
        check_backend(workload.moe_backend, capability.value, workload.tensor_parallel_size, refused)
    return kernel_path(
        capability.value,
        patched=workload.patched,
        packages=hardware.host.packages.value,
        tensor_parallel_size=workload.tensor_parallel_size,
        # One that is asked for need not be the only one that is right.
        refused=None if workload.moe_backend else refused,
    )


def _attention(gpu: Gpu, hardware: HardwareReport, workload: Workload) -> tuple[str, str] | None:
    if workload.kv_cache_dtype == "fp8":
        check_fp8_kv(gpu.compute_capability.value)
    return attention_backend(
        gpu.compute_capability.value,
        packages=hardware.host.packages.value,
        kv_dtype=workload.kv_cache_dtype,
    )


def _own_attention(facts: ModelFacts, gpu: Gpu) -> str:
    if facts.head_dim == facts.global_head_dim or len(set(facts.layer_types)) == 1:
        return "the engine's own choice for this card"
    kernel = own_attention(gpu.compute_capability.value)
    return (
        f"the engine's own: {kernel}, which reads both head widths ({facts.head_dim} and "
        f"{facts.global_head_dim}) on compute capability {gpu.compute_capability.value}"
    )


def _graph_sizes(workload: Workload, batched: int) -> tuple[int, ...]:
    return sizing.capture_sizes(workload.sequences, min(workload.longest_prompt_tokens, batched))


def _terms(inputs: Inputs, backend: str | None, total: int, batched: int) -> tuple[MemoryTerm, ...]:
    """Every term of a launch with ``batched`` tokens a step on a card of ``total`` bytes."""
    facts, workload = inputs.facts, inputs.workload
    step = mem.step_terms(facts, max_num_seqs=workload.sequences, batched_tokens=batched, backend=backend)
    return (
        *mem.weight_terms(
            facts,
            images=workload.images,
            lora_rank=inputs.rank,
            gpus=workload.tensor_parallel_size,
        ),
        *mem.repacked_terms(facts, backend, workload.tensor_parallel_size),
        *mem.block_terms(facts, backend, workload.tensor_parallel_size),
        *(mem.draft_terms(workload.draft_bytes) if workload.draft_model else ()),
        *step,
        *(_vision_terms(workload, step, batched=batched, total=total) if workload.images else ()),
        # As many as the longest step can have: a little more memory must not cost a graph's worth of KV.
        *mem.cuda_terms(len(_graph_sizes(workload, sizing.step_sizes(workload)[-1]))),
    )


def _vision_terms(
    workload: Workload, step: tuple[MemoryTerm, ...], *, batched: int, total: int
) -> tuple[MemoryTerm, ...]:
    return mem.vision_terms(
        max_num_seqs=workload.sequences,
        max_images=workload.max_images,
        batched_tokens=batched,
        total_bytes=total,
        step=step,
    )


def _setting(inputs: Inputs, device: str, backend: str | None, batched: int) -> Correction:
    """What a measured correction must agree with to count here."""
    return Correction(
        device=device,
        model=inputs.facts.name,
        moe_backend=backend,
        images=inputs.workload.images,
        max_num_seqs=inputs.workload.sequences,
        max_num_batched_tokens=batched,
    )


def _memory_flags(workload: Workload, share: int) -> tuple[str, ...]:
    dtype = ("--kv-cache-dtype", workload.kv_cache_dtype) if workload.kv_cache_dtype != "auto" else ()
    if workload.kv_cache_memory_bytes is None:
        return ("--gpu-memory-utilization", f"{share / 1000:.3f}", *dtype)
    return ("--kv-cache-memory-bytes", str(workload.kv_cache_memory_bytes), *dtype)


def _memory_reasons(workload: Workload, share: str) -> dict[str, str]:
    dtype = {
        "auto": "the model's own: 8 bits would halve the cache's bytes and change answers a little",
        "fp8": "asked for: half the bytes; compare answers with `decideploy selftest` before relying on it",
    }
    reasons = {"kv_cache_dtype": dtype[workload.kv_cache_dtype]}
    if workload.kv_cache_memory_bytes is None:
        return reasons | {"gpu_memory_utilization": share}
    return reasons | {"kv_cache_memory_bytes": "asked for, in place of a share of the card"}


def _kernel_flags(workload: Workload, kernel: KernelPath | None, backend: str | None) -> tuple[str, ...]:
    parallel = workload.tensor_parallel_size
    return (
        *(("--moe-backend", backend) if backend else ()),
        *(("--dtype", kernel.dtype) if kernel and kernel.dtype else ()),
        *(("--tensor-parallel-size", str(parallel)) if parallel > 1 else ()),
    )


def _draft_flags(workload: Workload) -> tuple[str, ...]:
    if workload.draft_model is None:
        return ()
    config = {"model": str(workload.draft_model), "num_speculative_tokens": workload.draft_tokens}
    return ("--speculative-config", json.dumps(config, separators=(",", ":")))


def _draft_reasons(workload: Workload) -> dict[str, str]:
    if workload.draft_model is None:
        return {}
    text = (
        f"asked for: {workload.draft_tokens} tokens a step, for System 2; it slows decisions of many clients"
    )
    return {"speculative_config": text}


def _kernel_reasons(kernel: KernelPath | None, workload: Workload) -> dict[str, str]:
    if workload.moe_backend:
        return {"moe_backend": "asked for; the engine refuses it when it cannot run"}
    if kernel is None:
        return {"moe_backend": "experts are not NVFP4: the engine's own choice"}
    text = f"compute capability {kernel.compute_capability}, {kernel.activation}: {kernel.reason}"
    return {"moe_backend": f"{text}; {kernel.needs}" if kernel.needs else text}


def _notes(
    kernel: KernelPath | None, workload: Workload, memory: MemoryPlan, shape: KvShape, length: int
) -> Iterator[str]:
    if kernel is not None:
        yield from _cautions(kernel)
    if workload.tensor_parallel_size > 1:
        yield "the sum is that of each GPU; more than one GPU was never measured"
    yield from workload_notes(workload, memory, shape, length, images=workload.images)


def _cautions(kernel: KernelPath) -> Iterator[str]:
    for entry in kernel.cautions:
        if entry.verdict == "prove":
            yield (
                f"{kernel.backend} on {kernel.compute_capability} {entry.why} "
                f"({', '.join(entry.references)}): compare its decisions with those of --moe-backend marlin "
                "before you rely on it"
            )
