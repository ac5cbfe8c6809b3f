"""``/v1/systemone``: the mapping to the core's requests, the answers, and what is refused."""

import base64
import json
from typing import Any

import pytest
from api_fakes import make_app, png, run, send
from decide_fakes import FakeEngine, make_service

from decideploy.api.asking import Asked
from decideploy.api.systemone import asked, core_state
from decideploy.api.systemone_wire import SystemOneRequest
from decideploy.decide import DecideRequest, PromptEncoder
from decideploy.decide.schema import ImageLimits
from decideploy.errors import EngineError

LEVELS = ["none", "little", "some", "much", "more", "all"]
IMAGE = base64.b64encode(png()).decode()
# The fake engine's logits fall by 0.7 from slot to slot.
P_TRUE = 0.33181222783183395


def body(questions: Any, **changes: Any) -> dict[str, Any]:
    return {"model": "demo", "state": "s", "questions": questions, **changes}


def post(encoder: PromptEncoder, document: Any, engine: FakeEngine | None = None, **changes: Any) -> Any:
    return send(make_app(encoder, engine, **changes), "POST", "/v1/systemone", json=document)


@pytest.mark.parametrize(
    ("question", "kind", "text", "options"),
    [
        ({"type": "noul", "instructions": "Q?"}, "noul", "Q?", None),
        (
            {"type": "noul", "instructions": "Q?", "criteria": {"true": "y\nes", "false": {"n": 0}}},
            "noul",
            'Q?\ntrue: y es\nfalse: {"n": 0}',
            None,
        ),
        ({"type": "noul", "criteria": {"false": "no"}}, "noul", "false: no", None),
        ({"type": "noul", "instructions": {"task": "é"}}, "noul", '{"task": "é"}', None),
        ({"type": "noul", "instructions": ["a", 1]}, "noul", '["a", 1]', None),
        (
            {"type": "choice", "instructions": "Q?", "criteria": {"a": None, "b": "B", "c": ["x"]}},
            "choice",
            "Q?",
            ("a", "b: B", 'c: ["x"]'),
        ),
        ({"type": "choice", "criteria": {"a": None}}, "choice", "Which option applies?", ("a",)),
        (
            {"type": "score", "instructions": "Q?", "criteria": LEVELS},
            "score",
            "Q?\n0: none\n1: little\n2: some\n3: much\n4: more\n5: all",
            None,
        ),
        (
            {"type": "score", "criteria": [{"level": 1}, "b"]},
            "choice",
            "Which level applies?",
            ('{"level": 1}', "b"),
        ),
    ],
)
def test_each_question_is_one_of_the_core(
    question: dict[str, Any], kind: str, text: str, options: tuple[str, ...] | None
) -> None:
    request = SystemOneRequest.model_validate(body({"q": question}))
    one = asked("q", request.questions["q"])
    assert (one.kind, one.question, one.options) == (kind, text, options)


def test_answers_are_those_of_the_mapped_requests(encoder: PromptEncoder) -> None:
    questions = {
        "yes": {"type": "noul", "instructions": "Q?"},
        "which": {"type": "choice", "criteria": {"x": "first", "y": None, "z": None}},
        "six": {"type": "score", "criteria": LEVELS},
        "three": {"type": "score", "criteria": ["low", "mid", "high"]},
        "sure": {"type": "choice", "criteria": {"only": None}},
    }
    engine, reference = FakeEngine(), FakeEngine()
    reply = post(encoder, body(questions, state={"a": 1}), engine)
    assert reply.status_code == 200, reply.text
    service = make_service(encoder, reference)
    state: Any = {"a": 1}
    mapped = [
        DecideRequest(kind="noul", state=state, question="Q?"),
        DecideRequest(
            kind="choice", state=state, question="Which option applies?", options=("x: first", "y", "z")
        ),
        DecideRequest(
            kind="score",
            state=state,
            question="Which level applies?\n" + "\n".join(f"{n}: {text}" for n, text in enumerate(LEVELS)),
        ),
        DecideRequest(
            kind="choice", state=state, question="Which level applies?", options=("low", "mid", "high")
        ),
    ]
    yes, which, six, three = (run(service.decide(one, request_id="r")) for one in mapped)
    assert sorted(c["prompt"] for c in engine.calls) == sorted(c["prompt"] for c in reference.calls)
    document = reply.json()
    assert document["model"] == "demo"
    assert document["answers"]["yes"] == {"type": "noul", "noul": pytest.approx(yes.probabilities[1])}
    assert yes.probabilities[1] == pytest.approx(P_TRUE)
    assert document["answers"]["which"]["choice"] == "x"
    probabilities = dict(zip("xyz", which.probabilities, strict=True))
    assert document["answers"]["which"]["probabilities"] == pytest.approx(probabilities)
    assert document["answers"]["six"]["legend"] == {str(n): text for n, text in enumerate(LEVELS)}
    assert list(document["answers"]["six"]["probabilities"].values()) == pytest.approx(six.probabilities)
    assert document["answers"]["three"]["score"] == pytest.approx(
        three.probabilities[1] + 2 * three.probabilities[2]
    )
    sure = {"type": "choice", "choice": "only", "confidence": 1.0, "probabilities": {"only": 1.0}}
    assert document["answers"]["sure"] == sure
    assert document["usage"] == {
        "input_tokens": sum(one.usage.prompt_tokens for one in (yes, which, six, three)),
        "output_tokens": 4,
    }


