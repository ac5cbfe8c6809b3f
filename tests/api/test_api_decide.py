import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import api_fakes
import httpx
import pytest
from api_fakes import send
from decide_fakes import BUILD, FakeEngine, make_calibration, make_head
from fastapi import FastAPI

from decideploy.api.json_body import MAX_BODY_BYTES, parse_json
from decideploy.decide import DecideResponse, PromptEncoder, RequestError
from decideploy.decide.schema import ErrorEnvelope
from decideploy.errors import EngineError

NOUL = {"kind": "noul", "state": "s", "question": "q"}


def make_app(encoder: PromptEncoder, engine: FakeEngine) -> FastAPI:
    calibrations = {"default": make_calibration()}
    return api_fakes.make_app(encoder, engine, max_model_len=512, head=make_head(), calibrations=calibrations)


def post(encoder: PromptEncoder, engine: FakeEngine | None = None, **request: Any) -> httpx.Response:
    return send(make_app(encoder, engine or FakeEngine()), "POST", "/v1/decide", **request)


def body_of(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**NOUL, **changes}.items() if value is not KeyError}


def nested(depth: int) -> dict[str, Any]:
    """Objects and lists in turn, ``depth`` of them, the outermost an object."""
    inner: Any = {"k": 0} if depth % 2 else [0]
    for level in range(depth - 1, 0, -1):
        inner = {"k": inner} if level % 2 else [inner]
    return dict(inner)


def choice(*options: Any) -> dict[str, Any]:
    return body_of(kind="choice", options=list(options))


@pytest.mark.parametrize("body", [NOUL, body_of(kind="score"), choice("a", "b"), body_of(thinking="off")])
def test_answers(encoder: PromptEncoder, body: dict[str, Any]) -> None:
    reply = post(encoder, json=body)
    assert reply.status_code == 200
    assert set(reply.json()) == {"options", "probabilities", "choice", "choice_index", "usage"}
    assert sum(DecideResponse.model_validate_json(reply.content).probabilities) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "kind", "state: Field required"),
        (body_of(kind="nul"), "kind", "'noul', 'score' or 'choice'"),
        (body_of(kind=1), "kind", "'noul'"),
        (body_of(state=KeyError), "state", "required"),
        (body_of(state=3), "state", "must be a string, a JSON object, or a list"),
        (body_of(state=None), "state", "must be a string"),
        (body_of(state=[]), "state", "at least one part"),
        (body_of(state=["a", 1]), "state", "part [1]"),
        (body_of(state=[{"text": 1}]), "state", "part [0]"),
        (body_of(state=["a", {"image": "data:,"}]), "state", "serves no images"),
        (body_of(state=[{"image": 1}]), "state", "part [0]"),
        (body_of(state=[{"image": "data:,", "text": "a"}]), "state", "part [0]"),
        (body_of(question=""), "question", "empty"),
        (body_of(question=" \n"), "question", "empty"),
        (body_of(question=["q"]), "question", "valid string"),
        (body_of(options=["true", "false"]), "options", "leave options out"),
        (body_of(kind="score", options=["0", "1"]), "options", "leave options out"),
        (body_of(kind="choice"), "options", "2 to 256 options, got none"),
        (choice(), "options", "got 0"),
        (choice("a"), "options", "got 1"),
        (choice(*map(str, range(257))), "options", "2 to 256 options, got 257"),
        (choice(*range(257)), "options", "2 to 256 options, got 257"),
        (body_of(kind="score", options=list(range(1000))), "options", "leave options out"),
        (body_of(kind="nul", options=list(range(1000))), "kind", "options: this server answers"),
        (body_of(state=nested(65)), "state", "state: nests more than 64 objects and lists"),
        (body_of(state=nested(255)), "state", "state: nests more than 64 objects and lists"),
        (body_of(state={"a": [[1]] * 9, "b": nested(64)}), "state", "state: nests more than 64"),
        (choice("a", "b", "a"), "options", "[0] and [2] are the same"),
        (choice("a\nb", "a b"), "options", "the same text"),
        (choice("a", " "), "options", "option [1] is empty"),
        (choice("a", 2), "options[1]", "valid string"),
        (body_of(kind="choice", options="ab"), "options", "list"),
        (body_of(kind="score", thinking="on"), "thinking", "answered by System 1 alone"),
        (body_of(kind="score", thinking="auto"), "thinking", "answered by System 1 alone"),
        (body_of(thinking=None), "thinking", "'off'"),
        (body_of(threshold=1.1), "threshold", "less than or equal to 1"),
        (body_of(threshold="0.5"), "threshold", "valid number"),
        (body_of(think_budget=0), "think_budget", "greater than or equal to 1"),
        (body_of(think_budget=1.5), "think_budget", "valid integer"),
        (body_of(strategy="swiss"), "strategy", "'tournament', 'single' or 'permute'"),
        (body_of(calibration="silver"), "calibration", "'default' or 'gold'"),
        (body_of(calibration="gold"), "calibration", "no gold calibration"),
        (body_of(debug=1), "debug", "valid boolean"),
        (body_of(chat_template_kwargs={str(n): 0 for n in range(33)}), "chat_template_kwargs", "at most 32"),
        (body_of(chat_template_kwargs=nested(65)), "chat_template_kwargs", "nests more than 64"),
        (body_of(temperature=1), "temperature", "it serves kind, state, question, options, strategy"),
        (body_of(model="m"), "model", "does not serve this field"),
        ([], None, "valid dictionary"),
    ],
)
def test_wrong_fields_are_named(encoder: PromptEncoder, body: Any, param: str | None, words: str) -> None:
    engine = FakeEngine()
    reply = post(encoder, engine, json=body)
    error = ErrorEnvelope.model_validate_json(reply.content).error
    assert (reply.status_code, error.type, error.param) == (422, "invalid_request_error", param)
    assert words in error.message
    assert engine.calls == []


