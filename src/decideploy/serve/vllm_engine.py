"""The engine seam over vLLM's in-process client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from vllm.exceptions import GracefulHTTPError, VLLMError
from vllm.inputs import tokens_input
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

from decideploy.errors import EngineError

if TYPE_CHECKING:
    from vllm.engine.protocol import EngineClient


class VllmEngine:
    """Reads the next token's distribution with the decision adapter, or without it.

    ``client`` is vLLM's engine client, checked by :func:`decideploy.serve.engine_settings.check_engine`;
    ``adapter`` is vLLM's request of the adapter that it serves.
    """

    def __init__(self, client: EngineClient, adapter: LoRARequest) -> None:
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