def test_questions_are_asked_at_once_and_under_their_own_ids(encoder: PromptEncoder) -> None:
    engine = FakeEngine()
    questions = {str(n): {"type": "noul", "instructions": f"{n}?"} for n in range(10)}
    assert post(encoder, body(questions), engine).status_code == 200
    assert engine.most_running == 10
    assert len({call["request_id"] for call in engine.calls}) == 10


def test_one_failure_ends_the_others(encoder: PromptEncoder) -> None:
    class Half(FakeEngine):
        async def _take(self, call: Any, prompt: Any, request_id: str) -> None:
            self.hang = bool(self.calls)
            await super()._take(call, prompt, request_id)

    engine = Half(error=EngineError("not ready", status=503))
    questions = {str(n): {"type": "noul", "instructions": "?"} for n in range(3)}
    reply = post(encoder, body(questions), engine)
    assert (reply.status_code, engine.cancelled, engine.running) == (503, 2, 0)
    assert reply.json() == {"detail": [{"loc": [], "msg": "not ready", "type": "engine_error"}]}
    assert (reply.headers["retry-after"], reply.headers["retry-after-ms"]) == ("1", "1000")


class Images:
    """Any two images, and how often they were loaded."""

    limits = ImageLimits(max_count=4, max_bytes=1, max_pixels=1, allowed_hosts=())

    def __init__(self) -> None:
        self.loaded: list[tuple[str, ...]] = []

    async def load(self, urls: tuple[str, ...]) -> tuple[str, ...]:
        self.loaded.append(urls)
        return urls


def with_images(encoder: PromptEncoder, images: Images, engine: FakeEngine) -> Any:
    from decideploy.decide.prompts import ImageTokens

    return make_app(encoder, engine, images=images, image_tokens=ImageTokens(token_id=6, count=1))


def test_images_are_loaded_once_for_all_questions(encoder: PromptEncoder) -> None:
    images, engine = Images(), FakeEngine()
    questions = {name: {"type": "noul", "instructions": "?"} for name in "ab"}
    document = body(questions, state="see <p>", assets={"<p>": {"data_base64": IMAGE, "format": "png"}})
    reply = send(with_images(encoder, images, engine), "POST", "/v1/systemone", json=document)
    assert reply.status_code == 200, reply.text
    assert images.loaded == [(f"data:image/png;base64,{IMAGE}",)]
    assert all(call["images"] == images.loaded[0] for call in engine.calls)
    assert len(engine.calls) == 2


def test_a_multipart_request_brings_its_images(encoder: PromptEncoder) -> None:
    images, engine = Images(), FakeEngine()
    document = body(
        {"q": {"type": "noul", "instructions": "?"}},
        state={"photo": "<p>"},
        assets={"<p>": {"type": "image", "part": "asset-0"}},
    )
    files = {
        "request": (None, json.dumps(document), "application/json"),
        "asset-0": ("asset-0", png(), "image/png"),
    }
    reply = send(with_images(encoder, images, engine), "POST", "/v1/systemone", files=files)
    assert reply.status_code == 200, reply.text
    assert images.loaded == [(f"data:image/png;base64,{IMAGE}",)]


NOUL = {"type": "noul", "instructions": "?"}


