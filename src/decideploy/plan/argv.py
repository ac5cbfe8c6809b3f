"""What every launch has: the arguments of ``vllm serve``, its environment, and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from decideploy.hardware import Gpu
from decideploy.plan.workload import Workload

if TYPE_CHECKING:
    from decideploy.artifacts import AdapterFacts, ModelFacts

ADAPTER_NAME = "system1"
# Written out here: the plan needs nothing of what it names.
GATEWAY = "decideploy.gateway.Gateway"
# The engine tells so many of each token at most; choices have more.
_FEWEST_LOGPROBS = 20
# A multiple of two blocks of either platform.
_RETAINED_EVERY_TOKENS = 256
# Longer than the 60 s for which load balancers keep idle connections, so that it is they who end them.
_KEEP_ALIVE_S = 75
_PREPARED_IMAGES_GIB = 1
# vLLM takes an empty list for every domain; names under .invalid never exist.
_NO_DOMAIN = "none.invalid"


def make_argv(
    facts: ModelFacts,
    adapter: AdapterFacts,
    workload: Workload,
    flags: tuple[str, ...],
    *,
    name: str,
    lora_rank: int,
    max_model_len: int,
    batched_tokens: int,
) -> tuple[str, ...]:
    """``vllm serve MODEL`` with what each launch needs, the platform's ``flags``, and the operator's own."""
    return (
        *("vllm", "serve", str(facts.path)),
        *("--host", workload.host, "--port", str(workload.port)),
        *("--served-model-name", name),
        *("--enable-lora", "--lora-modules", f"{ADAPTER_NAME}={adapter.path}"),
        *("--max-loras", "1", "--max-lora-rank", str(lora_rank)),
        *("--lora-target-modules", *adapter.lora_target_modules),
        *("--logprobs-mode", "processed_logprobs"),
        *("--max-logprobs", str(max(_FEWEST_LOGPROBS, facts.num_slots))),
        *("--max-model-len", str(max_model_len)),
        *("--max-num-seqs", str(workload.sequences)),
        *("--max-num-batched-tokens", str(batched_tokens)),
        *("--prefix-cache-retention-interval", str(_RETAINED_EVERY_TOKENS)),
        *("--shutdown-timeout", str(workload.shutdown_timeout_s)),
        *("--middleware", GATEWAY),
        *("--allowed-origins", "[]"),
        "--disable-uvicorn-access-log",
        "--fail-on-environ-validation",
        *("--allowed-media-domains", *media_domains(workload)),
        *flags,
        *workload.extra_args,
    )


def media_domains(workload: Workload) -> tuple[str, ...]:
    """The hosts from which the engine may fetch images, or one name that does not exist."""
    return workload.image_hosts or (_NO_DOMAIN,)


def image_flags(workload: Workload) -> tuple[str, ...]:
    """Images only, and no more than asked: a video alone can be longer than a small card's step."""
    if not workload.images:
        return ("--language-model-only",)
    limits = {"image": workload.max_images, "video": 0, "audio": 0}
    return (
        *("--limit-mm-per-prompt", json.dumps(limits, separators=(",", ":"))),
        *("--mm-processor-cache-gb", str(_PREPARED_IMAGES_GIB)),
    )


def image_reasons(workload: Workload) -> dict[str, str]:
    """Why, for :func:`image_flags`."""
    if not workload.images:
        return {"language_model_only": "asked for: the vision tower is not loaded"}
    return {
        "limit_mm_per_prompt": "images a request; a video would have to fit a step whole",
        "mm_processor_cache_gb": "host memory for prepared images: one is prepared once for all questions",
    }


def common_reasons(adapter: AdapterFacts, workload: Workload, lora_rank: int) -> dict[str, str]:
    """Why, for what every launch has."""
    return {
        "max_num_seqs": _sequences_reason(workload),
        "max_lora_rank": f"smallest that holds rank {adapter.rank} (given {lora_rank})",
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


def _sequences_reason(workload: Workload) -> str:
    text = f"{workload.sequences} requests a step; tables and logits grow with it"
    return f"asked for: {text}" if workload.max_num_seqs else f"for {workload.clients} clients: {text}"


def make_env(workload: Workload) -> dict[str, str]:
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
    return env | _cache_folders(workload)


def gpu_env(gpu: Gpu, workload: Workload) -> dict[str, str]:
    """What numbers GPUs for the engine as NVML does for the probe, and shows it ``gpu`` alone if asked to.

    CUDA's own order begins with the fastest card: with several kinds of card, number 1 would be another. An
    id needs no order.
    """
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if workload.gpu_index is None:
        return order
    return order | {"CUDA_VISIBLE_DEVICES": gpu.uuid.value or str(gpu.index)}


def _cache_folders(workload: Workload) -> dict[str, str]:
    root = workload.cache_root
    if root is None:
        return {}
    return {
        "VLLM_CACHE_ROOT": str(root / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(root / "inductor"),
        "TRITON_CACHE_DIR": str(root / "triton"),
        "FLASHINFER_WORKSPACE_BASE": str(root / "flashinfer"),
    }
