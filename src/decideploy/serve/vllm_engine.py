"""The engine seam over vLLM's in-process client."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from vllm.exceptions import GracefulHTTPError, VLLMError
from vllm.inputs import TokensPrompt, tokens_input
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

from decideploy.decide import Generation, Prompt, Reading, RequestError
from decideploy.decide.prompts import ImageTokens
from decideploy.errors import EngineError
from decideploy.gateway.trace import TRACE_HEADERS

if TYPE_CHECKING:
    from vllm.engine.protocol import EngineClient
    from vllm.outputs import RequestOutput

# vLLM's two processes remember images apart from each other. When they disagree, as after a request that
# was cancelled between them, a request ends with this reason, the memory is corrected, and it may come again.
LOST_IMAGE: Final = "error"
IMAGE_ATTEMPTS: Final = 3
# What the engine puts around the tokens of an image: its begin and its end.
TOKENS_AROUND_IMAGE: Final = 2


class VllmEngine:
    """Reads with the decision adapter or without it, and lets the base model write.

    ``client`` is vLLM's engine client, checked by :func:`decideploy.serve.engine_settings.check_engine`;
    ``adapter`` is vLLM's request of the adapter that it serves.
    """

    def __init__(self, client: EngineClient, adapter: LoRARequest) -> None:
        self._client = client
        self._adapter = adapter
        # What the model's generation config recommends for writing.
        self._writing_defaults = client.vllm_config.model_config.get_diff_sampling_param()

    async def read(
        self,
        prompt: Prompt,
        allowed_token_ids: Sequence[int],
        *,
        use_adapter: bool = True,
        request_id: str,
    ) -> Reading:
        """Log-probabilities (nats) of ``allowed_token_ids``, normalised over them."""
        adapter = self._adapter if use_adapter else None
        output = await self._last(prompt, sampling_params(allowed_token_ids), request_id, adapter)
        return Reading(
            logprobs=first_logprobs(output),
            prompt_tokens=len(output.prompt_token_ids or ()),
            cached_tokens=output.num_cached_tokens or 0,
        )

    async def generate(
        self, prompt: Prompt, *, max_tokens: int, stop_token_ids: Sequence[int], request_id: str
    ) -> Generation:
        """What the base model writes; one seed for all, so that a request is answered alike twice."""
        parameters = SamplingParams(
            **{**self._writing_defaults, "max_tokens": max_tokens},
            stop_token_ids=list(stop_token_ids),
            seed=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        output = await self._last(prompt, parameters, request_id, None)
        completion = output.outputs[0]
        token_ids = tuple(completion.token_ids)
        return Generation(
            token_ids=token_ids,
            stopped=bool(token_ids) and token_ids[-1] in stop_token_ids,
            prompt_tokens=len(output.prompt_token_ids or ()),
            cached_tokens=output.num_cached_tokens or 0,
        )

    async def _last(
        self, prompt: Prompt, parameters: SamplingParams, request_id: str, adapter: LoRARequest | None
    ) -> RequestOutput:
        if not prompt.images:
            return await self._run(tokens_input(list(prompt.token_ids)), parameters, request_id, adapter)
        for attempt in range(IMAGE_ATTEMPTS):
            engine_input = await self._image_input(prompt)
            output = await self._run(engine_input, parameters, f"{request_id}-{attempt}", adapter)
            if output.outputs[0].finish_reason != LOST_IMAGE:
                return output
        raise EngineError("the engine lost the request's images", status=502)

    async def _image_input(self, prompt: Prompt) -> Any:
        """The prompt with its images prepared; off the event loop, and once for images that are known."""
        request = TokensPrompt(
            prompt_token_ids=list(prompt.token_ids), multi_modal_data={"image": list(prompt.images)}
        )
        try:
            (engine_input,) = await self._client.renderer.render_cmpl_async([request])
        except VLLMError as error:
            raise EngineError(f"the engine failed: {error or type(error).__name__}", status=502) from error
        # Of the model's own image processor, for a shape that it cannot cut into patches.
        except ValueError as error:
            raise RequestError(
                f"an image cannot be read by the model: {error}", param="state", code="image_malformed"
            ) from error
        return engine_input

    async def _run(
        self, engine_input: Any, parameters: SamplingParams, request_id: str, adapter: LoRARequest | None
    ) -> RequestOutput:
        stream = self._client.generate(
            engine_input, parameters, request_id, lora_request=adapter, trace_headers=TRACE_HEADERS.get()
        )
        try:
            # Closing the stream is what aborts the request when this task is cancelled.
            async with aclosing(stream):
                outputs = [output async for output in stream]
        except (EngineDeadError, GracefulHTTPError) as error:
            raise EngineError(f"the engine is not ready: {error}", status=503) from error
        except VLLMError as error:
            raise EngineError(f"the engine failed: {error or type(error).__name__}", status=502) from error
        if not outputs or not outputs[-1].outputs:
            raise EngineError("the engine gave no output", status=502)
        return outputs[-1]


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


def first_logprobs(output: RequestOutput) -> dict[int, float]:
    """Token id → log-probability of the one token in vLLM's ``output``; EngineError(502) without any."""
    completion = output.outputs[0]
    if not completion.logprobs:
        raise EngineError(f"the engine gave no log-probabilities ({completion.finish_reason})", status=502)
    return {token_id: entry.logprob for token_id, entry in completion.logprobs[0].items()}


def image_tokens(client: EngineClient) -> ImageTokens | None:
    """How images stand in the engine's prompts; None when it was started without."""
    if max_images(client) == 0:
        return None
    config, info = client.vllm_config.model_config, client.renderer.get_mm_processor().info
    longest = info.get_mm_max_tokens_per_item(config.max_model_len, {"image": 1})["image"]
    return ImageTokens(token_id=config.hf_config.image_token_id, count=longest + TOKENS_AROUND_IMAGE)


def max_images(client: EngineClient) -> int:
    """How many images the engine takes in one prompt."""
    processor = client.renderer.mm_processor
    return processor.info.allowed_mm_limits.get("image", 0) if processor is not None else 0
