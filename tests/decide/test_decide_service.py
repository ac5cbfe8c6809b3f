import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from decide_fakes import FakeEngine, make_calibration, make_encoder, make_service
from PIL import Image

from decideploy.decide import Decision, PromptEncoder, RequestError, parse_request, render
from decideploy.decide.prompts import LONG_TEXT_CHARACTERS, ImageTokens
from decideploy.decide.schema import ImageLimits
from decideploy.errors import EngineError

CALIBRATIONS = {
    "default": make_calibration({"noul": 1.0, "choice": 2.0, "score": 1.0}),
    "gold": make_calibration({"noul": 2.0, "choice": 4.0, "score": 1.0}),
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> PromptEncoder:
    return make_encoder(tmp_path_factory.mktemp("model"))


def ask(
    encoder: PromptEncoder,
    engine: FakeEngine,
    max_model_len: int = 4096,
    changes: dict[str, Any] | None = None,
    **fields: Any,
) -> Decision:
    service = make_service(
        encoder, engine, max_model_len=max_model_len, **{"calibrations": CALIBRATIONS, **(changes or {})}
    )
    request = parse_request({"kind": "noul", "state": "s", "question": "q", **fields})
    return asyncio.run(service.decide(request, request_id="r"))


def test_prompt_and_slots_reach_the_engine(encoder: PromptEncoder) -> None:
    engine = FakeEngine()
    ask(encoder, engine, kind="score")
    text = render(parse_request({"kind": "score", "state": "s", "question": "q"}))
    (call,) = engine.calls
    assert (call["prompt"], call["allowed"]) == (encoder.encode(text), [*range(302, 308)])
    assert (call["adapter"], call["images"]) == (True, ())


def test_answer_has_the_callers_options_and_usage(encoder: PromptEncoder) -> None:
    engine = FakeEngine(logprobs={308: -3.0, 309: -1.0, 310: -1.0})
    decision = ask(encoder, engine, kind="choice", options=["one\ntwo", "b", "c"])
    assert decision.options == ("one\ntwo", "b", "c")
    assert (decision.choice, decision.choice_index, decision.passes) == ("b", 1, 1)
    usage = decision.usage
    assert usage.prompt_tokens == len(engine.calls[0]["prompt"])
    assert (usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens) == (1, 3, 0)


def test_the_kinds_temperature_applies(encoder: PromptEncoder) -> None:
    hot = ask(encoder, FakeEngine(logprobs={308: -1.0, 309: -3.0}), kind="choice", options=["a", "b"])
    cold = ask(encoder, FakeEngine(logprobs={300: -1.0, 301: -3.0}))
    assert hot.probabilities[0] == pytest.approx(0.7310585786)
    assert cold.probabilities[0] == pytest.approx(0.8807970780)


def test_the_longest_prompt_that_fits_is_answered_and_one_token_more_is_not(encoder: PromptEncoder) -> None:
    fitting = ask(encoder, FakeEngine()).usage.prompt_tokens + 1
    assert ask(encoder, FakeEngine(), max_model_len=fitting).usage.prompt_tokens == fitting - 1
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
    def encode_text(text: str) -> list[int]:
        raise AssertionError("encoded")

    monkeypatch.setattr(encoder, "encode_text", encode_text)
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


def test_the_gold_calibration_applies_when_asked_for(encoder: PromptEncoder) -> None:
    engine = FakeEngine(logprobs={300: -1.0, 301: -3.0})
    assert ask(encoder, engine, calibration="gold").probabilities[0] == pytest.approx(0.7310585786)


def test_seventeen_options_are_read_in_groups_and_a_final(encoder: PromptEncoder) -> None:
    engine = FakeEngine()
    options = [f"option {index}" for index in range(17)]
    decision = ask(encoder, engine, kind="choice", options=options)
    assert [len(call["allowed"]) for call in engine.calls] == [8, 9, 16]
    assert (decision.passes, decision.usage.completion_tokens, decision.usage.cached_tokens) == (3, 3, 9)
    assert len({call["request_id"] for call in engine.calls}) == 3
    assert engine.most_running == 2
    texts = [encoder.decode(call["prompt"]) for call in engine.calls]
    assert "A) option 0\n" in texts[0]
    assert "A) option 8\n" in texts[1]
    assert sum(decision.probabilities) == pytest.approx(1.0)


def test_the_strategy_is_the_requests(encoder: PromptEncoder) -> None:
    engine = FakeEngine()
    ask(encoder, engine, kind="choice", options=[str(index) for index in range(17)], strategy="single")
    assert [len(call["allowed"]) for call in engine.calls] == [9, 9]


def test_one_failing_pass_cancels_the_others(encoder: PromptEncoder) -> None:
    engine = FakeEngine(error=EngineError("gone"))
    with pytest.raises(EngineError, match="gone"):
        ask(encoder, engine, kind="choice", options=[str(index) for index in range(40)])
    assert engine.running == 0


class Images:
    limits = ImageLimits(max_count=2, max_bytes=1, max_pixels=1, allowed_hosts=())

    async def load(self, urls: Sequence[str]) -> tuple[Image.Image, ...]:
        return tuple(Image.new("RGB", (2, 2), color=url) for url in urls)


def test_images_stand_where_the_state_has_them(encoder: PromptEncoder) -> None:
    engine = FakeEngine()
    image_id = encoder.token_id("<|image|>")
    assert image_id is not None
    changes = {"images": Images(), "image_tokens": ImageTokens(token_id=image_id, count=100)}
    state = ["before", {"image": "red"}, {"text": "after <|image|>"}, {"image": "blue"}]
    ask(encoder, engine, state=state, changes=changes)
    (call,) = engine.calls
    assert [image.getpixel((0, 0)) for image in call["images"]] == [(255, 0, 0), (0, 0, 255)]
    assert call["prompt"].count(image_id) == 2
    first, second = (index for index, token in enumerate(call["prompt"]) if token == image_id)
    assert encoder.decode(call["prompt"][:first]).endswith("[state] before\n")
    assert encoder.decode(call["prompt"][first:second]) == "\nafter <|image|>\n"
    with pytest.raises(RequestError, match="max_model_len of 250"):
        ask(encoder, engine, max_model_len=250, state=state, changes=changes)


class Observed:
    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def decided(self, **event: Any) -> None:
        self.told.append(event)


@pytest.mark.parametrize(
    ("engine", "outcome", "passes"),
    [(FakeEngine(), "ok", 1), (FakeEngine(error=EngineError("gone")), "EngineError", 0)],
)
def test_observers_are_told_of_every_outcome(
    encoder: PromptEncoder, engine: FakeEngine, outcome: str, passes: int
) -> None:
    observer = Observed()
    try:
        ask(encoder, engine, changes={"observers": (observer,)})
    except EngineError:
        assert outcome != "ok"
    (event,) = observer.told
    assert event.pop("seconds") >= 0
    assert event == {
        "dialect": "decide",
        "kind": "noul",
        "outcome": outcome,
        "passes": passes,
        "thought": False,
    }
