"""The gateway inside vLLM's own HTTP server, whose engine is made in code."""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from forks import Fork, Forks
from gateway_harness import KEY
from waiting import PATIENCE_S, free_port, until

pytestmark = pytest.mark.integration

PROBES = {("GET", "/live"), ("GET", "/ready")}


@dataclass(frozen=True)
class Server:
    """One server; once the file ``release`` is there its streams end."""

    process: Fork
    port: int
    release: Path

    def client(self, key: str | None = KEY) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers=headers,
            timeout=PATIENCE_S,
            trust_env=False,
            verify=False,
        )

    def counted(self, **counts: int) -> None:
        """Wait until so many requests to /v1/wait have ``started`` or been ``stopped``."""
        with self.client() as client:
            until(lambda: counts.items() <= client.get("/counts").json().items(), told=self.output)

    def phase(self) -> str | None:
        try:
            with self.client(None) as client:
                return str(client.get("/ready").json()["phase"])
        except httpx.TransportError:
            return None

    def comes_to(self, phase: str) -> None:
        until(lambda: self.phase() == phase, told=self.output)

    def output(self) -> str:
        return self.process.output.read_text()


Serve = Callable[..., Server]


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    folder = Path(__file__).parent
    environment = os.environ | {
        "DECIDEPLOY_API_KEYS": KEY,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])),
        "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1",
        "VLLM_PLUGINS": "",
    }
    with Forks(["vllm_app"], env=environment, log=tmp_path_factory.mktemp("forks") / "log") as forks:
        yield forks


@pytest.fixture
def serve(forks: Forks, tmp_path: Path) -> Serve:
    """A function that starts a server with settings."""

    def start(**settings: object) -> Server:
        file, port, release = tmp_path / "settings.json", free_port(), tmp_path / "release"
        file.write_text(json.dumps({"access_log": str(tmp_path / "access"), **settings}))
        process = forks.start(
            "vllm_app",
            str(port),
            str(release),
            output=tmp_path / "output",
            env={"DECIDEPLOY_SETTINGS": str(file)},
        )
        server = Server(process, port, release)
        server.comes_to("ready")
        return server

    return start


def test_keys_limits_and_clients_that_leave(serve: Serve) -> None:
    server = serve(request_timeout_s=2)
    with server.client() as client, server.client(None) as stranger:
        paths = client.get("/openapi.json").json()["paths"]
        routes = {(method.upper(), path) for path, methods in paths.items() for method in methods}
        assert {"/v1/chat/completions", "/invocations", "/tokenize", "/health", "/ping"} <= set(paths)
        more = {("GET", "/metrics"), ("GET", "/docs"), ("OPTIONS", "/v1/models")}
        for method, path in sorted((routes | more) - PROBES):
            assert stranger.request(method, path).status_code == 401, (method, path)
        assert "decideploy_ready 1.0" in client.get("/metrics").text
        slow = client.post("/v1/wait", json={})
        assert (slow.status_code, slow.json()["error"]["code"]) == (504, "timeout")
        server.counted(started=1, stopped=1)


def test_the_work_of_a_client_that_leaves_is_stopped(serve: Serve) -> None:
    server = serve()
    head = f"POST /v1/wait HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 2\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n{{}}".encode())
        server.counted(started=1, stopped=0)
    server.counted(started=1, stopped=1)


def test_a_drain_finishes_what_is_in_flight(serve: Serve) -> None:
    server = serve(drain_timeout_s=2 * PATIENCE_S)
    with (
        ThreadPoolExecutor() as pool,
        server.client() as client,
        client.stream("POST", "/v1/completions/stream", json={}) as reply,
    ):
        assert client.get("/live").status_code == 200
        lines = reply.iter_lines()
        assert next(lines) == "data: first"
        streaming = pool.submit(list, lines)
        server.process.signal(signal.SIGTERM)
        server.comes_to("draining")
        refused = client.post("/v1/decide", json={})
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        assert "retry-after" in refused.headers
        server.release.touch()
        assert "data: last" in streaming.result()
    assert server.process.exit_status() == 0
    assert "ended" in server.output()
    assert f"draining: at most {2 * PATIENCE_S:g} s" in server.output()
    assert "vLLM's own stop" not in server.output()


def test_a_stuck_server_ends_when_asked_again(serve: Serve) -> None:
    server = serve(drain_timeout_s=2 * PATIENCE_S)
    with ThreadPoolExecutor() as pool, server.client() as client:
        held = pool.submit(client.post, "/v1/wait", json={})
        server.counted(started=1)
        server.process.signal(signal.SIGINT)
        server.comes_to("draining")
        server.process.signal(signal.SIGINT)
        reply = held.result()
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "draining")
    assert server.process.exit_status() == 0


def test_a_dead_engine_is_refused_and_the_server_ends(serve: Serve) -> None:
    server = serve(dead_linger_s=10)
    with ThreadPoolExecutor() as pool, server.client() as client:
        held = pool.submit(client.post, "/v1/wait", json={})
        server.counted(started=1)
        client.post("/kill")
        assert server.phase() == "failed"
        assert client.post("/v1/decide", json={}).status_code == 503
        reply = held.result()
        # A request that nobody cut off would wait for the 300 s of its own limit.
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_dead")
    assert server.process.exit_status() == 0
