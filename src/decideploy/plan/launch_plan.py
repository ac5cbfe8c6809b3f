"""``plan``: every choice of the launch, each with its reason."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from decideploy.errors import ConfigError, ProbeError
from decideploy.hardware import Gpu, HardwareReport, KernelPath, attention_backend, kernel_path
from decideploy.hardware.kernels import is_unified_memory
from decideploy.plan import memory as mem
from decideploy.plan.memory import KvShape, MemoryPlan, MemoryTerm
from decideploy.plan.workload import Workload

if TYPE_CHECKING:
    from decideploy.artifacts import AdapterFacts, ModelFacts

SCHEMA_VERSION = 1
ADAPTER_NAME = "system1"
# Written out here: the plan needs nothing of what it names.
GATEWAY = "decideploy.gateway.Gateway"

_LORA_RANKS = (8, 16, 32)
_SHORTEST_MODEL_LEN = 512
_GPU_MODEL_LEN, _CPU_MODEL_LEN = 32_768, 8_192
_GPU_BATCHED_TOKENS, _SMALL_BATCHED_TOKENS = 4_096, 2_048
_SMALL_GPU_BYTES = 40 * mem.GIB
# The CPU engine's own 128 leaves up to 255 tokens of a shared state to be read again by each question.
_GPU_BLOCK_TOKENS, _CPU_BLOCK_TOKENS = 16, 32
# A multiple of two blocks of either platform.
_RETAINED_EVERY_TOKENS = 256
# Longer than the 60 s for which load balancers keep idle connections, so that it is they who end them.
_KEEP_ALIVE_S = 75
# vLLM compares free memory with its share after the CUDA context exists.
_GPU_RESERVE_BYTES = 768 * mem.MIB
_CPU_SEQUENCES = 4
_PREPARED_IMAGES_GIB = 1
# vLLM takes an empty list for every domain; names under .invalid never exist.
_NO_DOMAIN = "none.invalid"


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlan:
    """One launch. ``argv`` starts with ``vllm serve MODEL``; ``env`` is added to the environment.

    ``moe_backend`` is the value of --moe-backend, None when the engine's only kernel is used. ``reasons``
    explains each choice by its name.
    """

    platform: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    served_model_name: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    capture_sizes: tuple[int, ...]
    moe_backend: str | None
    kernel: KernelPath | None
    memory: MemoryPlan
    reasons: Mapping[str, str]
    inputs_sha256: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready values with ``schema_version`` and the digests of its inputs."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self), "memory": self.memory.to_dict()}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choices:
    """What differs between the platforms, settled before argv is assembled."""

    flags: tuple[str, ...]
    env: Mapping[str, str]
    max_model_len: int
    batched_tokens: int
    memory: MemoryPlan
    reasons: Mapping[str, str]
    capture_sizes: tuple[int, ...] = ()
    kernel: KernelPath | None = None
    moe_backend: str | None = None


def plan(facts: ModelFacts, hardware: HardwareReport, *, workload: Workload | None = None) -> LaunchPlan:
    """Choose kernel path, memory settings, argv and environment. Pure: same inputs, same plan.

    Raises CapacityError when it does not fit, ProbeError when the hardware cannot run it or is not known well
    enough, ConfigError when the workload contradicts the model.
    """
    workload = workload or Workload()
    adapter = _adapter(facts)
    rank = _engine_rank(adapter)
    choose = _cuda_choices if hardware.platform == "cuda" else _cpu_choices
    choices = choose(facts, hardware, workload, rank)
    name = workload.served_model_name or facts.name
    return LaunchPlan(
        platform=hardware.platform,
        argv=_argv(facts, adapter, workload, choices, name=name, rank=rank),
        env={**_env(workload), **choices.env},
        served_model_name=name,
        max_model_len=choices.max_model_len,
        max_num_seqs=workload.max_num_seqs,
        max_num_batched_tokens=choices.batched_tokens,
        capture_sizes=choices.capture_sizes,
        moe_backend=choices.moe_backend,
        kernel=choices.kernel,
        memory=choices.memory,
        reasons={**_common_reasons(adapter, workload, rank), **choices.reasons},
        inputs_sha256={"hardware": _sha256(asdict(hardware)), "workload": _sha256(asdict(workload))},
    )


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


def _cuda_choices(facts: ModelFacts, hardware: HardwareReport, workload: Workload, rank: int) -> _Choices:
    gpu = _chosen_gpu(hardware, workload)
    kernel = _kernel(facts, gpu, hardware, workload)
    backend = workload.moe_backend or (kernel.backend if kernel else None)
    total, free, source = _gpu_memory(gpu, hardware)
    utilization = _utilization(total, free, workload)
    batched = _gpu_batched_tokens(total, workload)
    sizes = capture_sizes(workload.max_num_seqs, min(workload.prompt_tokens, batched))
    step = mem.step_terms(facts, max_num_seqs=workload.max_num_seqs, batched_tokens=batched)
    terms = (
        *mem.weight_terms(facts, images=workload.images, lora_rank=rank),
        *mem.repacked_terms(facts, backend),
        *step,
        *(_vision_terms(workload, step, batched=batched, total=total) if workload.images else ()),
        *mem.cuda_terms(len(sizes)),
    )
    available = -(-total * utilization // 1000)
    shape = KvShape.of(facts, _GPU_BLOCK_TOKENS)
    length = _model_len(
        facts, workload, shape, batched=batched, cap=_GPU_MODEL_LEN, left_bytes=_left(available, terms)
    )
    memory = _memory(
        terms, shape, length=length, batched=batched, available=available, where=f"GPU {gpu.index}"
    )
    attention = attention_backend(gpu.compute_capability.value, packages=hardware.host.packages.value)
    return _Choices(
        flags=(
            *_cuda_flags(workload, kernel, backend, utilization, sizes),
            *(("--attention-backend", attention[0]) if attention else ()),
        ),
        env={"CUDA_VISIBLE_DEVICES": str(workload.gpu_index)} if workload.gpu_index is not None else {},
        max_model_len=length,
        batched_tokens=batched,
        memory=memory,
        capture_sizes=sizes,
        kernel=kernel,
        moe_backend=backend,
        reasons={
            **_kernel_reasons(kernel, workload),
            **_length_reasons(facts, workload, length, memory),
            **_image_reasons(workload),
            **({"attention_backend": attention[1]} if attention else {}),
            "gpu_memory_utilization": _utilization_reason(total, free, utilization, source),
            "max_num_batched_tokens": _batched_reason(batched, workload),
            "cudagraph_capture_sizes": f"System 1 only prefills: graphs for prompts to {sizes[-1]} tokens",
        },
    )


def _chosen_gpu(hardware: HardwareReport, workload: Workload) -> Gpu:
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
    kernel = kernel_path(capability.value, patched=workload.patched, packages=hardware.host.packages.value)
    if workload.tensor_parallel_size > 1 and kernel.unpadded:
        raise ConfigError(
            f"{kernel.backend} does not pad {facts.moe_intermediate_size} columns "
            f"split over {workload.tensor_parallel_size} GPUs",
            where="tensor_parallel_size",
            next_step="run one replica a GPU (the model fits one), or force moe_backend marlin",
        )
    return kernel


def _gpu_memory(gpu: Gpu, hardware: HardwareReport) -> tuple[int, int, str]:
    """Total and free bytes, and whence. On unified memory the host's figures count; unknown is an error."""
    if is_unified_memory(gpu.compute_capability.value) and hardware.host.ram_total_bytes.value:
        total = gpu.total_bytes.value or hardware.host.ram_total_bytes.value
        return total, min(total, _host_free(hardware)), "unified memory: what the host has available"
    if gpu.total_bytes.value is None:
        raise ProbeError(
            f"the memory of GPU {gpu.index} is unknown",
            where=gpu.total_bytes.source,
            next_step="plan for a known card with --hardware NAME",
        )
    if gpu.free_bytes.value is None:
        return gpu.total_bytes.value, gpu.total_bytes.value, "an empty card is assumed"
    return gpu.total_bytes.value, gpu.free_bytes.value, "free memory, not total"


