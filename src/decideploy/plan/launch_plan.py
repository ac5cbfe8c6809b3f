"""``plan``: every choice of the launch, each with its reason."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from decideploy.errors import CapacityError, ConfigError, ProbeError
from decideploy.hardware import (
    Gpu,
    HardwareReport,
    KernelPath,
    Reading,
    SmokeTest,
    attention_backend,
    kernel_path,
    own_attention,
)
from decideploy.hardware.kernels import check_backend, check_fp8_kv
from decideploy.plan import memory as mem
from decideploy.plan import sizing
from decideploy.plan.argv import common_reasons, gpu_env, image_flags, image_reasons, make_argv, make_env
from decideploy.plan.context_length import describe, least_len, length_notes, model_len
from decideploy.plan.correction import Correction, correction_terms
from decideploy.plan.kv_cache import KvShape
from decideploy.plan.memory import MemoryPlan, MemoryTerm
from decideploy.plan.remedies import remedies
from decideploy.plan.workload import Workload

if TYPE_CHECKING:
    from decideploy.artifacts import AdapterFacts, ModelFacts

SCHEMA_VERSION = 1

_LORA_RANKS = (8, 16, 32)
_GPU_MODEL_LEN, _CPU_MODEL_LEN = 32_768, 8_192
# The CPU engine's own 128 leaves up to 255 tokens of a shared state to be read again by each question.
_GPU_BLOCK_TOKENS, _CPU_BLOCK_TOKENS = 16, 32
# Steps under way at once: the GPU engine schedules one ahead, the CPU engine none.
_GPU_STEPS_IN_FLIGHT, _CPU_STEPS_IN_FLIGHT = 2, 1
_CPU_SEQUENCES = 4
_SIZES_ALONE = ("from the model's sizes alone: its files were not seen, and are verified before a start",)


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlan:
    """One launch. ``argv`` starts with ``vllm serve MODEL``; ``env`` is added to the environment.

    ``device`` is the card's name, or "cpu"; ``model`` the model's own name. ``moe_backend`` is the value of
    --moe-backend, None when the engine's only kernel is used, ``kernel_test`` what the numeric test of the
    kernels on this GPU gave. ``reasons`` explains each choice by its name;
    ``notes`` are what the operator should know beside them.
    """

    platform: str
    device: str
    model: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    served_model_name: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    in_flight_tokens: int
    kv_cache_dtype: str
    images: bool
    capture_sizes: tuple[int, ...]
    moe_backend: str | None
    kernel: KernelPath | None
    memory: MemoryPlan
    reasons: Mapping[str, str]
    inputs_sha256: Mapping[str, str]
    kernel_test: Reading[SmokeTest]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready values with ``schema_version`` and the digests of its inputs."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self), "memory": self.memory.to_dict()}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choices:
    """What differs between the platforms, settled before argv is assembled."""

    device: str
    flags: tuple[str, ...]
    env: Mapping[str, str]
    max_model_len: int
    batched_tokens: int
    steps_in_flight: int
    memory: MemoryPlan
    reasons: Mapping[str, str]
    images: bool = False
    capture_sizes: tuple[int, ...] = ()
    kernel: KernelPath | None = None
    moe_backend: str | None = None
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Inputs:
    """What the choices are made from."""

    facts: ModelFacts
    hardware: HardwareReport
    workload: Workload
    rank: int
    corrections: tuple[Correction, ...]


def plan(
    facts: ModelFacts,
    hardware: HardwareReport,
    *,
    workload: Workload | None = None,
    corrections: tuple[Correction, ...] = (),
) -> LaunchPlan:
    """Choose kernel path, memory settings, argv and environment. Pure: same inputs, same plan.

    ``corrections`` are what earlier starts measured; those of other cards and models do not count. Raises
    CapacityError when it does not fit, ProbeError when the hardware cannot run it or is not known well
    enough, ConfigError when the workload contradicts the model.
    """
    workload = workload or Workload()

    def try_other(hardware: HardwareReport, workload: Workload) -> LaunchPlan:
        return first_plan(facts, hardware, workload=workload, corrections=corrections)

    try:
        return try_other(hardware, workload)
    except CapacityError as error:
        error.next_step = remedies(try_other, hardware, workload)
        raise


def first_plan(
    facts: ModelFacts,
    hardware: HardwareReport,
    *,
    workload: Workload,
    corrections: tuple[Correction, ...] = (),
) -> LaunchPlan:
    """:func:`plan`, whose CapacityError names no remedy: what remedies are sought with."""
    adapter = _adapter(facts)
    rank = _engine_rank(adapter)
    inputs = _Inputs(facts=facts, hardware=hardware, workload=workload, rank=rank, corrections=corrections)
    choices = (_cuda_choices if hardware.platform == "cuda" else _cpu_choices)(inputs)
    name = workload.served_model_name or facts.name
    return LaunchPlan(
        platform=hardware.platform,
        device=choices.device,
        model=facts.name,
        argv=make_argv(
            facts,
            adapter,
            workload,
            choices.flags,
            name=name,
            lora_rank=rank,
            max_model_len=choices.max_model_len,
            batched_tokens=choices.batched_tokens,
        ),
        env={**make_env(workload), **choices.env},
        served_model_name=name,
        max_model_len=choices.max_model_len,
        max_num_seqs=workload.sequences,
        max_num_batched_tokens=choices.batched_tokens,
        in_flight_tokens=choices.steps_in_flight * choices.batched_tokens,
        kv_cache_dtype=workload.kv_cache_dtype,
        images=choices.images,
        capture_sizes=choices.capture_sizes,
        moe_backend=choices.moe_backend,
        kernel=choices.kernel,
        memory=choices.memory,
        reasons={**_all_reasons(facts, adapter, workload, rank), **choices.reasons},
        inputs_sha256={"hardware": _sha256(asdict(hardware)), "workload": _sha256(asdict(workload))},
        notes=(*(_SIZES_ALONE if facts.head is None else ()), *choices.notes),
        kernel_test=_kernel_test(facts, hardware),
    )


def _kernel_test(facts: ModelFacts, hardware: HardwareReport) -> Reading[SmokeTest]:
    """What the kernels' numeric test gave, or why it says nothing of this launch."""
    if hardware.platform != "cuda":
        return Reading(value=None, source="not run: no GPU is used")
    if facts.quant_algo != "NVFP4":
        return Reading(value=None, source="not run: the experts are not NVFP4")
    return hardware.smoke_test


