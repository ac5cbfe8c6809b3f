import asyncio
import email.utils
import io
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from wire_server import decision_document, info_document, wire_server

from decideploy.cli import main
from decideploy.decide import DecideResponse, ask, parse_request, post_decision, print_decision, read_state
from decideploy.decide.client import (
    Outcome,
    Patience,
    ask_all,
    check_url,
    fetch_info,
    read_api_key,
    seconds_told,
    with_images,
)
from decideploy.errors import ConfigError, EngineError
from decideploy.serve.http_client import Client

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
    }


@pytest.mark.parametrize(
    ("reply", "error", "status", "words"),
    [
        (httpx.Response(422, json=REFUSAL), ConfigError, None, "question: must not be empty"),
        (httpx.Response(401, text="no key"), ConfigError, None, "HTTP 401 no key"),
        (httpx.Response(403, text="no key"), ConfigError, None, "--api-key-file"),
        (httpx.Response(429, json=REFUSAL), EngineError, 503, "ask fewer at a time"),
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


WRONG_URLS = [
    "",
    "notaurl",
    "server:port",
    "ftp://x",
    "http://",
    "http://:8000",
    "http://h:99999",
    "http://h:0",
    "http://h:x",
    "http://[::1",
    "http://a b",
    "http://h\n",
    "http://h?q",
    "http://h#f",
]
CREDENTIALS = ["http://u:secret@h", "http://secret@h:8000/v1", "u:secret@h"]


@pytest.mark.parametrize("url", [*WRONG_URLS, *CREDENTIALS])
def test_a_url_that_is_none_is_refused_before_anything_is_sent(url: str) -> None:
    transport = httpx.MockTransport(lambda _request: pytest.fail("sent"))
    with pytest.raises(ConfigError, match=r"the server's URL") as caught:
        post_decision(url, REQUEST, transport=transport)
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"the server's URL"):
        Client(url)


@pytest.mark.parametrize("verb", ["decide", "calibrate", "bench", "selftest"])
@pytest.mark.parametrize("url", ["ftp://x", "http://h:99999", *CREDENTIALS])
def test_a_url_that_is_none_is_a_fault_of_the_option(
    verb: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([verb, "--url", url])
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert "argument --url: the server's URL" in told
    assert "secret" not in told


@pytest.mark.parametrize("url", ["http://[::1]:8000", "https://h/prefix/v1", "http://h:65535/"])
def test_other_urls_are_taken(url: str) -> None:
    check_url(url)


def test_ask_refuses_a_wrong_request_before_it_is_sent() -> None:
    with pytest.raises(ConfigError, match="2 to 256 options, got 1"):
        ask("http://127.0.0.1:9", kind="choice", question="q", state="s", options=["a"])


def test_ask_sends_a_right_one() -> None:
    with pytest.raises(EngineError, match="cannot be reached"):
        ask("http://127.0.0.1:9", kind="noul", question="q", state="s")


def test_state_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.txt").write_text("{1}", encoding="utf-8")
    (tmp_path / "s.json").write_text('{"a": 1}', encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from stdin")))
    assert read_state("plain") == "plain"
    assert read_state("-") == "from stdin"
    assert read_state(f"@{tmp_path}/s.txt") == "{1}"
    assert read_state(f"@{tmp_path}/s.json") == {"a": 1}


@pytest.mark.parametrize("content", [None, b"\xff", b"{", b'{"a": 1, "a": 2}', b'{"a": NaN}'])
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


def asked_all(
    replies: dict[str, list[httpx.Response]], questions: list[str], **patience: float
) -> tuple[dict[int, Outcome], list[str]]:
    """Outcomes by index and the questions in the order in which they reached the server."""
    reached: list[str] = []
    outcomes: dict[int, Outcome] = {}

    def respond(request: httpx.Request) -> httpx.Response:
        question = json.loads(request.content)["question"]
        reached.append(question)
        return replies[question].pop(0) if replies.get(question) else httpx.Response(200, json=ANSWER)

    requests = [REQUEST.model_copy(update={"question": question}) for question in questions]
    asyncio.run(
        ask_all(
            "http://server",
            requests,
            done=outcomes.__setitem__,
            concurrency=2,
            patience=Patience(**{"first_s": 0.001, **patience}),  # type: ignore[arg-type]
            transport=httpx.MockTransport(respond),
        )
    )
    return outcomes, reached


def test_many_requests_each_have_one_outcome() -> None:
    refused = httpx.Response(422, json=REFUSAL)
    outcomes, reached = asked_all({"1": [refused]}, ["0", "1", "2", "3", "4"])
    assert sorted(reached) == ["0", "1", "2", "3", "4"]
    assert sorted(outcomes) == [0, 1, 2, 3, 4]
    assert isinstance(outcomes[1], ConfigError)
    assert all(isinstance(outcomes[index], DecideResponse) for index in (0, 2, 3, 4))


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again(status: int) -> None:
    outcomes, reached = asked_all({"0": [httpx.Response(status, json=REFUSAL)] * 3}, ["0"])
    assert isinstance(outcomes[0], DecideResponse)
    assert len(reached) == 4


@pytest.mark.parametrize("status", [400, 500, 502, 504])
def test_other_failures_are_not_repeated(status: int) -> None:
    outcomes, reached = asked_all({"0": [httpx.Response(status, json=REFUSAL)]}, ["0"])
    assert isinstance(outcomes[0], ConfigError | EngineError)
    assert len(reached) == 1


def test_a_server_that_stays_busy_is_given_up() -> None:
    outcomes, reached = asked_all({"0": [httpx.Response(429, json=REFUSAL)] * 9}, ["0"], attempts=3)
    assert isinstance(outcomes[0], EngineError)
    assert len(reached) == 3


def test_retry_after_is_kept_to() -> None:
    busy = httpx.Response(503, json=REFUSAL, headers={"Retry-After": "0"})
    started = time.monotonic()
    _, reached = asked_all({"0": [busy]}, ["0"], first_s=60.0)
    assert len(reached) == 2
    assert time.monotonic() - started < 30


def test_a_retry_after_beyond_all_patience_is_a_failure_at_once() -> None:
    busy = httpx.Response(429, json=REFUSAL, headers={"Retry-After": "3600"})
    outcomes, reached = asked_all({"0": [busy]}, ["0"])
    assert isinstance(outcomes[0], EngineError)
    assert len(reached) == 1


def test_retry_after_may_be_a_date() -> None:
    assert seconds_told("7") == 7
    assert seconds_told(email.utils.formatdate(time.time() + 100, usegmt=True)) == pytest.approx(100, abs=60)
    assert seconds_told(email.utils.formatdate(0, usegmt=True)) == 0
    assert seconds_told("soon") is None
    assert seconds_told(None) is None


def test_no_more_are_under_way_than_allowed() -> None:
    under_way, most = 0, 0

    async def respond(_request: httpx.Request) -> httpx.Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.001)
        under_way -= 1
        return httpx.Response(200, json=ANSWER)

    transport = httpx.MockTransport(respond)
    asyncio.run(
        ask_all("http://server", [REQUEST] * 20, done=lambda *_: None, concurrency=3, transport=transport)
    )
    assert most == 3


def test_info_of_a_server() -> None:
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, json=info_document()))
    assert fetch_info("http://server/v1", transport=transport).temperatures["noul"] == 2.0


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (httpx.Response(404, text="x"), "has no /v1/decide/info"),
        (httpx.Response(200, json={"a": 1}), "of this release"),
    ],
)
def test_something_else_than_info_is_told(reply: httpx.Response, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        fetch_info("http://server", transport=httpx.MockTransport(lambda _request: reply))


def test_the_key_comes_from_a_file_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DECIDEPLOY_API_KEY", raising=False)
    assert read_api_key() is None
    monkeypatch.setenv("DECIDEPLOY_API_KEY", "of-env")
    assert read_api_key() == "of-env"
    (tmp_path / "key").write_text("of-file\n")
    assert read_api_key(tmp_path / "key") == "of-file"


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines", "schlüssel".encode(), b"schl\xfcssel"])
def test_a_file_that_holds_no_key_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigError, match="one line of printable ASCII") as caught:
        read_api_key(tmp_path / "key")
    assert "ssel" not in str(caught.value)