def _utilization(total: int, free: int, workload: Workload) -> int:
    """Thousandths of the total that vLLM may take: the asked share, less when others hold memory."""
    asked = round(workload.gpu_memory_utilization * 1000)
    possible = max(free - _GPU_RESERVE_BYTES, 0) * 1000 // total
    return max(min(asked, possible), 1)


def _utilization_reason(total: int, free: int, utilization: int, source: str) -> str:
    return (
        f"{utilization / 1000:.3f} of {total / mem.GIB:.1f} GiB, {free / mem.GIB:.1f} GiB free ({source}); "
        "vLLM refuses a share larger than what is free after its CUDA context"
    )


def _gpu_batched_tokens(total: int, workload: Workload) -> int:
    """By the card, not by what is free now: otherwise a little more free memory could mean less KV."""
    small = total < _SMALL_GPU_BYTES
    default = _SMALL_BATCHED_TOKENS if small else _GPU_BATCHED_TOKENS
    return workload.max_num_batched_tokens or max(default, workload.max_num_seqs)


def _batched_reason(batched: int, workload: Workload) -> str:
    if workload.max_num_batched_tokens:
        return "asked for"
    return (
        f"a step holds {batched // 256} decisions of 256 tokens; workspace and KV startup floor grow with it"
    )


def capture_sizes(max_num_seqs: int, prompt_tokens: int) -> tuple[int, ...]:
    """Batch sizes, in tokens, to capture: every decode batch and prompts up to ``prompt_tokens``.

    A batch is padded to the next size, so steps stay within a tenth of a prompt above 512 tokens.
    """
    decode = {1, 2, 4, *range(8, max_num_seqs + 1, 8)}
    prompts = {*range(96, 513, 32), *range(576, prompt_tokens + 1, 64), prompt_tokens}
    ceiling = max(prompt_tokens, 1)
    return tuple(sorted(size for size in decode | prompts if 1 <= size <= ceiling))