def _adapter(facts: ModelFacts) -> AdapterFacts:
    if facts.adapter is None:
        raise ConfigError(
            "the model has no System 1 adapter",
            where=str(facts.path / "adapter_vllm"),
            next_step="make it with `decideploy convert-adapter`, or name it with --adapter",
        )
    return facts.adapter


def _engine_rank(adapter: AdapterFacts) -> int:
    """The smallest buffer width that vLLM allows and that holds the adapter."""
    fitting = [rank for rank in _LORA_RANKS if rank >= adapter.rank]
    if not fitting:
        raise ConfigError(
            f"the adapter has rank {adapter.rank}, at most {_LORA_RANKS[-1]} is served",
            where=f"{adapter.path}/adapter_config.json: r",
            next_step="train or convert the adapter with a rank of 32 or less",
        )
    return fitting[0]


def _all_reasons(facts: ModelFacts, adapter: AdapterFacts, workload: Workload, rank: int) -> dict[str, str]:
    head_gib = 4 * facts.hidden_size * facts.vocab_size / mem.GIB
    return common_reasons(adapter, workload, rank) | {
        "lora_target_modules": "only these are wrapped; else every expert is, "
        f"at {mem.unfiltered_lora_bytes(facts, rank) / mem.GIB:.2f} GiB and slower kernels",
        "head_dtype": "the model's own: it is shared with the embedding, "
        f"in float32 it would be {head_gib:.2f} GiB more",
    }


