import io
from typing import Any

import pytest

from decideploy.api.json_body import parse_json as parse_body
from decideploy.cli import main
from decideploy.decide import RequestError
from decideploy.errors import ConfigError
from decideploy.texts import decoded, parse_json, read_text

REFUSED = [
    "",
    "{",
    "[NaN]",
    '{"a": Infinity}',
    '{"a": 1, "a": 1}',
    '[{"a": {"b": 1, "\\u0062": 2}}]',
    "[" * 100_000,
    "1" * 5_000,
]


@pytest.mark.parametrize("text", REFUSED)
def test_files_and_bodies_are_refused_alike(text: str) -> None:
    for read in (text, text.encode()):
        with pytest.raises(ValueError, match=r"."):
            parse_json(read)
    with pytest.raises(RequestError, match="not valid JSON"):
        parse_body(text.encode())


@pytest.mark.parametrize(
    ("text", "value"), [('{"a": {"b": 1}, "b": [1e3]}', {"a": {"b": 1}, "b": [1000.0]}), ("null", None)]
)
def test_files_and_bodies_are_read_alike(text: str, value: Any) -> None:
    assert parse_json(text) == parse_json(text.encode()) == parse_body(text.encode()) == value


def test_bytes_of_another_encoding_are_no_json() -> None:
    with pytest.raises(ValueError, match="codec"):
        parse_json("{}".encode("utf-16"))
    with pytest.raises(ValueError, match="BOM"):
        parse_json(b"\xef\xbb\xbf{}")
    for body in ("{}".encode("utf-16"), "{}".encode("utf-32"), b"\xef\xbb\xbf{}"):
        with pytest.raises(RequestError, match="not valid JSON"):
            parse_body(body)


def test_text_is_decoded_with_one_kind_of_line_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("ü\r\nb".encode()), encoding="ascii"))
    assert read_text("-") == "ü\nb"


def test_what_is_not_utf8_is_told_by_input_and_line() -> None:
    with pytest.raises(ConfigError, match="invalid start byte at byte 4") as caught:
        decoded(b"a\n\nb\xff", "in.txt")
    assert caught.value.where == "in.txt: line 3"


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"a": NaN}', "[]", '{"a": "\udcff"}'])
def test_template_arguments_are_strict_json(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["decide", "--chat-template-kwargs", text])
    assert stopped.value.code == 2
    assert "argument --chat-template-kwargs: not" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--question", "--state", "--option", "--options"])
def test_arguments_that_are_not_utf8_are_told(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["decide", option, "a\udcff"])
    assert stopped.value.code == 2
    assert f"argument {option}: not UTF-8 text" in capsys.readouterr().err
