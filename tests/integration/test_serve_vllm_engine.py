"""The plugin's engine seam, written against vLLM's own types and errors."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from decide_fakes import write_model
from vllm_fakes import BUILD, FakeClient, start

from decideploy.decide import parse_request
from decideploy.errors import EngineError
from decideploy.serve.plugin import DecidePlugin

# vLLM and torch warn about themselves when imported.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]


def decide(state: SimpleNamespace) -> Any:
    return asyncio.run(
        state.decideploy.decide(parse_request({"kind": "score", "state": "s", "question": "q"}))
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path)


def test_the_plugin_fits_vllms_protocol() -> None:
    from vllm.plugins.endpoint_plugins.interface import EndpointPlugin

    assert isinstance(DecidePlugin(), EndpointPlugin)


def test_a_decision_reads_the_whole_distribution_with_the_adapter(model: Path) -> None:
    client = FakeClient()
    response = decide(start(model, client))
    assert len(response.probabilities) == 6
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
    asyncio.run(state.decideploy.engine.read([2, 7], [300, 301], use_adapter=False, request_id="r"))
    assert client.calls[0]["lora"] is None


def test_info_tells_build_and_model(model: Path) -> None:
    info = start(model, FakeClient()).decideploy.info()
    assert (info.model, info.max_model_len, info.build.version) == ("demo", 512, BUILD.version)
    assert info.build.patches == ("0001-lora.patch",)


def test_unlimited_logprobs_are_enough(model: Path) -> None:
    assert start(model, FakeClient(max_logprobs=-1)).decideploy.max_model_len == 512


def completion(logprobs: Any) -> Any:
    return SimpleNamespace(outputs=[SimpleNamespace(logprobs=logprobs, finish_reason="abort")])


@pytest.mark.parametrize("outputs", [[], [completion(None)], [completion([])], [SimpleNamespace(outputs=[])]])
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
        reading = asyncio.create_task(state.decideploy.engine.read([2], [300, 301], request_id="r"))
        while not client.calls:
            await asyncio.sleep(0)
        assert client.closed == 0
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    asyncio.run(cancel())
    assert client.closed == 1