def test_all_wrong_fields_are_told_at_once(encoder: PromptEncoder) -> None:
    message = post(encoder, json=body_of(question="", thinking="off?", model="m")).json()["error"]["message"]
    assert all(field in message for field in ("question:", "thinking:", "model:"))


def test_ten_wrong_fields_are_told_and_the_rest_counted(encoder: PromptEncoder) -> None:
    reply = post(encoder, json=NOUL | {f"field{index}": 0 for index in range(1000)})
    message = reply.json()["error"]["message"]
    assert message.count("does not serve this field") == 10
    assert message.endswith("; and 990 more")
    assert reply.json()["error"]["param"] == "field0"


def test_a_state_may_nest_64_deep(encoder: PromptEncoder) -> None:
    assert post(encoder, json=body_of(state=nested(64))).status_code == 200


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "Expecting value"),
        (b"{", "property name"),
        (b'{"kind": "noul", "state": {"a": NaN}, "question": "q"}', "NaN"),
        (b'{"kind": "noul", "state": {"a": -Infinity}, "question": "q"}', "-Infinity"),
        (b'{"kind": "noul", "kind": "score", "state": "s", "question": "q"}', "'kind' twice"),
        (b'"\xff"', "utf-8"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_what_is_not_json_is_400(encoder: PromptEncoder, content: bytes, words: str) -> None:
    reply = post(encoder, content=content, headers={"content-type": "application/json"})
    error = ErrorEnvelope.model_validate_json(reply.content).error
    assert (reply.status_code, error.code) == (400, "invalid_json")
    assert words in error.message


@pytest.mark.parametrize("number", ["1e999", "-1e999"])
def test_a_number_beyond_float_is_a_wrong_field(encoder: PromptEncoder, number: str) -> None:
    content = f'{{"kind": "noul", "state": {{"a": {number}}}, "question": "q"}}'
    reply = post(encoder, content=content, headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (422, "state")


@pytest.mark.parametrize("field", ["state", "question"])
def test_a_lone_surrogate_is_a_wrong_field(encoder: PromptEncoder, field: str) -> None:
    content = json.dumps(body_of(**{field: "\ud800"}))
    reply = post(encoder, content=content, headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (422, field)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_other_content_types_are_415(encoder: PromptEncoder, content_type: str) -> None:
    reply = post(encoder, content=json.dumps(NOUL), headers={"content-type": content_type})
    assert (reply.status_code, reply.json()["error"]["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "application/vnd.a+json"])
def test_json_content_types_are_read(encoder: PromptEncoder, content_type: str) -> None:
    reply = post(encoder, content=json.dumps(NOUL), headers={"content-type": content_type})
    assert reply.status_code == 200


JSON_HEADERS = {"content-type": "application/json"}


def test_a_body_of_the_largest_size_is_read_and_a_byte_more_is_not(encoder: PromptEncoder) -> None:
    content = json.dumps(NOUL).encode().ljust(MAX_BODY_BYTES)
    assert post(encoder, content=content, headers=JSON_HEADERS).status_code == 200
    reply = post(encoder, content=content + b" ", headers=JSON_HEADERS)
    error = ErrorEnvelope.model_validate_json(reply.content).error
    assert (reply.status_code, error.code) == (413, "body_too_large")
    assert "24 MiB" in error.message


@pytest.mark.parametrize(
    ("headers", "chunks_read"), [({}, 25), ({"content-length": str(MAX_BODY_BYTES + 1)}, 0)]
)
def test_no_more_of_a_large_body_is_read_than_needed(
    encoder: PromptEncoder, headers: dict[str, str], chunks_read: int
) -> None:
    read: list[int] = []

    async def chunks() -> AsyncIterator[bytes]:
        for index in range(100):
            read.append(index)
            yield b" " * 2**20

    reply = post(encoder, content=chunks(), headers=JSON_HEADERS | headers)
    assert reply.status_code == 413
    assert len(read) == chunks_read


def test_an_object_of_many_keys_is_checked_in_one_pass() -> None:
    members = [f'"{index}": 0' for index in range(200_000)]
    content = "{" + ", ".join([*members, members[-1]]) + "}"
    started = time.process_time()
    with pytest.raises(RequestError, match="'199999' twice"):
        parse_json(content.encode())
    assert time.process_time() - started < 5


def test_another_method_is_405_in_the_envelope(encoder: PromptEncoder) -> None:
    reply = send(make_app(encoder, FakeEngine()), "GET", "/v1/decide")
    assert (reply.status_code, reply.json()["error"]["code"]) == (405, "method_not_allowed")
    assert reply.headers["allow"] == "POST"


def test_over_long_input_is_refused_with_its_counts(encoder: PromptEncoder) -> None:
    reply = post(encoder, json=body_of(state="x" * 600))
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "state")
    assert "512" in error["message"]


@pytest.mark.parametrize("status", [502, 503, 504])
def test_engine_errors_keep_their_status(
    encoder: PromptEncoder, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    reply = post(encoder, FakeEngine(error=EngineError("no luck", status=status)), json=NOUL)
    assert (reply.status_code, reply.json()["error"]["type"]) == (status, "server_error")
    assert reply.json()["error"]["message"] == "no luck"
    assert "no luck" in caplog.text


def test_an_unexpected_error_is_logged_and_not_told(
    encoder: PromptEncoder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        reply = post(encoder, FakeEngine(error=ValueError("secret detail")), json=NOUL)
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in reply.text
    assert "secret detail" in caplog.text


def test_a_client_that_leaves_aborts_the_engines_request(encoder: PromptEncoder) -> None:
    engine = FakeEngine(hang=True)
    app = make_app(encoder, engine)
    sent: list[Any] = []

    async def leave() -> None:
        messages = [{"type": "http.request", "body": json.dumps(NOUL).encode(), "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            while not engine.calls:
                await asyncio.sleep(0)
            return {"type": "http.disconnect"}

        async def record(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/v1/decide",
            "raw_path": b"/v1/decide",
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("server", 80),
        }
        await asyncio.wait_for(app(scope, receive, record), timeout=10)

    asyncio.run(leave())
    assert engine.cancelled == 1
    assert sent[0]["status"] == 499


def test_info(encoder: PromptEncoder) -> None:
    reply = send(make_app(encoder, FakeEngine()), "GET", "/v1/decide/info")
    temperatures = {"noul": 1.003, "score": 0.999, "choice": 1.017}
    assert reply.json() == {
        "model": "demo",
        "adapter": "system1",
        "kinds": ["noul", "score", "choice"],
        "max_options": 256,
        "max_model_len": 512,
        "template_version": "bare-v1",
        "defaults": {
            "thinking": "off",
            "threshold": 0.8,
            "think_budget": None,
            "strategy": "tournament",
            "calibration": "default",
        },
        "temperatures": temperatures,
        "calibration_sha256": "0" * 64,
        "calibrations": {"default": {"temperatures": temperatures, "sha256": "0" * 64}},
        "images": None,
        "model_sha256": "a" * 64,
        "head": {"verbalizer_ids": list(make_head().verbalizer_ids), "bias": list(make_head().bias)},
        "engine": {"max_num_seqs": 64, "draft": None, "kernel": None},
        "build": BUILD.model_dump(mode="json"),
    }


def test_openapi_lists_the_errors(encoder: PromptEncoder) -> None:
    schema = send(make_app(encoder, FakeEngine()), "GET", "/openapi.json").json()
    responses = schema["paths"]["/v1/decide"]["post"]["responses"]
    assert set(responses) == {
        "200",
        "400",
        "401",
        "405",
        "408",
        "413",
        "415",
        "422",
        "429",
        "500",
        "502",
        "503",
        "504",
    }
    reference = responses["422"]["content"]["application/json"]["schema"]["$ref"]
    assert reference.endswith("/ErrorEnvelope")
    assert "24 MiB" in responses["413"]["description"]
