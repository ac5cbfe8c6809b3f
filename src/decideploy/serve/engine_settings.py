"""What a running vLLM must be set to before its log-probabilities are decisions; no vLLM imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, Final, TypeVar

from decideploy.decide import ADAPTER_NAME
from decideploy.decide.images import ImagePolicy
from decideploy.decide.slots import MAX_READ_OPTIONS
from decideploy.errors import ConfigError, Diagnostic, VerificationError

PROCESSED_LOGPROBS: Final = "processed_logprobs"
# The top-level domain of names that never exist: the plan names one where no host is allowed.
NO_SUCH_DOMAIN: Final = ".invalid"
LOGITS_PROCESSOR_GROUP: Final = "vllm.logits_processors"

Adapter = TypeVar("Adapter")


def find_adapter(adapters: Mapping[str, Adapter]) -> Adapter:
    """The decision adapter among vLLM's loaded ones; ConfigError when it is not served."""
    if ADAPTER_NAME not in adapters:
        served = ", ".join(sorted(adapters)) or "none"
        raise ConfigError(
            f"the engine serves no LoRA adapter named {ADAPTER_NAME!r}; served: {served}",
            where="vllm serve --lora-modules",
            next_step=f"add --enable-lora --lora-modules {ADAPTER_NAME}=MODEL/adapter_vllm, "
            "or start with `decideploy serve`",
        )
    return adapters[ADAPTER_NAME]


def check_engine(vllm_config: Any) -> None:
    """Raise VerificationError naming every engine setting with which read-outs would be wrong or missing."""
    faults = (
        *engine_faults(vllm_config.model_config),
        *image_faults(vllm_config),
        *process_faults(vllm_config.parallel_config),
    )
    if faults:
        raise VerificationError("the engine's settings do not fit decisions", issues=faults)


def engine_faults(model_config: Any) -> Iterator[Diagnostic]:
    """One fault for each setting of vLLM's ``model_config`` that does not fit."""
    if model_config.logprobs_mode != PROCESSED_LOGPROBS:
        yield Diagnostic(
            code="logprobs-mode",
            what=f"logprobs_mode is {model_config.logprobs_mode}: slots outside the top tokens go missing",
            where="vllm serve --logprobs-mode",
            next_step=f"start the engine with --logprobs-mode {PROCESSED_LOGPROBS}",
        )
    if 0 <= model_config.max_logprobs < MAX_READ_OPTIONS:
        yield Diagnostic(
            code="max-logprobs",
            what=f"max_logprobs is {model_config.max_logprobs}; a choice reads up to {MAX_READ_OPTIONS}",
            where="vllm serve --max-logprobs",
            next_step=f"start the engine with --max-logprobs {MAX_READ_OPTIONS} or more",
        )
    installed = [entry_point.value for entry_point in entry_points(group=LOGITS_PROCESSOR_GROUP)]
    processors = [*(model_config.logits_processors or ()), *installed]
    if processors:
        yield Diagnostic(
            code="logits-processors",
            what=f"logits processors would change every decision: {', '.join(map(str, processors))}",
            where="vllm serve --logits-processors, or an installed package's entry point",
            next_step="start the engine without the option, or uninstall the package",
        )


def image_faults(vllm_config: Any) -> Iterator[Diagnostic]:
    """A fault where the engine would take images and read them otherwise than the model was trained to."""
    # vLLM's CPU attention takes such a model without a word, and reads the tokens of an image causally.
    if vllm_config.model_config.is_mm_prefix_lm and vllm_config.device_config.device_type == "cpu":
        yield Diagnostic(
            code="images-on-cpu",
            what="the tokens of an image attend to each other in both directions, which no CPU kernel does",
            where="vllm serve",
            next_step="start the engine with --language-model-only, or on a GPU",
        )


def process_faults(parallel_config: Any) -> Iterator[Diagnostic]:
    """A fault where several processes would answer one port: keys agree, but each counts for itself."""
    if (count := parallel_config._api_process_count) > 1:
        yield Diagnostic(
            code="api-server-count",
            what=f"{count} API servers share the port; the queue, readiness and drain are those of one",
            where="vllm serve --api-server-count",
            next_step="start the engine with --api-server-count 1, one server for each GPU",
        )


def image_policy(model_config: Any, max_count: int) -> ImagePolicy:
    """What images a request may bring: as many as the engine takes, from the hosts that it was told."""
    domains = model_config.allowed_media_domains or ()
    hosts = tuple(domain for domain in domains if not domain.endswith(NO_SUCH_DOMAIN))
    return ImagePolicy(max_count=max_count, allowed_hosts=hosts)
