import asyncio
from typing import Any

import pytest
from decide_fakes import FakeEngine, make_calibration, make_encoder, make_head

from decideploy.decide import DecideResponse, PromptEncoder, RequestError, decide, parse_request, render
from decideploy.decide.core import LONG_TEXT_CHARACTERS
from decideploy.errors import EngineError

HEAD = make_head(bias=[0.0] * 24)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> PromptEncoder:
    return make_encoder(tmp_path_factory.mktemp("model"))


def ask(
    encoder: PromptEncoder, engine: FakeEngine, max_model_len: int = 4096, **fields: Any
) -> DecideResponse:
    request = parse_request({"kind": "noul", "state": "s", "question": "q", **fields})
    return asyncio.run(
        decide(
            request,
            engine=engine,
            encoder=encoder,
            head=HEAD,
            calibration=make_calibration({"noul": 1.0, "choice": 2.0, "score": 1.0}),
            max_model_len=max_model_len,
        )
    )


def test_prompt_and_slots_reach_the_engine(encoder: PromptEncoder) -> None:
    engine = FakeEngine()
    ask(encoder, engine, kind="score")
    text = render(parse_request({"kind": "score", "state": "s", "question": "q"}))
    assert engine.calls == [{"prompt": encoder.encode(text), "allowed": [*range(302, 308)], "adapter": True}]


def test_answer_has_the_callers_options_and_usage(encoder: PromptEncoder) -> None:
    engine = FakeEngine(logprobs={308: -3.0, 309: -1.0, 310: -1.0})
    response = ask(encoder, engine, kind="choice", options=["one\ntwo", "b", "c"])
    assert response.options == ("one\ntwo", "b", "c")
    assert (response.choice, response.choice_index) == ("b", 1)
    prompt_tokens = len(engine.calls[0]["prompt"])
    assert response.usage.model_dump() == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 1,
        "total_tokens": prompt_tokens + 1,
    }


def test_the_kinds_temperature_applies(encoder: PromptEncoder) -> None:
    hot = ask(encoder, FakeEngine(logprobs={308: -1.0, 309: -3.0}), kind="choice", options=["a", "b"])
    cold = ask(encoder, FakeEngine(logprobs={300: -1.0, 301: -3.0}))
    assert hot.probabilities[0] == pytest.approx(0.7310585786)
    assert cold.probabilities[0] == pytest.approx(0.8807970780)


def test_the_longest_prompt_that_fits_is_answered_and_one_token_more_is_not(encoder: PromptEncoder) -> None:
    fitting = ask(encoder, FakeEngine()).usage.total_tokens
    assert ask(encoder, FakeEngine(), max_model_len=fitting).usage.total_tokens == fitting
    engine = FakeEngine()
    with pytest.raises(
        RequestError, match=rf"{fitting - 1} tokens.*max_model_len of {fitting - 1}"
    ) as caught:
        ask(encoder, engine, max_model_len=fitting - 1)
    assert (caught.value.code, caught.value.status) == ("context_length_exceeded", 400)
    assert engine.calls == []


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(
    encoder: PromptEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(text: str) -> list[int]:
        raise AssertionError("encoded")

    monkeypatch.setattr(encoder, "encode", encode)
    # The longest piece that text may become is "false".
    with pytest.raises(RequestError, match=r"at least 20\d\d tokens.*max_model_len of 900") as caught:
        ask(encoder, FakeEngine(), max_model_len=900, state="x" * 9990)
    assert (caught.value.code, caught.value.status) == ("context_length_exceeded", 400)
    with pytest.raises(AssertionError, match="encoded"):
        ask(encoder, FakeEngine(), max_model_len=2100, state="x" * 9990)


def test_a_long_text_is_encoded_whole(encoder: PromptEncoder) -> None:
    state = "x" * LONG_TEXT_CHARACTERS
    assert ask(encoder, FakeEngine(), max_model_len=10**6, state=state).usage.prompt_tokens > len(state)


def test_a_missing_slot_is_no_answer(encoder: PromptEncoder) -> None:
    with pytest.raises(EngineError, match="true is missing"):
        ask(encoder, FakeEngine(logprobs={300: -0.1}))
