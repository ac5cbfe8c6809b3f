"""What the service manager is told, over a real datagram socket."""

import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from decideploy.errors import ConfigError
from decideploy.serve.notify import ServiceManager, Watch, works


@contextlib.contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        heard.settimeout(60)
        yield heard


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[socket.socket]:
    with listening(str(tmp_path / "notify")) as told:
        yield told


def environment(heard: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": heard.getsockname(), **more}


def test_each_word_of_the_protocol(heard: socket.socket) -> None:
    manager = ServiceManager(environment(heard))
    manager.ready("ready at http://127.0.0.1:8000")
    manager.working()
    manager.stopping()
    assert heard.recv(999) == b"READY=1\nSTATUS=ready at http://127.0.0.1:8000"
    assert heard.recv(999) == b"WATCHDOG=1"
    assert heard.recv(999) == b"STOPPING=1\nSTATUS=draining"


def test_an_abstract_socket() -> None:
    with listening(f"@decideploy-test-{threading.get_ident()}") as heard:
        ServiceManager({"NOTIFY_SOCKET": f"@{heard.getsockname()[1:].decode()}"}).working()
        assert heard.recv(999) == b"WATCHDOG=1"


def test_nobody_is_told_without_a_manager() -> None:
    manager = ServiceManager({"WATCHDOG_USEC": "1000000"})
    manager.ready("x")
    assert manager.watchdog_s is None


def test_a_manager_that_does_not_listen_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"READY=1"):
        ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("x")


@pytest.mark.parametrize(
    ("variables", "limit_s"),
    [
        ({"WATCHDOG_USEC": "180000000"}, 180.0),
        ({"WATCHDOG_USEC": "180000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_of_another_process_is_not_ours(
    variables: dict[str, str], limit_s: float | None, heard: socket.socket
) -> None:
    assert ServiceManager(environment(heard, **variables)).watchdog_s == limit_s


def test_signs_are_given_while_it_works_or_starts_and_not_else(heard: socket.socket) -> None:
    manager = ServiceManager(environment(heard, WATCHDOG_USEC="40000"))
    looked = threading.Semaphore(0)
    answers = iter([True, False, False])

    def working() -> bool:
        looked.release()
        return next(answers, False)

    watch = Watch(manager, working)
    with watch.running():
        assert heard.recv(999) == b"WATCHDOG=1"
        for _ in range(4):
            assert looked.acquire(timeout=60)
        heard.setblocking(False)
        with pytest.raises(BlockingIOError):
            heard.recv(999)
        heard.settimeout(60)
        with watch.starting():
            assert heard.recv(999) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (json.dumps({"phase": "ready"}), True),
        (json.dumps({"phase": "testing"}), True),
        (json.dumps({"phase": "draining"}), True),
        (json.dumps({"phase": "failing"}), False),
        (json.dumps({"phase": "failed"}), False),
        ("[]", False),
        ("<html>", False),
    ],
)
def test_a_server_works_by_its_own_word(body: str, expected: bool) -> None:
    class Ready(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with http.server.HTTPServer(("127.0.0.1", 0), Ready) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert works(f"http://127.0.0.1:{server.server_port}") is expected
        thread.join()


def test_a_server_that_does_not_answer_does_not_work() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert works(f"http://127.0.0.1:{taken.getsockname()[1]}") is False
