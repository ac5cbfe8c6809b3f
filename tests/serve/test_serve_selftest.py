import json
import threading
from collections.abc import Callable, Iterator

import pytest
from fake_server import Server
from rich.console import Console

from decideploy.serve import SelfTestError, print_selftest, selftest
from decideploy.serve.questions import batch, one_of_each_kind, widest_choice

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


def test_no_server_fails_every_check() -> None:
    report = selftest("http://127.0.0.1:1")
    assert len(report.failures) == len(report.checks)


def test_table_tells_what_a_failure_means(start: Start) -> None:
    console = Console(width=200)
    with console.capture() as capture:
        print_selftest(selftest(start("adapter-is-base")), console)
    assert "decisions are the base model's" in capture.get()


def test_questions_are_distinct_and_cover_all_slots() -> None:
    assert {request.kind for request in one_of_each_kind()} == {"noul", "score", "choice"}
    assert len(widest_choice().answer_options) == 16
    assert len({(request.state, request.question) for request in batch()}) == 16
