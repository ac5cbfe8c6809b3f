"""The engine seam over vLLM's in-process client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from vllm.exceptions import GracefulHTTPError, VLLMError
from vllm.inputs import tokens_input
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

from decideploy.decide import ADAPTER_NAME
from decideploy.decide.schema import MAX_OPTIONS
from decideploy.errors import ConfigError, Diagnostic, EngineError, VerificationError

if TYPE_CHECKING:
    from vllm.engine.protocol import EngineClient

PROCESSED_LOGPROBS: Final = "processed_logprobs"
LOGITS_PROCESSOR_GROUP: Final = "vllm.logits_processors"


class VllmEngine:
    """Reads the next token's distribution with the decision adapter, or without it.

    ``client`` is vLLM's engine client, ``adapter`` the request of the adapter that it serves. Raises
    VerificationError when the engine's settings would change or hide the distribution.
    """

    def __init__(self, client: EngineClient, adapter: LoRARequest) -> None:
        check_engine(client.vllm_config)
        self._client = client
        self._adapter = adapter

    async def read(
        self,
        prompt_token_ids: Sequence[int],
        allowed_token_ids: Sequence[int],
        *,
        use_adapter: bool = True,
        request_id: str,
    ) -> Mapping[int, float]:
        """Log-probabilities (nats) of ``allowed_token_ids``, normalised over them, by token id."""
        stream = self._client.generate(
            tokens_input(list(prompt_token_ids)),
            sampling_params(allowed_token_ids),
            request_id,
            lora_request=self._adapter if use_adapter else None,
        )
        try:
            # Closing the stream is what aborts the request when this task is cancelled.
            async with aclosing(stream):
                outputs = [output async for output in stream]
        except (EngineDeadError, GracefulHTTPError) as error:
            raise EngineError(f"the engine is not ready: {error}", status=503) from error
        except VLLMError as error:
            raise EngineError(f"the engine failed: {error or type(error).__name__}", status=502) from error
        return first_logprobs(outputs)


def sampling_params(allowed_token_ids: Sequence[int]) -> SamplingParams:
    """One token, and the whole distribution over ``allowed_token_ids``.

    Each setting that could truncate, reshape or mark the distribution is set here, because what a request
    leaves open may be filled from the model's generation config by a caller of another release.
    """
    return SamplingParams(
        max_tokens=1,
        min_tokens=0,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        watermarking=False,
        allowed_token_ids=list(allowed_token_ids),
        logprobs=len(allowed_token_ids),
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def first_logprobs(outputs: Sequence[Any]) -> dict[int, float]:
    """Token id → log-probability of the one token in vLLM's ``outputs``; EngineError(502) without any."""
    completions = outputs[-1].outputs if outputs else ()
    if not completions or not completions[0].logprobs:
        reason = completions[0].finish_reason if completions else "no output"
        raise EngineError(f"the engine gave no log-probabilities ({reason})", status=502)
    return {token_id: entry.logprob for token_id, entry in completions[0].logprobs[0].items()}


def find_adapter(adapters: Mapping[str, LoRARequest]) -> LoRARequest:
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
    faults = tuple(engine_faults(vllm_config.model_config))
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
    if 0 <= model_config.max_logprobs < MAX_OPTIONS:
        yield Diagnostic(
            code="max-logprobs",
            what=f"max_logprobs is {model_config.max_logprobs}; a choice reads up to {MAX_OPTIONS}",
            where="vllm serve --max-logprobs",
            next_step=f"start the engine with --max-logprobs {MAX_OPTIONS} or more",
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