def test_images_follow_the_state(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    image = {"image": "data:image/png;base64,iVBORw=="}
    assert with_images("s", [f"{tmp_path}/a.png"]) == ["s", image]
    assert with_images(None, ["https://h/i.png"]) == [{"image": "https://h/i.png"}]
    assert with_images(["s", {"text": "t"}], ["data:x"]) == ["s", {"text": "t"}, {"image": "data:x"}]
    assert with_images({"a": "ü"}, ["data:x"])[0] == '{"a": "ü"}'


def test_an_image_file_of_no_known_type_is_told() -> None:
    with pytest.raises(ConfigError, match="no type of image"):
        with_images("s", ["notes.txt"])


def test_the_table_tells_what_the_systems_did() -> None:
    thinking = {"used": True, "think_tokens": 7, "think_seconds": 0.5, "finished_within_budget": False}
    debug = {"system1": [0.4, 0.6], "system2": [0.1, 0.9]}
    document = {**ANSWER, "thinking": {**thinking, "reasoning": "[b] because"}, "debug": debug}
    output = io.StringIO()
    print_decision(DecideResponse.model_validate(document), Console(file=output, width=80))
    text = output.getvalue()
    assert text.splitlines()[2].split()[:4] == ["b", "0.7500", "0.6000", "0.9000"]
    assert "7 tokens in 0.50 s, cut off by its budget" in text
    assert "[b] because" in text


def test_every_field_of_a_request_has_an_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.json").write_text('{"a": 1}')
    (tmp_path / "key").write_text("secret")
    arguments = ["--kind", "choice", "--question", "q", "--state", f"@{tmp_path}/s.json", "--options", "a,b"]
    arguments += ["--option", "c, d", "--strategy", "single", "--thinking", "auto", "--threshold", "0.5"]
    arguments += ["--think-budget", "9", "--chat-template-kwargs", '{"x": 1}', "--calibration", "gold"]
    arguments += ["--return-reasoning", "--debug", "--json", "--api-key-file", f"{tmp_path}/key"]

    def answer(_path: str, body: Any) -> tuple[int, Any]:
        return 200, decision_document(body["options"], [0.5, 0.3, 0.2])

    with wire_server(answer) as server:
        assert main(["decide", "--url", server.url, *arguments]) == 0
    _, sent, body = server.seen[0]
    assert sent["Authorization"] == "Bearer secret"
    assert body == {
        "kind": "choice",
        "question": "q",
        "state": {"a": 1},
        "options": ["a", "b", "c, d"],
        "strategy": "single",
        "thinking": "auto",
        "threshold": 0.5,
        "think_budget": 9,
        "chat_template_kwargs": {"x": 1},
        "calibration": "gold",
        "return_reasoning": True,
        "debug": True,
    }
    assert json.loads(capsys.readouterr().out)["choice"] == "a"


def test_what_a_decision_lacks_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decide", "--kind", "noul"]) == 2
    assert "--question, --state" in capsys.readouterr().err