def _cuda_flags(
    workload: Workload,
    kernel: KernelPath | None,
    backend: str | None,
    utilization: int,
    sizes: tuple[int, ...],
) -> tuple[str, ...]:
    flags = ["--gpu-memory-utilization", f"{utilization / 1000:.3f}"]
    flags += ["--cudagraph-capture-sizes", *map(str, sizes)]
    if backend:
        flags += ["--moe-backend", backend]
    if kernel and kernel.dtype:
        flags += ["--dtype", kernel.dtype]
    if workload.tensor_parallel_size > 1:
        flags += ["--tensor-parallel-size", str(workload.tensor_parallel_size)]
    return (*flags, *_image_flags(workload))


def _vision_terms(
    workload: Workload, step: tuple[MemoryTerm, ...], *, batched: int, total: int
) -> tuple[MemoryTerm, ...]:
    return mem.vision_terms(
        max_num_seqs=workload.max_num_seqs,
        max_images=workload.max_images,
        batched_tokens=batched,
        total_bytes=total,
        step=step,
    )


def media_domains(workload: Workload) -> tuple[str, ...]:
    """The hosts from which the engine may fetch images, or one name that does not exist."""
    return workload.image_hosts or (_NO_DOMAIN,)


def _image_flags(workload: Workload) -> tuple[str, ...]:
    """Images only, and no more than asked: a video alone can be longer than a small card's step."""
    if not workload.images:
        return ("--language-model-only",)
    limits = {"image": workload.max_images, "video": 0, "audio": 0}
    return (
        *("--limit-mm-per-prompt", json.dumps(limits, separators=(",", ":"))),
        *("--mm-processor-cache-gb", str(_PREPARED_IMAGES_GIB)),
    )


def _image_reasons(workload: Workload) -> dict[str, str]:
    if not workload.images:
        return {"language_model_only": "asked for: the vision tower is not loaded"}
    return {
        "limit_mm_per_prompt": "images a request; a video would have to fit a step whole",
        "mm_processor_cache_gb": "host memory for prepared images: one is prepared once for all questions",
    }


