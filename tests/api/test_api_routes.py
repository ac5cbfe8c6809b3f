"""What all routes have in common: paths, ids, the list of models, the description."""

from typing import Any

import pytest
from api_fakes import CREATED_UNIX_S, FakeModels, make_app, run, send
from decide_fakes import FakeEngine

from decideploy.decide import PromptEncoder

PATHS = ("/v1/decide", "/v1/systemone", "/v1/decisions")


def message(path: str, document: Any) -> str:
    if path.startswith("/v1/systemone"):
        (fault,) = document["detail"]
        assert fault.keys() == {"loc", "msg", "type"}
        return str(fault["msg"])
    assert document["error"].keys() == {"message", "type", "param", "code"}
    return str(document["error"]["message"])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("request_line", "request_", "status", "words"),
    [
        ("GET ", {}, 405, "use POST"),
        ("PUT ", {}, 405, "use POST"),
        ("GET /x/y", {}, 404, "there is no /v1/"),
        ("DELETE /", {}, 404, "there is no /v1/"),
        ("POST ", {"content": b"{", "headers": {"content-type": "application/json"}}, 400, "valid JSON"),
        ("POST ", {"content": b"{}", "headers": {"content-type": "text/plain"}}, 415, "must be JSON"),
        (
            "POST ",
            {"content": b"", "headers": {"content-type": "application/json", "content-length": "26000000"}},
            413,
            "24 MiB",
        ),
    ],
)
def test_every_error_has_its_dialect_s_envelope(
    encoder: PromptEncoder, path: str, *, request_line: str, request_: Any, status: int, words: str
) -> None:
    method, suffix = request_line.split(" ")
    reply = send(make_app(encoder), method, path + suffix, **request_)
    assert reply.status_code == status
    assert words in message(path, reply.json())
    assert reply.headers["x-request-id"]


@pytest.mark.parametrize("path", [*PATHS, "/v1/decide/info", "/v1/models"])
def test_an_unknown_method_is_405_on_every_route(encoder: PromptEncoder, path: str) -> None:
    reply = send(make_app(encoder), "TRACE", path)
    assert reply.status_code == 405
    assert reply.headers["allow"] == ("POST" if path in PATHS else "GET")


@pytest.mark.parametrize("path", PATHS[1:])
def test_an_unexpected_error_is_told_as_500_and_no_more(
    encoder: PromptEncoder, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    questions: Any = {"q": {"type": "noul", "instructions": "?"}}
    document: Any = {"model": "demo", "state": "s", "questions": questions}
    if path == "/v1/decisions":
        document = {
            "model": "demo",
            "input": "s",
            "questions": [{"type": "predicate", "instructions": "?"}],
        }
    reply = send(make_app(encoder, FakeEngine(error=KeyError("secret"))), "POST", path, json=document)
    assert reply.status_code == 500
    assert message(path, reply.json()).startswith("internal error")
    assert "secret" in caplog.text


@pytest.mark.parametrize("path", PATHS)
def test_of_many_wrong_fields_ten_are_told_and_the_rest_counted(encoder: PromptEncoder, path: str) -> None:
    document = {f"field{index}": 0 for index in range(1000)}
    reply = send(make_app(encoder), "POST", path, json=document)
    assert reply.status_code == 422
    # Three fields that every route needs are missing as well.
    if path == "/v1/systemone":
        *told, more = reply.json()["detail"]
        assert len(told) == 10
        assert (more["loc"], more["msg"]) == (["body"], "and 993 more fields are at fault")
    else:
        assert message(path, reply.json()).endswith("; and 993 more")


def test_a_multipart_body_is_for_systemone_only(encoder: PromptEncoder) -> None:
    files = {"request": (None, "{}", "application/json")}
    assert send(make_app(encoder), "POST", "/v1/decisions", files=files).status_code == 415
    reply = send(make_app(encoder), "POST", "/v1/systemone", files={"other": b"x"})
    assert (reply.status_code, reply.json()["detail"][0]["type"]) == (400, "invalid_multipart")


def test_the_typesafe_client_finds_the_id_under_its_own_name(encoder: PromptEncoder) -> None:
    reply = send(make_app(encoder), "GET", "/v1/systemone")
    assert reply.headers["x-typesafe-request-id"] == reply.headers["x-request-id"]
    assert "x-typesafe-request-id" not in send(make_app(encoder), "GET", "/v1/decisions").headers


def test_an_id_given_before_the_routes_names_the_engine_s_requests(encoder: PromptEncoder) -> None:
    engine = FakeEngine()
    app = make_app(encoder, engine)

    async def gateway(scope: Any, receive: Any, send_: Any) -> None:
        await app({**scope, "state": {"request_id": "given"}}, receive, send_)

    questions: Any = [{"type": "predicate", "instructions": "?"}]
    document = {"model": "demo", "input": "s", "questions": questions}
    reply = send(gateway, "POST", "/v1/decisions", json=document)
    assert engine.calls[0]["request_id"].startswith("given-0-")
    # What gave the id sends it.
    assert "x-request-id" not in reply.headers


def test_models_answers_both_clients(encoder: PromptEncoder) -> None:
    document = send(make_app(encoder), "GET", "/v1/models").json()
    theirs = run(FakeModels().show_available_models()).model_dump()
    assert {key: document[key] for key in theirs} == theirs
    assert [(model["name"], model["release_date"]) for model in document["models"]] == [
        ("demo", "2023-11-14"),
        ("decide", "2023-11-14"),
        ("system1", "2023-11-14"),
    ]
    assert document["data"][0]["created"] == CREATED_UNIX_S


def test_models_failing_is_told_in_the_envelope(encoder: PromptEncoder) -> None:
    app = make_app(encoder)
    app.state.openai_serving_models = object()
    reply = send(app, "GET", "/v1/models")
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")


def test_every_route_declares_its_answers(encoder: PromptEncoder) -> None:
    schema = make_app(encoder).openapi()
    always = {"200", "401", "405", "429", "500", "503", "504"}
    posted = always | {"400", "408", "413", "415", "422", "502"}
    declared = {
        (path, method): set(operation["responses"])
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    }
    assert declared == {
        ("/v1/decide", "post"): posted,
        ("/v1/decide/info", "get"): always,
        ("/v1/models", "get"): always,
        ("/v1/systemone", "post"): posted | {"404"},
        ("/v1/decisions", "post"): posted | {"404"},
    }


def test_the_description_is_whole(encoder: PromptEncoder) -> None:
    schema = make_app(encoder).openapi()
    components = schema["components"]["schemas"]
    assert not [name for name in components if name.startswith("decideploy")]
    post = schema["paths"]["/v1/systemone"]["post"]
    assert set(post["requestBody"]["content"]) == {"application/json", "multipart/form-data"}
    answers = components["SystemOneResponse"]["properties"]["answers"]["additionalProperties"]
    assert set(answers["discriminator"]["mapping"]) == {"noul", "choice", "score"}
    answers = components["DecisionsResponse"]["properties"]["answers"]["items"]
    assert set(answers["discriminator"]["mapping"]) == {"predicate", "choice", "score", "refusal"}
    decide = schema["paths"]["/v1/decide"]["post"]["requestBody"]["content"]["application/json"]
    assert set(decide["examples"]) == {"noul", "score", "choice"}
    assert components["SystemOneRequest"]["examples"]
    assert components["DecisionsRequest"]["examples"]