@pytest.mark.parametrize(
    ("document", "location", "words"),
    [
        ([], [], "dictionary"),
        (body({}), ["questions"], "at least 1"),
        (body({"q": {"type": "box", "instructions": "x"}}), ["questions", "q"], "box is not served"),
        (body({"q": {"instructions": "x"}}), ["questions", "q"], "discriminator 'type'"),
        (body({"q": {"type": "noul"}}), ["questions", "q", "noul", "instructions"], "empty"),
        (body({"q": NOUL | {"hint": 1}}), ["questions", "q", "noul", "hint"], "does not serve"),
        (body({"q": NOUL | {"instructions": 1}}), ["questions", "q", "noul", "instructions"], "array"),
        (body({"q": {"type": "choice"}}), ["questions", "q", "choice", "criteria"], "required"),
        (
            body({"q": {"type": "choice", "criteria": {str(n): None for n in range(256)}}}),
            ["questions", "q", "choice", "criteria"],
            "at most 255",
        ),
        (
            body({"q": {"type": "score", "criteria": ["x"] * 11}}),
            ["questions", "q", "score", "criteria"],
            "at most 10",
        ),
        (body({"q": NOUL}, state=None), ["state"], "a string, an object or an array"),
        (body({"q": NOUL}, state=[]), ["state"], "at least one part"),
        (body({"q": NOUL}, state="\ud800"), ["state"], "surrogate"),
        (body({"\ud800": NOUL}), ["questions"], "surrogate"),
        (body({"q": NOUL}, temperature=1), ["temperature"], "does not serve"),
        (body({"q": NOUL}, assets={}), ["assets"], "at least 1"),
        (body({"q": NOUL}, assets={"<p>": {"data_base64": IMAGE}}), ["assets", "<p>"], "nowhere in state"),
        (
            body({"q": NOUL | {"instructions": "<p>"}}, state="<p>", assets={"<p>": {"data_base64": IMAGE}}),
            ["questions", "q", "noul", "instructions"],
            "in state only",
        ),
        (
            body(
                {"q": {"type": "choice", "criteria": {"a": "<p>", "b": None}}},
                state="<p>",
                assets={"<p>": {"data_base64": IMAGE}},
            ),
            ["questions", "q", "choice", "criteria"],
            "in state only",
        ),
    ],
)
def test_wrong_fields_are_named(
    encoder: PromptEncoder, document: Any, location: list[str], words: str
) -> None:
    engine = FakeEngine()
    reply = send(
        make_app(encoder, engine),
        "POST",
        "/v1/systemone",
        content=json.dumps(document),
        headers={"content-type": "application/json"},
    )
    detail = reply.json()["detail"]
    assert (reply.status_code, detail[0]["loc"]) == (422, ["body", *location])
    assert words in detail[0]["msg"]
    assert engine.calls == []


def test_faults_of_all_questions_are_told_at_once(encoder: PromptEncoder) -> None:
    questions = {"a": {"type": "noul"}, "b": {"type": "noul"}, "c": NOUL}
    detail = post(encoder, body(questions, state=[])).json()["detail"]
    assert [fault["loc"][1:3] for fault in detail] == [["state"], ["questions", "a"], ["questions", "b"]]


@pytest.mark.parametrize("name", ["demo", "decide", "system1"])
def test_every_listed_model_is_served(encoder: PromptEncoder, name: str) -> None:
    assert post(encoder, body({"q": NOUL}, model=name)).status_code == 200


def test_another_model_is_404(encoder: PromptEncoder) -> None:
    reply = post(encoder, body({"q": NOUL}, model="jev-latest"))
    detail = reply.json()["detail"][0]
    assert (reply.status_code, detail["loc"], detail["type"]) == (404, ["body", "model"], "model_not_found")
    assert "serves demo, decide" in detail["msg"]


def test_images_where_the_engine_takes_none(encoder: PromptEncoder) -> None:
    document = body({"q": NOUL}, state="<p>", assets={"<p>": {"data_base64": IMAGE}})
    reply = post(encoder, document)
    detail = reply.json()["detail"][0]
    assert (reply.status_code, detail["loc"]) == (422, ["body", "state"])
    assert detail["type"] == "images_not_served"


def test_a_state_too_long_is_the_state_s_fault(encoder: PromptEncoder) -> None:
    reply = post(encoder, body({"q": NOUL}, state="x" * 9000), max_model_len=512)
    detail = reply.json()["detail"][0]
    assert (reply.status_code, detail["loc"]) == (400, ["body", "state"])
    assert detail["type"] == "context_length_exceeded"


def test_asked_is_certain_with_one_option_only() -> None:
    assert Asked(kind="choice", question="q", options=("a",)).is_certain
    assert not Asked(kind="choice", question="q", options=("a", "b")).is_certain
    assert not Asked(kind="noul", question="q").is_certain


def test_a_text_state_stays_itself() -> None:
    request = SystemOneRequest.model_validate(body({"q": NOUL}, state="<p> stays"))
    assert core_state(request, {}) == "<p> stays"
