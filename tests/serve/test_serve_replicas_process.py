"""``decideploy serve --replicas`` as a process, with fake engines and the real HAProxy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from replicas import CHAT, DECIDE, QUESTION, free_ports, haproxy, load
from started import read_started
from waiting import PATIENCE_S, alive, until

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).with_name("serve_replicas_fakes.py")


@dataclass
class Server:
    """A running ``serve --replicas 2``; ``told`` is what it printed when ready."""

    process: subprocess.Popen[str]
    port: int
    home: Path
    log: Path
    told: dict[str, Any]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def verb(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``decideploy rolling-restart`` for this server."""
        command = [sys.executable, str(SCRIPT), "rolling-restart", "--port", str(self.port), *arguments]
        env = environment(self.home)
        return subprocess.run(
            command, capture_output=True, text=True, env=env, check=False, timeout=PATIENCE_S
        )

    def replica(self, index: int) -> psutil.Process:
        """The process of a replica's engine."""
        return self.child("fake_replica.py", str(self.port + 2 + index))

    def child(self, *words: str) -> psutil.Process:
        """The process below this server's whose command line has ``words``, and not their reaper's."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            line = " ".join(child.cmdline())
            if "reaper.py" not in line and all(word in line for word in words):
                return child
        raise AssertionError(f"no process {words}\n{self.log.read_text('utf-8')}")

    def models(self) -> list[str]:
        """What each replica serves."""
        infos = [httpx.get(f"{self.url}/replicas/{index}/v1/decide/info") for index in range(2)]
        return [info.json().get("model", f"{info.status_code}") for info in infos]


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "DECIDEPLOY_HOME": str(home)}


@contextmanager
def serving(folder: Path, *more: str) -> Iterator[Server]:
    haproxy()
    # Deeper than the address of a socket may be long.
    home, log, port = folder / ("deep" * 30), folder / "stages", free_ports(4)
    command = [sys.executable, str(SCRIPT), "serve", "old", "--replicas=2", f"--port={port}", "--json", *more]
    with (
        log.open("wb") as stages,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stages, text=True, env=environment(home)
        ) as process,
    ):
        try:
            yield Server(process=process, port=port, home=home, log=log, told=read_started(process, log))
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("replicas")) as found:
        yield found


@pytest.fixture(autouse=True)
def whole(request: pytest.FixtureRequest) -> None:
    if "server" in request.fixturenames:
        server = request.getfixturevalue("server")
        until(
            lambda: httpx.get(f"{server.url}/ready").json()["replicas"]["ready"] == 2,
            told=lambda: server.log.read_text("utf-8"),
        )


def test_ready_means_every_replica_has_proven_itself(server: Server) -> None:
    assert server.told["base_url"] == server.url
    assert [told["base_url"] for told in server.told["replicas"]] == [
        f"http://127.0.0.1:{server.port + 2 + index}" for index in range(2)
    ]
    assert all(told["selftest"]["passed"] for told in server.told["replicas"])
    binds = {plan["env"]["VLLM_CPU_OMP_THREADS_BIND"] for plan in server.told["plans"]}
    assert binds == {"0,1,2,3", "4,5,6,7"}
    assert server.told["haproxy"] == (server.home / "run" / f"front-{server.port}" / "haproxy.cfg").read_text(
        "utf-8"
    )


def test_what_commands_the_server_is_its_users_alone(server: Server) -> None:
    folder = server.home / "run" / f"front-{server.port}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in folder.iterdir()} == {"haproxy.cfg", "admin.sock", "control.sock"}


def test_a_rolling_restart_under_load_fails_nothing(server: Server) -> None:
    before = {server.replica(index).pid for index in range(2)}
    with load(server.url) as told:
        done = server.verb("--json")
    assert done.returncode == 0, done.stderr + server.log.read_text("utf-8")
    report = json.loads(done.stdout)
    assert (report["replicas"], report["model"]) == (2, "old")
    assert (told.faults, set(told.statuses)) == ([], {200})
    assert set(told.ports) == {str(server.port + 2), str(server.port + 3)}
    assert before.isdisjoint({server.replica(index).pid for index in range(2)})


def test_what_is_in_flight_is_finished_before_a_replica_is_renewed(server: Server) -> None:
    replies: list[httpx.Response] = []
    slow = threading.Thread(
        target=lambda: replies.append(
            httpx.post(f"{server.url}{CHAT}", json={**QUESTION, "state": "slow"}, timeout=PATIENCE_S)
        )
    )
    slow.start()
    verb = threading.Thread(target=server.verb)
    verb.start()

    def let_go() -> bool:
        for index in range(2):
            httpx.get(f"http://127.0.0.1:{server.port + 2 + index}/go").raise_for_status()
        return not slow.is_alive()

    until(lambda: "draining" in server.log.read_text("utf-8"))
    until(lambda: attempt(let_go))
    verb.join()
    assert [reply.status_code for reply in replies] == [200]


def attempt(step: Any) -> bool:
    try:
        return bool(step())
    except httpx.HTTPError:
        return False


def test_a_model_is_updated_and_one_that_is_refused_is_rolled_back(server: Server) -> None:
    with load(server.url) as told:
        updated = server.verb("new")
        assert updated.returncode == 0, updated.stdout + updated.stderr
        assert server.models() == ["new", "new"]
        refused = server.verb("refused")
        assert refused.returncode == 8
        assert server.models() == ["new", "new"]
        faulty = server.verb("faulty")
        assert (faulty.returncode, "draining" in faulty.stdout) == (5, False)
    assert "back to new" in refused.stdout
    assert "selftest-golden" in refused.stderr
    assert (told.faults, set(told.statuses)) == ([], {200})
    assert set(told.models) == {"old", "new"}
    assert server.verb("old").returncode == 0


def test_a_killed_replica_is_started_again_and_the_other_goes_on(server: Server) -> None:
    killed = server.replica(0)
    with load(server.url) as told:
        killed.kill()
        until(lambda: server.models()[0] == "503" or not alive(killed.pid))
        assert httpx.get(f"{server.url}/ready").status_code == 200
        until(lambda: server.models() == ["old", "old"])
    assert (told.faults, set(told.statuses)) == ([], {200})
    assert "replica 0: the engine ended with signal SIGKILL: starting it again in 1 s" in (
        server.log.read_text("utf-8")
    )


def test_a_killed_haproxy_is_started_again(server: Server) -> None:
    server.child("haproxy").kill()
    until(lambda: "HAProxy answers again" in server.log.read_text("utf-8"))
    assert httpx.post(f"{server.url}{DECIDE}", json=QUESTION).status_code == 200


def test_sigterm_finishes_what_is_in_flight_and_leaves_nothing(tmp_path: Path) -> None:
    replies: list[httpx.Response] = []
    with serving(tmp_path) as server:
        pids = [child.pid for child in psutil.Process(server.process.pid).children(recursive=True)]
        slow = threading.Thread(
            target=lambda: replies.append(
                httpx.post(f"{server.url}{CHAT}", json={**QUESTION, "state": "slow"}, timeout=PATIENCE_S)
            )
        )
        slow.start()
        until(lambda: in_flight(server) == 1)
        server.process.terminate()
        # The front goes on answering: not ready, and come again.
        until(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
        refused = httpx.post(f"{server.url}{DECIDE}", json=QUESTION)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        for index in range(2):
            # The other one has ended.
            attempt(lambda port=server.port + 2 + index: httpx.get(f"http://127.0.0.1:{port}/go"))
        slow.join()
        assert server.process.wait(PATIENCE_S) == 0
    assert [reply.status_code for reply in replies] == [200]
    assert [pid for pid in pids if alive(pid)] == []
    assert not (server.home / "run" / f"front-{server.port}" / "control.sock").exists()


def in_flight(server: Server) -> int:
    text = httpx.get(f"http://127.0.0.1:{server.port + 1}/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("haproxy_server_current_sessions{")]
    return sum(int(float(line.split()[-1])) for line in lines if 'proxy="replicas"' in line)


def test_death_of_the_server_leaves_no_process(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        pids = [child.pid for child in psutil.Process(server.process.pid).children(recursive=True)]
        assert len(pids) == 6
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(PATIENCE_S)
        until(lambda: not [pid for pid in pids if alive(pid)])