def _kernel_reasons(kernel: KernelPath | None, workload: Workload) -> dict[str, str]:
    if workload.moe_backend:
        return {"moe_backend": "asked for; the engine refuses it when it cannot run"}
    if kernel is None:
        return {"moe_backend": "experts are not NVFP4: the engine's own choice"}
    text = f"compute capability {kernel.compute_capability}, {kernel.activation}: {kernel.reason}"
    return {"moe_backend": text}


def _cpu_choices(facts: ModelFacts, hardware: HardwareReport, workload: Workload, rank: int) -> _Choices:
    if facts.quant_algo == "NVFP4":
        raise ProbeError(
            "NVFP4 experts have no CPU kernel",
            where=str(facts.path),
            next_step="serve the bf16 model here, or the NVFP4 model on a GPU (plan it with --hardware NAME)",
        )
    batched = workload.max_num_batched_tokens or max(_SMALL_BATCHED_TOKENS, workload.max_num_seqs)
    terms = (
        *mem.weight_terms(facts, images=False, lora_rank=rank),
        *mem.step_terms(facts, max_num_seqs=workload.max_num_seqs, batched_tokens=batched),
        *mem.cpu_terms(),
    )
    # A tenth stays for the page cache and everything else on the host.
    available = _host_free(hardware) * 9 // 10
    shape = KvShape.of(facts, _CPU_BLOCK_TOKENS)
    spare_gib = _left(available, terms) // mem.GIB
    length = _model_len(
        facts, workload, shape, batched=batched, cap=_CPU_MODEL_LEN, left_bytes=spare_gib * mem.GIB
    )
    kv_gib = _cpu_kv_gib(shape, length, batched, spare_gib)
    memory = _memory(
        terms,
        shape,
        length=length,
        batched=batched,
        available=available,
        where="host memory",
        kv_bytes=kv_gib * mem.GIB,
    )
    return _Choices(
        flags=("--language-model-only", "--block-size", str(_CPU_BLOCK_TOKENS)),
        env={"VLLM_CPU_KVCACHE_SPACE": str(kv_gib)},
        max_model_len=length,
        batched_tokens=batched,
        memory=memory,
        reasons={
            **_length_reasons(facts, workload, length, memory),
            "moe_backend": "bf16 experts: the CPU kernel is the only one",
            "VLLM_CPU_KVCACHE_SPACE": f"GiB for {_CPU_SEQUENCES} sequences; the engine need not measure",
            "language_model_only": "no images on CPU: its attention reads their tokens in one direction only",
            "block_size": "small, so that most of a state that questions share is found in the cache",
            "compilation": "none: with LoRA the CPU engine runs eager whatever is asked",
        },
    )


