"""The plugin's engine seam, written against vLLM's own types and errors."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from decide_fakes import write_model
from vllm_fakes import BUILD, FakeClient, output, start

from decideploy.decide import Prompt, RequestError, parse_request
from decideploy.errors import EngineError
from decideploy.serve.plugin import DecidePlugin

# vLLM and torch warn about themselves when imported.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]


PROMPT = Prompt(token_ids=(2, 7))


def decide(state: SimpleNamespace, **fields: Any) -> Any:
    request = parse_request({"kind": "score", "state": "s", "question": "q", **fields})
    return asyncio.run(state.decideploy.decide(request, request_id="r"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path)


def test_the_plugin_fits_vllms_protocol() -> None:
    from vllm.plugins.endpoint_plugins.interface import EndpointPlugin

    assert isinstance(DecidePlugin(), EndpointPlugin)


def test_a_decision_reads_the_whole_distribution_with_the_adapter(model: Path) -> None:
    client = FakeClient()
    decision = decide(start(model, client))
    assert len(decision.probabilities) == 6
    assert (decision.usage.prompt_tokens, decision.usage.cached_tokens) == (40, 32)
    (call,) = client.calls
    params = call["params"]
    assert call["prompt"]["type"] == "token"
    assert call["lora"].lora_name == "system1"
    assert (params.max_tokens, params.temperature, params.top_k, params.top_p) == (1, 1.0, 0, 1.0)
    assert (params.min_p, params.repetition_penalty, params.watermarking) == (0.0, 1.0, False)
    assert (params.allowed_token_ids, params.logprobs) == ([*range(302, 308)], 6)
    assert params.detokenize is False


def test_the_base_model_is_read_without_the_adapter(model: Path) -> None:
    client = FakeClient()
    state = start(model, client)
    asyncio.run(state.decideploy.engine.read(PROMPT, [300, 301], use_adapter=False, request_id="r"))
    assert client.calls[0]["lora"] is None


def test_info_tells_build_and_model(model: Path) -> None:
    info = start(model, FakeClient()).decideploy.info()
    assert (info.model, info.max_model_len, info.build.version) == ("demo", 512, BUILD.version)
    assert info.build.patches == ("0001-lora.patch",)


def test_unlimited_logprobs_are_enough(model: Path) -> None:
    assert start(model, FakeClient(max_logprobs=-1)).decideploy.writer.max_model_len == 512


@pytest.mark.parametrize(
    "outputs", [[], [output(logprobs=None)], [output(logprobs=[])], [SimpleNamespace(outputs=[])]]
)
def test_an_answer_without_log_probabilities_is_502(model: Path, outputs: Any) -> None:
    with pytest.raises(EngineError) as caught:
        decide(start(model, FakeClient(outputs=outputs)))
    assert caught.value.status == 502


def test_vllms_errors_keep_their_meaning(model: Path) -> None:
    from vllm.exceptions import QueueOverflowError, VLLMValidationError
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    queue_full = QueueOverflowError.__new__(QueueOverflowError)
    errors = [(EngineDeadError(), 503), (queue_full, 503), (EngineGenerateError(), 502)]
    for error, status in [*errors, (VLLMValidationError("no"), 502)]:
        client = FakeClient(error=error)
        with pytest.raises(EngineError) as caught:
            decide(start(model, client))
        assert (caught.value.status, client.closed) == (status, 1)


class HangingClient(FakeClient):
    async def _linger(self) -> None:
        await asyncio.Event().wait()


def test_cancelling_closes_vllms_stream(model: Path) -> None:
    client = HangingClient()
    state = start(model, client)

    async def cancel() -> None:
        reading = asyncio.create_task(state.decideploy.engine.read(PROMPT, [300, 301], request_id="r"))
        while not client.calls:
            await asyncio.sleep(0)
        assert client.closed == 0
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    asyncio.run(cancel())
    assert client.closed == 1


def generate(client: FakeClient, model: Path) -> Any:
    engine = start(model, client).decideploy.engine
    return asyncio.run(engine.generate(PROMPT, max_tokens=5, stop_token_ids=[7, 8], request_id="r"))


def test_writing_is_the_base_models_with_its_recommended_sampling_and_one_seed(model: Path) -> None:
    client = FakeClient(outputs=[output(token_ids=[4, 5, 8])])
    written = generate(client, model)
    (call,) = client.calls
    params = call["params"]
    assert call["lora"] is None
    assert (params.max_tokens, params.stop_token_ids, params.seed) == (5, [7, 8], 0)
    assert (params.temperature, params.top_k) == (0.7, 64)
    assert (written.token_ids, written.stopped, written.prompt_tokens) == ((4, 5, 8), True, 40)


@pytest.mark.parametrize("token_ids", [[4, 5, 6], []])
def test_writing_that_its_budget_ended_has_not_stopped(model: Path, token_ids: list[int]) -> None:
    assert generate(FakeClient(outputs=[output(token_ids=token_ids)]), model).stopped is False


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [({"messages": []}, "messages: not a variable"), ({"fail": "x"}, "does not take these values")],
)
def test_template_values_that_do_not_fit_are_the_requests_fault(
    model: Path, kwargs: dict[str, Any], words: str
) -> None:
    state = start(model, FakeClient())
    with pytest.raises(RequestError, match=words) as caught:
        decide(state, kind="noul", thinking="on", chat_template_kwargs=kwargs)
    assert caught.value.param == "chat_template_kwargs"


def test_the_requests_trace_reaches_the_engine(model: Path) -> None:
    from decideploy.gateway.trace import TRACE_HEADERS

    client, trace = FakeClient(), {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    state = start(model, client)
    request = parse_request(
        {"kind": "choice", "state": "s", "question": "q", "options": [*map(str, range(20))]}
    )

    async def traced() -> None:
        TRACE_HEADERS.set(trace)
        await state.decideploy.decide(request, request_id="r")

    asyncio.run(traced())
    assert [call["trace"] for call in client.calls] == [trace] * 3
