import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from fake_server import Server
from rich.console import Console

from decideploy.errors import EngineError
from decideploy.serve import SelfTestError, print_selftest, selftest
from decideploy.serve.engine_log import _CAUSES
from decideploy.serve.questions import batch, one_of_each_kind, widest_choice
from decideploy.serve.selftest import _CHECKS

Start = Callable[[str], str]


@pytest.fixture
def start() -> Iterator[Start]:
    servers: list[Server] = []

    def run(fault: str) -> str:
        server = Server(0, fault)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield run
    for server in servers:
        server.shutdown()
        server.server_close()


def test_right_server_passes_every_check(start: Start) -> None:
    report = selftest(start(""))
    assert [check.name for check in report.checks if not check.passed] == []
    assert len(report.checks) == 6
    report.raise_for_failures()
    assert json.loads(json.dumps(report.to_dict()))["passed"] is True


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("bad-sum", "kinds"),
        ("slot-missing", "slots"),
        ("placeholder", "slots"),
        ("split-label", "slots"),
        ("adapter-is-base", "adapter-moves"),
        ("base-moves", "base-stays"),
        ("batch-dependent", "batch-agrees"),
        ("truncated", "not-truncated"),
    ],
)
def test_each_fault_is_caught(start: Start, fault: str, check: str) -> None:
    report = selftest(start(fault))
    assert check in {failure.name for failure in report.failures}
    with pytest.raises(SelfTestError) as caught:
        report.raise_for_failures()
    told = [d for d in caught.value.diagnostics() if d.code == f"selftest-{check}"]
    assert told[0].next_step
    assert caught.value.exit_code == 8


def test_server_that_cannot_be_reached_is_one_error() -> None:
    with pytest.raises(EngineError, match="cannot be reached") as caught:
        selftest("http://127.0.0.1:1")
    assert caught.value.status == 503
    assert len(caught.value.diagnostics()) == 1
    assert "--url" in caught.value.next_step


def test_check_that_raised_makes_no_diagnosis(start: Start) -> None:
    failures = selftest(start("split-label")).failures
    raised = [failure for failure in failures if "single tokens" in failure.detail]
    assert {failure.name for failure in raised} >= {"slots", "adapter-moves"}
    assert {failure.meaning for failure in raised} == {"the check could not be run"}
    assert not any("patches" in failure.remedy for failure in raised)


def test_next_steps_name_options_that_exist() -> None:
    remedies = [remedy for _, _, _, remedy in _CHECKS] + [remedy for _, remedy in _CAUSES]
    named = {option for remedy in remedies for option in re.findall(r"--[a-z][a-z-]+", remedy)}
    helped = subprocess.run(
        [sys.executable, "-m", "decideploy", "serve", "--help"], check=True, capture_output=True, text=True
    ).stdout
    # Of the container runtime, and what serve itself gives to the engine.
    elsewhere = {"--shm-size", "--logprobs-mode", "--max-logprobs"}
    assert {option for option in named - elsewhere if option not in helped} == set()
    assert not any("max_model_len" in remedy or "gpu_memory" in remedy for remedy in remedies)


def test_table_tells_what_a_failure_means(start: Start) -> None:
    console = Console(width=200)
    with console.capture() as capture:
        print_selftest(selftest(start("adapter-is-base")), console)
    assert "decisions are the base model's" in capture.get()


def test_questions_are_distinct_and_cover_all_slots() -> None:
    assert {request.kind for request in one_of_each_kind()} == {"noul", "score", "choice"}
    assert len(widest_choice().answer_options) == 16
    assert len({(request.state, request.question) for request in batch()}) == 16