def _cuda_choices(inputs: _Inputs) -> _Choices:
    facts, hardware, workload = inputs.facts, inputs.hardware, inputs.workload
    gpu = chosen_gpu(hardware, workload)
    _require_gpus(facts, gpu, hardware, workload)
    kernel = _kernel(facts, gpu, hardware, workload)
    backend = workload.moe_backend or (kernel.backend if kernel else None)
    attention = _attention(gpu, hardware, workload)
    total, free, source = sizing.gpu_memory(gpu, hardware)
    share = sizing.utilization(total, free, workload)
    available = -(-total * share // 1000)
    shape = KvShape.of(facts, _GPU_BLOCK_TOKENS, workload.kv_cache_dtype, gpus=workload.tensor_parallel_size)
    sum_of = functools.partial(_cuda_terms, inputs, backend, total)
    batched = _gpu_batched(inputs, backend, shape, total=total, available=available)
    device = gpu.name.value or "unknown card"
    terms = correction_terms(sum_of(batched), inputs.corrections, _setting(inputs, device, backend, batched))
    in_flight = _GPU_STEPS_IN_FLIGHT * batched
    length = model_len(
        facts,
        workload,
        shape,
        images=workload.images,
        in_flight=in_flight,
        cap=_GPU_MODEL_LEN,
        left_bytes=workload.kv_cache_memory_bytes or _left(available, terms),
    )
    memory = _memory(
        terms,
        shape,
        length=length,
        in_flight=in_flight,
        available=available,
        where=f"GPU {gpu.index}",
        kv_bytes=workload.kv_cache_memory_bytes,
    )
    sizes = _graph_sizes(workload, batched)
    return _Choices(
        device=device,
        flags=(
            *_memory_flags(workload, share),
            *("--cudagraph-capture-sizes", *map(str, sizes)),
            *_kernel_flags(workload, kernel, backend),
            *image_flags(workload),
            *_draft_flags(workload),
            *(("--attention-backend", attention[0]) if attention else ()),
        ),
        env=gpu_env(workload),
        max_model_len=length,
        batched_tokens=batched,
        steps_in_flight=_GPU_STEPS_IN_FLIGHT,
        memory=memory,
        images=workload.images,
        capture_sizes=sizes,
        kernel=kernel,
        moe_backend=backend,
        reasons={
            **_kernel_reasons(kernel, workload),
            **_length_reasons(facts, workload, length, memory, images=workload.images),
            **image_reasons(workload),
            "attention_backend": attention[1] if attention else _own_attention(facts, gpu),
            **_memory_reasons(workload, sizing.utilization_reason(total, free, share, source)),
            "max_num_batched_tokens": sizing.batched_reason(batched, workload),
            "cudagraph_capture_sizes": f"System 1 only prefills: graphs for prompts to {sizes[-1]} tokens",
            **_draft_reasons(workload),
        },
        notes=tuple(_notes(kernel, workload, memory, shape, length)),
    )


def _gpu_batched(inputs: _Inputs, backend: str | None, shape: KvShape, *, total: int, available: int) -> int:
    """Tokens a step: see :func:`sizing.gpu_batched_tokens`."""
    facts, workload = inputs.facts, inputs.workload
    length = least_len(facts, workload, images=workload.images)
    _, usual, _ = sizing.step_sizes(workload)
    card = sizing.SMALL_GPU_BYTES
    left = round(card * workload.share) - _sum(_cuda_terms(inputs, backend, card, usual))

    def reserved(tokens: int) -> int:
        floor = shape.floor_bytes(length, _GPU_STEPS_IN_FLIGHT * tokens)
        return max(floor, workload.kv_cache_memory_bytes or 0)

    return sizing.gpu_batched_tokens(
        workload,
        available,
        lambda tokens: _sum(_cuda_terms(inputs, backend, total, tokens)),
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


def _cuda_terms(inputs: _Inputs, backend: str | None, total: int, batched: int) -> tuple[MemoryTerm, ...]:
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
        # As many as the longest step has: a little more memory must not cost a graph's worth of KV.
        *mem.cuda_terms(len(_graph_sizes(workload, workload.longest_prompt_tokens))),
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


def _setting(inputs: _Inputs, device: str, backend: str | None, batched: int) -> Correction:
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
    for entry in kernel.cautions if kernel else ():
        if kernel and entry.verdict == "prove":
            yield (
                f"{kernel.backend} on {kernel.compute_capability} {entry.why} "
                f"({', '.join(entry.references)}): compare its decisions with those of --moe-backend marlin "
                "before you rely on it"
            )
    if workload.tensor_parallel_size > 1:
        yield "the sum is that of each GPU; more than one GPU was never measured"
    yield from _workload_notes(workload, memory, shape, length, images=workload.images)


def _workload_notes(
    workload: Workload, memory: MemoryPlan, shape: KvShape, length: int, *, images: bool
) -> Iterator[str]:
    yield from length_notes(workload, length, images=images)
    if workload.thinking_share:
        yield _thinking_note(workload, memory, shape, length)


def _thinking_note(workload: Workload, memory: MemoryPlan, shape: KvShape, length: int) -> str:
    thinking = workload.clients * workload.thinking_share
    tokens = min(workload.median_prompt_tokens + workload.longest_thought_tokens, length)
    held = memory.kv_cache_bytes // shape.sequence_bytes(tokens)
    return (
        f"{thinking:.0f} of {workload.clients} clients think at once; the KV cache holds {held} such "
        f"sequences of {tokens:,} tokens{'' if held >= thinking else ', the others wait'}"
    )


def _cpu_choices(inputs: _Inputs) -> _Choices:
    facts, hardware, workload = inputs.facts, inputs.hardware, inputs.workload
    _require_cpu_can(facts, hardware, workload)
    batched = _cpu_batched(workload)
    terms = (
        *mem.weight_terms(facts, images=False, lora_rank=inputs.rank),
        *mem.step_terms(facts, max_num_seqs=workload.sequences, batched_tokens=batched),
        *mem.cpu_terms(),
    )
    # A tenth stays for the page cache and everything else on the host.
    available = sizing.host_free(hardware) * 9 // 10
    shape = KvShape.of(facts, _CPU_BLOCK_TOKENS)
    spare_gib = _left(available, terms) // mem.GIB
    in_flight = _CPU_STEPS_IN_FLIGHT * batched
    length = model_len(
        facts,
        workload,
        shape,
        images=False,
        in_flight=in_flight,
        cap=_CPU_MODEL_LEN,
        left_bytes=spare_gib * mem.GIB,
    )
    kv_gib = _cpu_kv_gib(shape, length, in_flight, spare_gib)
    memory = _memory(
        terms,
        shape,
        length=length,
        in_flight=in_flight,
        available=available,
        where="host memory",
        kv_bytes=kv_gib * mem.GIB,
    )
    return _Choices(
        device="cpu",
        flags=("--language-model-only", "--block-size", str(_CPU_BLOCK_TOKENS)),
        env={"VLLM_CPU_KVCACHE_SPACE": str(kv_gib), "TORCH_COMPILE_DISABLE": "1"},
        max_model_len=length,
        batched_tokens=batched,
        steps_in_flight=_CPU_STEPS_IN_FLIGHT,
        memory=memory,
        reasons={
            **_length_reasons(facts, workload, length, memory, images=False),
            "moe_backend": "bf16 experts: the CPU kernel is the only one",
            "VLLM_CPU_KVCACHE_SPACE": f"GiB for {_CPU_SEQUENCES} sequences; the engine need not measure",
            "language_model_only": "no images on CPU: its attention reads their tokens in one direction only",
            "max_num_batched_tokens": "asked for"
            if workload.max_num_batched_tokens
            else "the same for either goal on CPU",
            "kv_cache_dtype": "the model's own: the CPU engine has no other choice",
            "block_size": "small, so that most of a state that questions share is found in the cache",
            "compilation": "none: with LoRA the CPU engine runs eager whatever is asked",
            "TORCH_COMPILE_DISABLE": "else a few functions compile at first use, by the host's C++ compiler",
        },
        notes=tuple(_workload_notes(workload, memory, shape, length, images=False)),
    )


def _require_cpu_can(facts: ModelFacts, hardware: HardwareReport, workload: Workload) -> None:
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


def _cpu_batched(workload: Workload) -> int:
    if workload.max_num_batched_tokens:
        return sizing.asked_batched_tokens(workload, images=False)
    return max(sizing.SMALL_BATCHED_TOKENS, workload.sequences)


def _cpu_kv_gib(shape: KvShape, length: int, in_flight: int, spare_gib: int) -> int:
    wanted = max(shape.floor_bytes(length, in_flight), _CPU_SEQUENCES * shape.sequence_bytes(length))
    return max(1, min(-(-wanted // mem.GIB), spare_gib))


def _sum(terms: tuple[MemoryTerm, ...]) -> int:
    return sum(term.size_bytes for term in terms)


def _left(available: int, terms: tuple[MemoryTerm, ...]) -> int:
    return max(available - _sum(terms), 0)


def _memory(
    terms: tuple[MemoryTerm, ...],
    shape: KvShape,
    *,
    length: int,
    in_flight: int,
    available: int,
    where: str,
    kv_bytes: int | None = None,
) -> MemoryPlan:
    floor = shape.floor_bytes(length, in_flight)
    mem.require_fit(terms, max(floor, kv_bytes or 0), available, where, length)
    if kv_bytes is not None:
        mem.require_floor(floor, kv_bytes, length)
    return MemoryPlan(
        available_bytes=available,
        terms=terms,
        kv_cache_bytes=_left(available, terms) if kv_bytes is None else kv_bytes,
        kv_floor_bytes=floor,
        kv_sequence_bytes=shape.sequence_bytes(length),
        kv_block_bytes=shape.block_bytes,
    )


def _length_reasons(
    facts: ModelFacts, workload: Workload, length: int, memory: MemoryPlan, *, images: bool
) -> dict[str, str]:
    if workload.max_model_len is not None:
        how = "asked for"
    elif length == facts.max_position_embeddings:
        how = "the model's own"
    else:
        how = "the longest whose startup floor fits, within the default cap"
    return {
        "max_model_len": f"{how}; longest request: {describe(workload, images=images)}; "
        f"{memory.sequences:.1f} such sequences fit the KV cache at once"
    }


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
