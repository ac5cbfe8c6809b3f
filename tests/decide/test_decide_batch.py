import asyncio
import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from wire_server import decision_document, wire_server

from decideploy.cli import main
from decideploy.decide.batch import Results, read_lines, run_batch
from decideploy.errors import ConfigError, EngineError, Error

GIVEN = {"kind": "noul", "question": "q"}


def answer(_path: str, body: Any) -> tuple[int, Any]:
    if body["state"] == "refused":
        error = {"message": "state: no", "type": "invalid_request_error", "param": "state", "code": "bad"}
        return 422, {"error": error}
    if body["state"] == "broken":
        return 500, {"error": {"message": "broken", "type": "server_error"}}
    return 200, decision_document(["false", "true"], [0.25, 0.75], prompt_tokens=int(body["state"]))


def piped(text: str | bytes) -> io.TextIOWrapper:
    """A standard input as it is where the locale is C or POSIX."""
    content = text.encode() if isinstance(text, str) else text
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", errors="surrogateescape")


def test_given_fields_fill_what_a_line_leaves_out() -> None:
    lines = read_lines(['{"state": "s"}', "", '{"state": "t", "question": "other"}'], GIVEN)
    assert [line.number for line in lines] == [1, 3]
    assert [line.request.question for line in lines] == ["q", "other"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"state": 1}', "state"),
        ("[" * 100_000, "not JSON"),
        ('{"state": "s", "state": "t"}', "the key 'state' twice"),
        ('{"state": {"a": 1, "a": 2}}', "the key 'a' twice"),
        ('{"state": "s", "threshold": NaN}', "not JSON: NaN"),
        ('{"state": {"a": -Infinity}}', "not JSON: -Infinity"),
    ],
)
def test_a_wrong_line_keeps_its_fault(line: str, words: str) -> None:
    (read,) = read_lines([line], GIVEN)
    assert isinstance(read.request, ConfigError)
    assert words in read.request.what


def test_results_come_in_the_order_of_the_input_as_soon_as_it_allows() -> None:
    out = io.StringIO()
    results = Results(out=out, numbers=[1, 2, 4], failed=lambda *_: None)
    results.add(1, EngineError("late"))
    assert out.getvalue() == ""
    results.add(0, ConfigError("wrong"))
    assert [json.loads(line)["line"] for line in out.getvalue().splitlines()] == [1, 2]


def test_a_batch_from_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    states = ["1", "refused", "3", "4", "5"]
    text = "".join(json.dumps({"state": state}) + "\n" for state in states) + "{\n"
    (tmp_path / "in.jsonl").write_text(text)
    out = tmp_path / "out.jsonl"
    arguments = ["--kind", "noul", "--question", "q", "--batch", f"{tmp_path}/in.jsonl", "--out", str(out)]
    with wire_server(answer) as server:
        assert main(["decide", "--url", server.url, *arguments]) == 2
        results = [json.loads(line) for line in out.read_text().splitlines()]
        assert [result["line"] for result in results] == [1, 2, 3, 4, 5, 6]
        assert [result.get("usage", {}).get("prompt_tokens") for result in results] == [
            1,
            None,
            3,
            4,
            5,
            None,
        ]
        assert results[1]["error"] == {
            "status": 422,
            "message": "state: no",
            "type": "invalid_request_error",
            "param": "state",
            "code": "bad",
        }
        assert results[5]["error"]["type"] == "ConfigError"
        told = capsys.readouterr().err
        assert "line 2: state: no" in told
        assert "line 6: the line is not JSON" in told
        assert "2 of 6 lines failed" in told
        asked = len(server.seen)
        assert main(["decide", "--url", server.url, *arguments]) == 2
        assert "the file exists" in capsys.readouterr().err
        assert len(server.seen) == asked
        assert main(["decide", "--url", server.url, *arguments, "--force"]) == 2
        assert len(server.seen) == 2 * asked


def test_a_batch_from_standard_input_to_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # U+2028 ends a line for str.splitlines, not for JSON.
    line = json.dumps({**GIVEN, "state": "7", "question": "a\u2028b"}, ensure_ascii=False)
    monkeypatch.setattr("sys.stdin", piped(line + "\r\n" + line.replace("7", "broken") + "\n"))
    with wire_server(answer) as server:
        assert main(["decide", "--url", server.url, "--batch", "-"]) == 8
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["probabilities"] == [0.25, 0.75]
    assert second == {
        "line": 2,
        "error": {"status": 500, "message": "broken", "type": "server_error"},
    }


def test_an_interrupt_keeps_what_was_answered() -> None:
    out, failures = io.StringIO(), list[tuple[int, Error]]()
    lines = read_lines([json.dumps({"state": str(number)}) for number in range(6)], GIVEN)
    results = Results(
        out=out,
        numbers=[line.number for line in lines],
        failed=lambda number, error: failures.append((number, error)),
    )

    async def respond(request: httpx.Request) -> httpx.Response:
        state = json.loads(request.content)["state"]
        if state == "0":
            # Never comes back: the later answers wait for it in memory.
            await asyncio.sleep(60)
        if state == "3":
            raise KeyboardInterrupt
        return httpx.Response(200, json=decision_document(["false", "true"], [0.5, 0.5]))

    with pytest.raises(KeyboardInterrupt):
        run_batch("http://server", lines, results, concurrency=2, transport=httpx.MockTransport(respond))
    assert [json.loads(line)["line"] for line in out.getvalue().splitlines()] == [2, 3]
    assert not failures


NOT_UTF8 = b'{"state": "1"}\n{"state": "\xff"}\n'


@pytest.mark.parametrize("name", ["-", "in.jsonl"])
def test_a_batch_that_is_not_utf8_is_told_by_its_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_bytes(NOT_UTF8)
    monkeypatch.setattr("sys.stdin", piped(NOT_UTF8))
    with wire_server(answer) as server:
        arguments = ["--url", server.url, "--kind", "noul", "--question", "q", "--out", "out.jsonl"]
        assert main(["decide", *arguments, "--batch", name]) == 2
    assert not server.seen
    assert not (tmp_path / "out.jsonl").exists()
    told = capsys.readouterr().err
    assert "not UTF-8 text" in told
    assert f"{'standard input' if name == '-' else name}: line 2" in told


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_batch_without_a_request_is_a_fault(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_text(text)
    out = tmp_path / "out.jsonl"
    assert main(["decide", "--batch", f"{tmp_path}/in.jsonl", "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert "holds no request" in told
    assert f"where: {tmp_path}/in.jsonl" in told
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["decide", "--out", "x.json"], "--out has no effect without --batch"),
        (["decide", "--concurrency", "8"], "--concurrency has no effect without --batch"),
        (["decide", "--out", "x", "--concurrency", "2"], "--batch; --concurrency has no effect"),
        (["decide", "--force"], "--force has no effect without --out"),
        (["decide", "--batch", "absent", "--force"], "--force has no effect without --out"),
        (["calibrate", "--data", "absent", "--force"], "--force has no effect without --out"),
    ],
)
def test_options_without_effect_are_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    question = ["--kind", "noul", "--question", "q", "--state", "s"] if arguments[0] == "decide" else []
    assert main([*arguments, *question]) == 2
    assert words in capsys.readouterr().err