def _cpu_kv_gib(shape: KvShape, length: int, batched: int, spare_gib: int) -> int:
    wanted = max(shape.floor_bytes(length, batched), _CPU_SEQUENCES * shape.sequence_bytes(length))
    return max(1, min(-(-wanted // mem.GIB), spare_gib))


def _host_free(hardware: HardwareReport) -> int:
    """Bytes that a new process may take: available RAM within the cgroup's limit."""
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


def _left(available: int, terms: tuple[MemoryTerm, ...]) -> int:
    return max(available - sum(term.size_bytes for term in terms), 0)


def _model_len(
    facts: ModelFacts, workload: Workload, shape: KvShape, *, batched: int, cap: int, left_bytes: int
) -> int:
    """The asked length, else the longest power of two whose startup floor fits."""
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
    return next((n for n in lengths if shape.floor_bytes(n, batched) <= left_bytes), lengths[-1])


def _memory(
    terms: tuple[MemoryTerm, ...],
    shape: KvShape,
    *,
    length: int,
    batched: int,
    available: int,
    where: str,
    kv_bytes: int | None = None,
) -> MemoryPlan:
    floor = shape.floor_bytes(length, batched)
    mem.require_fit(terms, max(floor, kv_bytes or 0), available, where)
    return MemoryPlan(
        available_bytes=available,
        terms=terms,
        kv_cache_bytes=_left(available, terms) if kv_bytes is None else kv_bytes,
        kv_floor_bytes=floor,
        kv_sequence_bytes=shape.sequence_bytes(length),
    )


def _length_reasons(facts: ModelFacts, workload: Workload, length: int, memory: MemoryPlan) -> dict[str, str]:
    if workload.max_model_len is not None:
        how = "asked for"
    elif length == facts.max_position_embeddings:
        how = "the model's own"
    else:
        how = "the longest whose startup floor fits, within the default cap"
    return {"max_model_len": f"{how}; {memory.sequences:.1f} such sequences fit the KV cache at once"}


def _common_reasons(adapter: AdapterFacts, workload: Workload, rank: int) -> dict[str, str]:
    return {
        "max_num_seqs": f"{workload.max_num_seqs} requests a step; tables and logits grow with it",
        "max_lora_rank": f"smallest that holds rank {adapter.rank} (given {rank})",
        "lora_target_modules": "only these are wrapped; else every expert is, at 2.5 GiB and slower kernels",
        "logprobs_mode": "processed: the decision's distribution is over the allowed tokens only",
        "max_logprobs": "every slot must come back; a missing one is an error",
        "shutdown_timeout": f"{workload.shutdown_timeout_s} s to finish requests; the default aborts them",
        "middleware": "keys, limits, readiness and drain in front of every route, the engine's own included",
        "allowed_origins": "none: the engine's default lets every web page read its answers",
        "disable_uvicorn_access_log": "the middleware logs each request, with its id and no query string",
        "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "the middleware refuses requests at once, then ends the server",
        "prefix_cache_retention_interval": "tokens; else the second question over a state finds nothing",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "seconds; longer than proxies keep idle connections",
        "fail_on_environ_validation": "a VLLM_ variable that this release does not know stops the start",
        "allowed_media_domains": "whence the engine's own routes fetch images; without redirects",
        "generation_config": "the model's own, for System 2; System 1 pins its sampling in each request",
    }


def _argv(
    facts: ModelFacts, adapter: AdapterFacts, workload: Workload, choices: _Choices, *, name: str, rank: int
) -> tuple[str, ...]:
    return (
        *("vllm", "serve", str(facts.path)),
        *("--host", workload.host, "--port", str(workload.port)),
        *("--served-model-name", name),
        *("--enable-lora", "--lora-modules", f"{ADAPTER_NAME}={adapter.path}"),
        *("--max-loras", "1", "--max-lora-rank", str(rank)),
        *("--lora-target-modules", *adapter.lora_target_modules),
        *("--logprobs-mode", "processed_logprobs"),
        *("--max-logprobs", str(max(20, facts.head.slots.num_slots))),
        *("--max-model-len", str(choices.max_model_len)),
        *("--max-num-seqs", str(workload.max_num_seqs)),
        *("--max-num-batched-tokens", str(choices.batched_tokens)),
        *("--prefix-cache-retention-interval", str(_RETAINED_EVERY_TOKENS)),
        *("--shutdown-timeout", str(workload.shutdown_timeout_s)),
        *("--middleware", GATEWAY),
        *("--allowed-origins", "[]"),
        "--disable-uvicorn-access-log",
        "--fail-on-environ-validation",
        *("--allowed-media-domains", *media_domains(workload)),
        *choices.flags,
        *workload.extra_args,
    )


def _env(workload: Workload) -> dict[str, str]:
    """Loaded plugins, no telemetry, no network: the model is local by now. Fixed cache folders when named."""
    env = {
        "VLLM_PLUGINS": "decideploy",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(_KEEP_ALIVE_S),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    }
    if workload.cache_root is None:
        return env
    root = workload.cache_root
    return env | {
        "VLLM_CACHE_ROOT": str(root / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(root / "inductor"),
        "TRITON_CACHE_DIR": str(root / "triton"),
        "FLASHINFER_WORKSPACE_BASE": str(root / "flashinfer"),
    }


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
