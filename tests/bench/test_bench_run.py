"""The verb against a server on loopback whose every answer takes a known time."""

import json
import time
from typing import Any

import pytest
from wire_server import Reply, decision_document, info_document, wire_server

from decideploy.bench.prompts import FRESH_WORDS
from decideploy.cli import main

SHORT = ["--duration", "0.2", "--warmup", "0.02", "--rounds", "4"]
OVERHEAD = 30


def answer(path: str, body: Any) -> Reply:
    """A word is a token; the template adds ``OVERHEAD``."""
    if path == "/v1/decide/info":
        return 200, info_document()
    if path == "/tokenize":
        return 200, {"tokens": [7 + len(word) * 100 + ord(word[0]) for word in body["prompt"].split()]}
    if path == "/v1/completions":
        time.sleep(0.002)
        return 200, {}
    if path == "/v1/systemone":
        return (200, {}) if body else (422, {})
    words = len(body["state"].split())
    # Far from the completions', so that what a busy machine adds to both leaves them apart.
    time.sleep(0.05 if words < 500 else 0.002)
    options = body.get("options", ["false", "true"])
    return 200, decision_document(options, [1 / len(options)] * len(options), prompt_tokens=OVERHEAD + words)


def test_plain_load_from_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--clients", "1,4", "--rate", "50", "--prompt-tokens", "90", "--kind", "choice"]
    with wire_server(answer) as server:
        assert main(["bench", "--url", server.url, "--json", *arguments, *SHORT]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["load"] for row in report["rows"]] == ["1 clients", "4 clients", "50 a second"]
    for row in report["rows"]:
        assert row["prompt_tokens"] == 90
        assert row["errors"] == {}
        assert 0.05 <= row["p50_s"] <= row["p95_s"] <= row["p99_s"]
    states = [body["state"] for body in server.bodies()]
    assert len(set(states)) == len(states)


def test_against_completions(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--against", "completions", "--clients", "2", "--prompt-tokens", "80", "--json"]
    with wire_server(answer) as server:
        assert main(["bench", "--url", server.url, *arguments, *SHORT]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["arm"] for row in report["rows"]] == ["decide", "completions"]
    (ratio,) = report["ratios"]
    assert ratio["ratio"]["value"] > 1.1
    assert ratio["met"] is False
    bodies = server.bodies("/v1/completions")
    prompts = [body["prompt"] for body in bodies]
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts)
    assert {tuple(sorted(prompt)) for prompt in prompts} == {tuple(sorted(prompts[0]))}
    assert bodies[0]["model"] == "system1"
    assert len(bodies[0]["allowed_token_ids"]) == bodies[0]["logprobs"] == 2


def test_shared_state_and_tournament(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--shared-state", "--tournament", "--json"]
    with wire_server(answer) as server:
        assert main(["bench", "--url", server.url, *arguments, *SHORT]) == 0
    report = json.loads(capsys.readouterr().out)
    arms = [row["arm"] for row in report["rows"]]
    assert arms[:3] == ["one question", "ten questions", "ten, one systemone request"]
    assert arms[3:] == ["one read", "sixteen reads at once", "tournament of 256"]
    assert [row["requests"] for row in report["rows"]] == [4] * 6
    assert report["rows"][0]["prompt_tokens"] == pytest.approx(1000, abs=1)
    wide = [body for body in server.bodies() if len(body.get("options", ())) == 256]
    assert len(set(wide[0]["options"])) == 256
    assert len(report["ratios"]) == 4
    ten = [body["state"] for body in server.bodies() if body["question"].startswith("Is point 9")]
    assert len(set(ten)) == len(ten) >= 4


def test_errors_are_counted_by_status(capsys: pytest.CaptureFixture[str]) -> None:
    seen = 0

    def busy(path: str, body: Any) -> Reply:
        nonlocal seen
        if path == "/v1/decide":
            seen += 1
            if seen > 3:
                return 429, {}
        return answer(path, body)

    with wire_server(busy) as server:
        assert main(["bench", "--url", server.url, "--clients", "1", "--json", *SHORT]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["errors"] == {"429": row["requests"]}
    assert row["p50_s"] is None


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--prompt-tokens", "9"], 2, f"the shortest has {OVERHEAD + len(FRESH_WORDS)}"),
        (["--url", "http://127.0.0.1:9"], 8, "cannot be reached"),
    ],
)
def test_what_stops_a_benchmark_is_told(
    arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with wire_server(answer) as server:
        assert main(["bench", "--url", server.url, *arguments, *SHORT]) == status
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("absent", "arguments", "extra"),
    [("aiohttp", [], "decideploy[bench]"), ("matplotlib", ["--out", "d"], "decideploy[plot]")],
)
def test_an_absent_extra_is_told(
    absent: str,
    arguments: list[str],
    extra: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == absent else object())
    assert main(["bench", *arguments, *SHORT]) == 2
    assert extra in capsys.readouterr().err


def test_the_generator_itself_costs_little(capsys: pytest.CaptureFixture[str]) -> None:
    with wire_server(answer) as server:
        assert main(["bench", "--url", server.url, "--clients", "4", "--json", *SHORT]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    # The server shares this process here, so that its cost is in the figure as well.
    assert 0 < row["client_cpu_ms"] < 50


def test_an_interrupt_keeps_what_was_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_args: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("decideploy.bench.run.under_rate", interrupted)
    arguments = ["--clients", "1", "--rate", "9", "--json"]
    with wire_server(answer) as server:
        assert main(["bench", "--url", server.url, *arguments, *SHORT]) == 130
    report = json.loads(capsys.readouterr().out)
    assert report["complete"] is False
    assert [row["load"] for row in report["rows"]] == ["1 clients"]
