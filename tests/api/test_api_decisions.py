"""``/v1/decisions``: the mapping to the core's requests, the answers, and what is refused."""

from typing import Any

import pytest
from api_fakes import make_app, run, send
from decide_fakes import FakeEngine, make_service

from decideploy.api.decisions import asked, core_state
from decideploy.api.decisions_wire import DecisionsRequest
from decideploy.decide import DecideRequest, PromptEncoder
from decideploy.errors import EngineError

PREDICATE = {"type": "predicate", "instructions": "It is so."}
SIX = [{"label": str(n), "description": f"level {n}"} for n in range(6)]


def body(*questions: Any, **changes: Any) -> dict[str, Any]:
    return {"model": "demo", "input": "s", "questions": questions or [PREDICATE], **changes}


def post(encoder: PromptEncoder, document: Any, engine: FakeEngine | None = None, **changes: Any) -> Any:
    return send(make_app(encoder, engine, **changes), "POST", "/v1/decisions", json=document)


def text(value: str) -> dict[str, str]:
    return {"type": "input_text", "text": value}


@pytest.mark.parametrize(
    ("question", "kind", "wording", "options"),
    [
        (PREDICATE, "noul", "It is so.", None),
        (
            PREDICATE | {"instructions": [text("a"), {"type": "input_json", "data": {"k": "é"}}]},
            "noul",
            'a\n{"k": "é"}',
            None,
        ),
        (
            PREDICATE | {"instructions": [{"type": "input_json", "data": [{}, {"a": None}]}]},
            "noul",
            '[{}, {"a": null}]',
            None,
        ),
        (
            {
                "type": "choice",
                "instructions": "Q?",
                "choices": [{"value": True, "description": "y"}, {"value": "b"}],
            },
            "choice",
            "Q?",
            ("true: y", "b"),
        ),
        (
            {"type": "choice", "instructions": "Q?", "choices": [{"value": True}, {"value": "true"}]},
            "choice",
            "Q?",
            ("true", '"true"'),
        ),
        (
            {"type": "score", "instructions": "Q?", "levels": SIX},
            "score",
            "Q?\n" + "\n".join(f"{n}: {n}: level {n}" for n in range(6)),
            None,
        ),
        (
            {"type": "score", "instructions": "Q?", "levels": [{"label": "a"}, {"label": "a"}]},
            "choice",
            "Q?",
            ("0: a", "1: a"),
        ),
    ],
)
def test_each_question_is_one_of_the_core(
    question: dict[str, Any], kind: str, wording: str, options: tuple[str, ...] | None
) -> None:
    request = DecisionsRequest.model_validate(body(question))
    one = asked(0, request.questions[0])
    assert (one.kind, one.question, one.options) == (kind, wording, options)


CALL = {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "1", "output": "seen"}
TOOL = {"type": "custom_tool_call", "call_id": "2", "name": "run", "input": "x", "namespace": "box"}
TOOL_OUTPUT = {
    "type": "custom_tool_call_output",
    "call_id": "2",
    "output": [text("out"), {"type": "input_image", "image_url": "u2"}],
}
PICTURE = {"type": "input_image", "image_url": "u1", "detail": "auto"}


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ("plain", "plain"),
        ([{"role": "user", "content": "plain"}], "plain"),
        (
            [{"type": "message", "role": "user", "content": [text("see"), PICTURE]}],
            ["see", {"image": "u1"}],
        ),
        (
            [{"role": "user", "content": [{"type": "input_json", "data": {"a": [1]}}]}],
            ['{"a": [1]}'],
        ),
        (
            [
                {"role": "system", "content": "be brief"},
                {"role": "developer", "content": [text("a"), text("b")]},
                {"role": "user", "content": "hi"},
                {"role": "assistant", "phase": "commentary", "content": "hm"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "output_text", "text": "ok"},
                        {"type": "refusal", "refusal": "no"},
                    ],
                },
                CALL,
                OUTPUT,
                TOOL,
                TOOL_OUTPUT,
            ],
            [
                "system: be brief",
                "developer:",
                "a",
                "b",
                "user: hi",
                "assistant (commentary): hm",
                "assistant:",
                "ok",
                "refusal: no",
                "function_call 1: look({})",
                "function_call_output 1: seen",
                "custom_tool_call 2: box.run(x)",
                "custom_tool_call_output 2:",
                "out",
                {"image": "u2"},
            ],
        ),
    ],
)
def test_the_input_is_the_state(given: Any, state: Any) -> None:
    assert core_state(DecisionsRequest.model_validate(body(input=given))) == state


