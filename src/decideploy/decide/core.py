"""One decision, from the request to the answer, over any engine."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from decideploy.decide.calibration import Calibration
from decideploy.decide.encoder import PromptEncoder
from decideploy.decide.head import DecisionHead
from decideploy.decide.readout import allowed_token_ids, read_out
from decideploy.decide.schema import DecideRequest, DecideResponse, RequestError, Usage
from decideploy.decide.template import render

# The name under which the engine serves the decision adapter.
ADAPTER_NAME: Final = "system1"
# A decision reads the distribution of one token.
COMPLETION_TOKENS: Final = 1
# Longer texts take milliseconds to encode, in which the event loop would serve nobody.
LONG_TEXT_CHARACTERS: Final = 8192


class Engine(Protocol):
    """The one seam to the inference engine."""

    async def read(
        self,
        prompt_token_ids: Sequence[int],
        allowed_token_ids: Sequence[int],
        *,
        use_adapter: bool = True,
        request_id: str,
    ) -> Mapping[int, float]:
        """Log-probabilities (nats) of ``allowed_token_ids`` as the next token, by token id.

        Raises EngineError: 503 not ready, 504 timeout, 502 bad reply. Cancelling aborts the request.
        """
        ...


async def decide(
    request: DecideRequest,
    *,
    engine: Engine,
    encoder: PromptEncoder,
    head: DecisionHead,
    calibration: Calibration,
    max_model_len: int,
) -> DecideResponse:
    """Answer ``request``: one prefill, one token's distribution.

    Raises RequestError when the prompt does not fit ``max_model_len`` tokens (it is never truncated) and
    EngineError when the engine does not give every slot.
    """
    text = render(request)
    # A text that cannot fit is refused before the seconds that its encoding would take.
    check_length(encoder.fewest_tokens(text), max_model_len, counted="at least ")
    prompt_token_ids = await encode(text, encoder)
    check_length(len(prompt_token_ids), max_model_len)
    options = request.answer_options
    logprobs = await engine.read(
        prompt_token_ids,
        allowed_token_ids(head, request.kind, len(options)),
        request_id=f"decide-{uuid.uuid4().hex}",
    )
    temperature = calibration.temperature(request.kind)
    probabilities = read_out(logprobs, request.kind, len(options), head, temperature)
    return answer(options, probabilities, prompt_tokens=len(prompt_token_ids))


async def encode(text: str, encoder: PromptEncoder) -> list[int]:
    """Token ids of ``text``, BOS first, off the event loop when the text is long."""
    if len(text) < LONG_TEXT_CHARACTERS:
        return encoder.encode(text)
    return await asyncio.to_thread(encoder.encode, text)


def check_length(prompt_tokens: int, max_model_len: int, *, counted: str = "") -> None:
    """Raise RequestError when prompt and answer exceed ``max_model_len`` tokens; ``counted`` says how."""
    if prompt_tokens + COMPLETION_TOKENS > max_model_len:
        raise RequestError(
            f"the prompt has {counted}{prompt_tokens} tokens; with the answer's {COMPLETION_TOKENS} this "
            f"exceeds the server's max_model_len of {max_model_len}. "
            "Input is never truncated: shorten the state",
            param="state",
            code="context_length_exceeded",
            status=400,
        )


def answer(
    options: tuple[str, ...], probabilities: tuple[float, ...], *, prompt_tokens: int
) -> DecideResponse:
    """The response; of equally probable options the first is chosen."""
    choice_index = probabilities.index(max(probabilities))
    return DecideResponse(
        options=options,
        probabilities=probabilities,
        choice=options[choice_index],
        choice_index=choice_index,
        usage=Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=COMPLETION_TOKENS,
            total_tokens=prompt_tokens + COMPLETION_TOKENS,
        ),
    )
