"""Fake replicas, a real HAProxy in front of them, and clients that ask without a pause."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from waiting import PATIENCE_S, free_port, until

from decideploy.serve.replicas.front import FrontProcess, find_haproxy
from decideploy.serve.replicas.haproxy import Front

FAKE = Path(__file__).with_name("fake_replica.py")
QUESTION = {"kind": "noul", "state": "a box", "question": "Is it whole?"}
DECIDE, CHAT = "/v1/decide", "/v1/chat/completions"


def haproxy() -> Path:
    assert shutil.which("haproxy", path="/usr/sbin:/usr/bin"), "haproxy is not installed (Debian: haproxy)"
    return find_haproxy()


def free_ports(count: int) -> int:
    """The first of ``count`` ports in a row that are free."""
    while True:
        first = free_port()
        with ExitStack() as stack:
            try:
                for port in range(first + 1, first + count):
                    _hold(port, stack)
            except OSError:
                continue
            return first


def _hold(port: int, stack: ExitStack) -> None:
    import socket

    probe = stack.enter_context(socket.socket())
    probe.bind(("127.0.0.1", port))


@dataclass
class Fakes:
    """Fake replicas on ``ports`` behind ``front``, which answers at ``url``."""

    front: FrontProcess
    url: str
    stats_url: str
    addresses: tuple[tuple[str, int], ...]
    namespaces: tuple[str, ...] = ()
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(port for _, port in self.addresses)

    def start(self, index: int) -> None:
        """Start replica ``index``; returns when it answers."""
        host, port = self.addresses[index]
        there = ["ip", "netns", "exec", self.namespaces[index]] if self.namespaces else []
        command = [*there, sys.executable, str(FAKE), str(port), "old", host]
        self.processes[index] = subprocess.Popen(command)
        until(lambda: answers(f"http://{host}:{port}/ready"))

    def end(self, index: int) -> None:
        """Kill replica ``index``."""
        process = self.processes.pop(index)
        process.kill()
        process.wait()

    def serving(self) -> list[bool]:
        """Which replicas HAProxy sends requests to."""
        return [server.serves for server in self.front.servers()]

    def ask(self, path: str = DECIDE, state: str = "a box", **headers: str) -> httpx.Response:
        """One question."""
        body = {**QUESTION, "state": state}
        return httpx.post(f"{self.url}{path}", json=body, headers=headers, timeout=PATIENCE_S)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code < 500
    except httpx.HTTPError:
        return False


@contextmanager
def fakes(count: int, networks: Sequence[tuple[str, str]] = ()) -> Iterator[Fakes]:
    """``count`` fake replicas behind HAProxy, all of them serving; ``networks`` are namespaces and hosts."""
    port = free_ports(count + 2)
    hosts = [host for _, host in networks] or ["127.0.0.1"] * count
    # Deep folders are tried elsewhere.
    with tempfile.TemporaryDirectory() as folder:
        addresses = tuple((host, port + 2 + index) for index, host in enumerate(hosts))
        settings = Front(
            host="127.0.0.1",
            port=port,
            stats_port=port + 1,
            replicas=addresses,
            body_timeout_s=1.0,
        )
        front = FrontProcess(haproxy(), settings, Path(folder) / "run", Path(folder) / "front.log")
        found = Fakes(
            front=front,
            url=f"http://127.0.0.1:{port}",
            stats_url=f"http://127.0.0.1:{port + 1}",
            addresses=addresses,
            namespaces=tuple(name for name, _ in networks),
        )
        try:
            for index in range(count):
                found.start(index)
            front.check()
            front.start()
            yield found
        finally:
            front.stop()
            for index in tuple(found.processes):
                found.end(index)


@dataclass
class Load:
    """What clients got that asked one decision after the other: statuses, and who answered."""

    statuses: Counter[int] = field(default_factory=Counter)
    ports: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    without_advice: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def asked(self) -> int:
        return self.statuses.total()


@contextmanager
def load(url: str, clients: int = 4) -> Iterator[Load]:
    """Ask ``url`` by ``clients`` at once until the end."""
    told, ended, lock = Load(), threading.Event(), threading.Lock()

    def ask() -> None:
        with httpx.Client(timeout=PATIENCE_S, trust_env=False) as client:
            while not ended.is_set():
                try:
                    reply = client.post(f"{url}{DECIDE}", json=QUESTION)
                except httpx.HTTPError as error:
                    told.faults.append(repr(error))
                    continue
                with lock:
                    told.statuses[reply.status_code] += 1
                    told.ports[reply.headers.get("x-port", "")] += 1
                    told.models[reply.headers.get("x-model", "")] += 1
                    told.without_advice += reply.status_code != 200 and "retry-after" not in reply.headers

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: told.asked > 2 * clients)
        yield told
        before = told.asked
        until(lambda: told.asked > before + 2 * clients)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