def test_answers_are_those_of_the_mapped_requests(encoder: PromptEncoder) -> None:
    engine, reference = FakeEngine(), FakeEngine()
    reply = post(
        encoder,
        body(
            PREDICATE | {"name": "so"},
            {"type": "choice", "instructions": "Q?", "choices": [{"value": True}, {"value": "b"}]},
            {"type": "score", "name": None, "instructions": "Q?", "levels": SIX},
        ),
        engine,
    )
    assert reply.status_code == 200, reply.text
    service = make_service(encoder, reference)
    levels = "\n".join(f"{n}: {n}: level {n}" for n in range(6))
    so, which, six = (
        run(service.decide(one, request_id="r"))
        for one in (
            DecideRequest(kind="noul", state="s", question="It is so."),
            DecideRequest(kind="choice", state="s", question="Q?", options=("true", "b")),
            DecideRequest(kind="score", state="s", question=f"Q?\n{levels}"),
        )
    )
    assert [c["prompt"] for c in engine.calls] == [c["prompt"] for c in reference.calls]
    first, second, third = reply.json()["answers"]
    assert first == {"type": "predicate", "name": "so", "probability": pytest.approx(so.probabilities[1])}
    assert second == {
        "type": "choice",
        "name": None,
        "choice": True,
        "confidence": pytest.approx(2 * which.probabilities[0] - 1),
        "probabilities": [
            {"value": True, "probability": pytest.approx(which.probabilities[0])},
            {"value": "b", "probability": pytest.approx(which.probabilities[1])},
        ],
    }
    assert [level["value"] for level in third["probabilities"]] == [0, 1, 2, 3, 4, 5]
    assert [level["label"] for level in third["probabilities"]] == [level["label"] for level in SIX]
    assert third["score"] == pytest.approx(sum(n * p for n, p in enumerate(six.probabilities)))
    tokens = sum(one.usage.prompt_tokens for one in (so, which, six))
    assert reply.json()["usage"] == {
        "input_tokens": tokens,
        "input_tokens_details": {"cached_tokens": 9, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens + 3,
    }


@pytest.mark.parametrize(
    "hints",
    [
        {"prompt_cache_key": "k", "safety_identifier": "u" * 128},
        {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}},
        {"prompt_cache_key": None, "prompt_cache_options": None, "safety_identifier": None},
        {
            "input": [
                {
                    "role": "user",
                    "content": [text("s") | {"prompt_cache_breakpoint": {"mode": "explicit"}}],
                }
            ]
        },
    ],
)
def test_hints_change_no_answer(encoder: PromptEncoder, hints: dict[str, Any]) -> None:
    plain, hinted = post(encoder, body()).json(), post(encoder, body(**hints)).json()
    assert plain["answers"] == hinted["answers"]


