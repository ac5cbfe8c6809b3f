"""The gateway inside vLLM's own HTTP server, whose engine is made in code."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from gateway_harness import KEY

pytestmark = pytest.mark.integration

APP = Path(__file__).with_name("vllm_app.py")


class Server:
    def __init__(self, process: subprocess.Popen[str], port: int, output: Path) -> None:
        self.process, self.port, self.output = process, port, output

    def client(self, key: str | None = KEY) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers=headers,
            timeout=20,
            trust_env=False,
            verify=False,
        )

    def phase(self) -> str | None:
        try:
            with self.client(None) as client:
                return str(client.get("/ready").json()["phase"])
        except httpx.TransportError:
            return None

    def until(self, phase: str | None, timeout_s: float) -> float:
        begin = time.monotonic()
        while self.phase() != phase:
            assert time.monotonic() - begin < timeout_s, self.output.read_text()[-3000:]
            time.sleep(0.05)
        return time.monotonic() - begin


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings, output = tmp_path / "settings.json", tmp_path / "output"
    settings.write_text(f'{{"request_timeout_s": 8, "access_log": "{tmp_path / "access"}"}}')
    environment = os.environ | {
        "DECIDEPLOY_API_KEYS": KEY,
        "DECIDEPLOY_SETTINGS": str(settings),
        "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1",
        "VLLM_PLUGINS": "",
    }
    with (
        open(output, "w") as file,
        subprocess.Popen(
            [sys.executable, str(APP), str(port)], env=environment, stdout=file, stderr=file, text=True
        ) as process,
    ):
        found = Server(process, port, output)
        try:
            found.until("ready", 600)
            yield found
        finally:
            process.kill()


def test_keys_limits_and_a_drain(server: Server) -> None:
    with server.client() as client, server.client(None) as stranger:
        paths = client.get("/openapi.json").json()["paths"]
        routes = {(method.upper(), path) for path, methods in paths.items() for method in methods}
        assert {"/v1/chat/completions", "/invocations", "/tokenize", "/health", "/ping"} <= set(paths)
        for method, path in sorted(
            {*routes, ("GET", "/metrics"), ("GET", "/docs"), ("OPTIONS", "/v1/models")}
        ):
            assert stranger.request(method, path).status_code == 401, (method, path)
        assert "decideploy_ready 1.0" in client.get("/metrics").text

        slow = client.post("/v1/wait", json={})
        assert (slow.status_code, slow.json()["error"]["code"]) == (504, "timeout")
        assert client.get("/stopped").json() == 1
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/wait", json={}, timeout=0.3)
        begin = time.monotonic()
        while client.get("/stopped").json() != 2:
            assert time.monotonic() - begin < 2

    with ThreadPoolExecutor() as pool, server.client() as client:
        assert client.get("/live").status_code == 200
        streaming = pool.submit(client.post, "/v1/completions/stream", json={})
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        server.until("draining", 1)
        refused = client.post("/v1/decide", json={})
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        assert "retry-after" in refused.headers
        assert streaming.result().text.endswith("data: 39\n\n")
    begin = time.monotonic()
    assert server.process.wait(20) == 0
    assert time.monotonic() - begin < 5
    assert "ended" in server.output.read_text()
    assert "draining: at most 30 s" in server.output.read_text()
    assert "vLLM's own stop" not in server.output.read_text()


def test_an_idle_server_ends_at_once_and_a_stuck_one_when_asked_again(server: Server) -> None:
    with ThreadPoolExecutor() as pool, server.client() as client:
        held = pool.submit(client.post, "/v1/wait", json={})
        time.sleep(0.3)
        server.process.send_signal(signal.SIGINT)
        server.until("draining", 1)
        server.process.send_signal(signal.SIGINT)
        reply = held.result()
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "draining")
    assert server.process.wait(20) == 0


def test_a_dead_engine_is_refused_and_the_server_ends(server: Server) -> None:
    with ThreadPoolExecutor() as pool, server.client() as client:
        held = pool.submit(client.post, "/v1/wait", json={})
        time.sleep(0.3)
        client.post("/kill")
        begin = time.monotonic()
        assert server.phase() == "failed"
        reply = held.result()
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_dead")
        assert time.monotonic() - begin < 2
        assert client.post("/v1/decide", json={}).status_code == 503
    assert server.process.wait(20) == 0
