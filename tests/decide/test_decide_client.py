import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from decideploy.decide import DecideResponse, ask, parse_request, post_decision, print_decision, read_state
from decideploy.errors import ConfigError, EngineError

REQUEST = parse_request(
    {"kind": "choice", "state": ["s", {"text": "t"}], "question": "q", "options": ["a", "b"]}
)
ANSWER = {
    "options": ["a", "b"],
    "probabilities": [0.25, 0.75],
    "choice": "b",
    "choice_index": 1,
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}
REFUSAL = {"error": {"message": "question: must not be empty", "type": "invalid_request_error"}}


def answered(
    reply: httpx.Response | Exception, url: str = "http://server"
) -> tuple[DecideResponse, httpx.Request]:
    requests: list[httpx.Request] = []

    def respond(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        if isinstance(reply, Exception):
            raise reply
        return reply

    response = post_decision(url, REQUEST, api_key="key", transport=httpx.MockTransport(respond))
    return response, requests[0]


@pytest.mark.parametrize("url", ["http://server", "http://server/", "http://server/v1"])
def test_posts_the_request_and_returns_the_answer(url: str) -> None:
    response, request = answered(httpx.Response(200, json=ANSWER), url)
    assert response.choice == "b"
    assert str(request.url) == "http://server/v1/decide"
    assert request.headers["authorization"] == "Bearer key"
    assert json.loads(request.content) == {
        "kind": "choice",
        "state": ["s", {"text": "t"}],
        "question": "q",
        "options": ["a", "b"],
        "thinking": "off",
    }


@pytest.mark.parametrize(
    ("reply", "error", "status", "words"),
    [
        (httpx.Response(422, json=REFUSAL), ConfigError, None, "question: must not be empty"),
        (httpx.Response(401, text="no key"), ConfigError, None, "HTTP 401 no key"),
        (httpx.Response(404, json={"detail": "Not Found"}), EngineError, 502, "has no /v1/decide"),
        (httpx.Response(503, json=REFUSAL), EngineError, 503, "question"),
        (httpx.Response(500, text="<html>"), EngineError, 502, "<html>"),
        (httpx.Response(200, text="ok"), EngineError, 502, "not a decision"),
        (httpx.ReadTimeout("slow"), EngineError, 504, "no answer within 60 s"),
        (httpx.ConnectError("refused"), EngineError, 503, "refused"),
    ],
)
def test_failures_are_typed(
    reply: Any, error: type[ConfigError | EngineError], status: int | None, words: str
) -> None:
    with pytest.raises(error) as caught:
        answered(reply)
    assert words in str(caught.value)
    assert getattr(caught.value, "status", None) == status


def test_a_malformed_url_is_told() -> None:
    with pytest.raises(EngineError, match="cannot be reached"):
        post_decision("server:port", REQUEST)


def test_ask_refuses_a_wrong_request_before_it_is_sent() -> None:
    with pytest.raises(ConfigError, match="2 to 16 options, got 1"):
        ask("http://127.0.0.1:9", kind="choice", question="q", state="s", options=["a"])


def test_ask_sends_a_right_one() -> None:
    with pytest.raises(EngineError, match="cannot be reached"):
        ask("http://127.0.0.1:9", kind="noul", question="q", state="s")


def test_state_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.txt").write_text("{1}", encoding="utf-8")
    (tmp_path / "s.json").write_text('{"a": 1}', encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("from stdin"))
    assert read_state("plain") == "plain"
    assert read_state("-") == "from stdin"
    assert read_state(f"@{tmp_path}/s.txt") == "{1}"
    assert read_state(f"@{tmp_path}/s.json") == {"a": 1}


@pytest.mark.parametrize("content", [None, b"\xff", b"{"])
def test_an_unreadable_state_file_is_told(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "s.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"s\.json"):
        read_state(f"@{path}")


def test_table_has_a_row_and_a_bar_for_each_option() -> None:
    output = io.StringIO()
    print_decision(DecideResponse.model_validate(ANSWER), Console(file=output, width=80))
    rows = output.getvalue().splitlines()
    assert [row.split()[:2] for row in rows] == [["option", "probability"], ["a", "0.2500"], ["b", "0.7500"]]
    assert rows[2].count("━") > rows[1].count("━")