@pytest.mark.parametrize(
    ("document", "param", "words"),
    [
        ([], "body", "dictionary"),
        (body(questions=[]), "questions", "at least 1"),
        (body(questions=[PREDICATE] * 401), "questions", "at most 400"),
        (body({"type": "box", "instructions": "x"}), "questions[0]", "'predicate', 'choice', 'score'"),
        (body(PREDICATE, {"type": "predicate"}), "questions[1].instructions", "required"),
        (body(PREDICATE | {"instructions": " "}), "questions[0].instructions", "empty"),
        (body(PREDICATE | {"instructions": 1}), "questions[0].instructions", "string or an array"),
        (body(PREDICATE | {"instructions": [PICTURE]}), "questions[0].instructions[0]", "input only"),
        (body(PREDICATE | {"threshold": 1}), "questions[0].threshold", "does not serve"),
        (
            body({"type": "choice", "instructions": "q", "choices": [{"value": "a"}]}),
            "questions[0].choices",
            "at least 2",
        ),
        (
            body({"type": "choice", "instructions": "q", "choices": [{"value": "a"}, {"value": "a"}]}),
            "questions[0].choices",
            "[0] and [1] have the same value",
        ),
        (
            body({"type": "choice", "instructions": "q", "choices": [{"value": 1}, {"value": "a"}]}),
            "questions[0].choices[0].value",
            "string or a boolean",
        ),
        (
            body({"type": "score", "instructions": "q", "levels": [{"label": "a"}]}),
            "questions[0].levels",
            "at least 2",
        ),
        (body(input=1), "input", "string or an array"),
        (body(input=[]), "input", "at least 1"),
        (body(input=[{"role": "user", "content": []}]), "input", "at least one part"),
        (body(input=[{"role": "user", "content": 1}]), "input[0].content", "string or an array"),
        (body(input=[{"role": "tool", "content": "x"}]), "input[0]", "'user', 'developer'"),
        (body(input=[{"type": "reasoning"}]), "input[0]", "neither a message"),
        (body(input=[OUTPUT]), "input[0].call_id", "no earlier call"),
        (body(input=[CALL, TOOL_OUTPUT | {"call_id": "1"}]), "input[1].call_id", "of this kind"),
        (
            body(input=[{"role": "user", "content": [PICTURE | {"detail": "low"}]}]),
            "input[0].content[0].detail",
            "'auto'",
        ),
        (
            body(input=[{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]),
            "input[0].content[0]",
            "'input_text', 'input_image', 'input_json'",
        ),
        (
            body(input=[{"role": "user", "content": [{"type": "input_json", "data": [1]}]}]),
            "input[0].content[0].data[0]",
            "dictionary",
        ),
        (body(stream=True), "stream", "does not serve"),
        (body(safety_identifier="u" * 129), "safety_identifier", "128"),
    ],
)
def test_wrong_fields_are_named(encoder: PromptEncoder, document: Any, param: str, words: str) -> None:
    engine = FakeEngine()
    reply = post(encoder, document, engine)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["type"]) == (422, param, "invalid_request_error")
    assert words in error["message"]
    assert engine.calls == []


def nested(depth: int) -> Any:
    return {"k": nested(depth - 1)} if depth else 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (nested(33), "nests more than 32"),
        ({str(n): 0 for n in range(10_001)}, "more than 10000"),
        ({"k": "x" * 2**18}, "more than 262144"),
    ],
)
def test_json_parts_have_limits(encoder: PromptEncoder, data: Any, words: str) -> None:
    part = {"type": "input_json", "data": data}
    reply = post(encoder, body(input=[{"role": "user", "content": [part]}]))
    assert reply.status_code == 422
    assert words in reply.json()["error"]["message"]


def test_json_parts_at_their_limits_are_read() -> None:
    for data in (nested(32), {str(n): 0 for n in range(9_999)}):
        part = {"type": "input_json", "data": data}
        DecisionsRequest.model_validate(body(input=[{"role": "user", "content": [part]}]))


def test_a_failing_engine_is_told_in_openai_s_words(encoder: PromptEncoder) -> None:
    reply = post(encoder, body(), FakeEngine(error=EngineError("no answer", status=504)))
    assert reply.status_code == 504
    assert reply.json() == {
        "error": {"message": "no answer", "type": "server_error", "param": None, "code": "engine_error"}
    }
    assert "retry-after" not in reply.headers


def test_another_model_is_404(encoder: PromptEncoder) -> None:
    error = post(encoder, body(model="gpt-6-luna")).json()["error"]
    assert (error["param"], error["code"]) == ("model", "model_not_found")
