"""What an operator does to a server, on the real engine: keys, limits, a killed engine, a stop under load.

The tests share one server and run in order: the last two restart and end it.
"""

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from started import read_started
from waiting import PATIENCE_S, alive, free_port, is_free, until

pytestmark = pytest.mark.integration

KEY, FILE_KEY = secrets.token_hex(16), secrets.token_hex(16)
PRIVATE = "zanzibar-umbrella"
QUESTION = {"kind": "noul", "state": f"The {PRIVATE} was torn.", "question": "Was it whole?"}
MAX_CONCURRENCY, MAX_QUEUE, TIMEOUT_S = 4, 4, 25.0
OPEN_ROUTES = {"/live", "/ready"}
DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "decideploy.json"


@dataclass(frozen=True)
class Operated:
    """A server with keys and small limits, and the files that it writes."""

    process: subprocess.Popen
    url: str
    model: str
    stages: Path
    engine_log: Path
    access_log: Path

    def client(self, *, key: str | None = KEY, timeout_s: float = 120.0) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s, trust_env=False)

    def long_text(self, tokens: int, **more: object) -> dict:
        return {
            "model": self.model,
            "prompt": f"The {PRIVATE}",
            "max_tokens": tokens,
            "ignore_eos": True,
            **more,
        }

    def comes_to(self, name: str, value: float) -> float:
        """Wait until a metric has a value; the engine tells its own after the output that they count."""
        return until(lambda: self.metric(name) == value, told=lambda: f"{name} is {self.metric(name):g}")

    def metric(self, name: str) -> float:
        with self.client() as client:
            lines = client.get("/metrics").text.splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} "))
        )


@pytest.fixture(scope="module")
def operated(
    demo_model: Path, engine_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operated]:
    state, port = tmp_path_factory.mktemp("operated"), free_port()
    (state / "keys").write_text(f"# the file's own\n{FILE_KEY}\n")
    command = [shutil.which("decideploy", path=str(Path(sys.executable).parent)), "serve", str(demo_model)]
    command += ["--port", str(port), "--json", "--api-key-file", str(state / "keys")]
    command += ["--max-concurrency", str(MAX_CONCURRENCY), "--max-queue", str(MAX_QUEUE)]
    command += ["--request-timeout", str(TIMEOUT_S), "--drain-timeout", "60"]
    command += ["--access-log", str(state / "access.jsonl"), "--restart", "on-failure", "--max-restarts", "1"]
    environment = os.environ | {"DECIDEPLOY_HOME": str(engine_home), "DECIDEPLOY_API_KEYS": KEY}
    stages = state / "stages.txt"
    with (
        open(stages, "w") as stage_lines,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=stage_lines, text=True
        ) as process,
    ):
        started = read_started(process, stages)
        assert started["selftest"]["passed"] is True
        yield Operated(
            process=process,
            url=started["base_url"],
            model=started["plan"]["served_model_name"],
            stages=stages,
            engine_log=engine_home / "logs" / f"engine-{port}.log",
            access_log=state / "access.jsonl",
        )
        process.kill()


def test_every_route_of_the_application_needs_a_key(operated):
    with operated.client() as client, operated.client(key=None) as stranger:
        paths = client.get("/openapi.json").json()["paths"]
        routes = {(method.upper(), path) for path, methods in paths.items() for method in methods}
        # Not in the schema: the documentation itself, the metrics and what only answers OPTIONS.
        routes |= {
            ("GET", path) for path in ("/docs", "/redoc", "/openapi.json", "/metrics", "/metrics/", "/")
        }
        routes |= {("OPTIONS", "/v1/decide"), ("POST", "/live"), ("POST", "/ready"), ("GET", "/ready/")}
        assert {"/v1/decide", "/v1/chat/completions", "/invocations", "/tokenize", "/health"} <= set(paths)
        for method, path in sorted(routes - {("GET", path) for path in OPEN_ROUTES}):
            assert stranger.request(method, path).status_code == 401, (method, path)
            wrong = {"Authorization": f"Bearer {KEY[:-1]}"}
            assert stranger.request(method, path, headers=wrong).status_code == 401, (method, path)
        assert {stranger.get(path).status_code for path in OPEN_ROUTES} == {200}
    for key in (KEY, FILE_KEY):
        with operated.client(key=key) as client:
            assert client.post("/v1/decide", json=QUESTION).status_code == 200


def test_other_origins_read_nothing(operated):
    with operated.client() as client:
        reply = client.post("/v1/decide", json=QUESTION, headers={"Origin": "https://example.org"})
        assert not [name for name in reply.headers if name.startswith("access-control")]


def test_a_request_that_takes_too_long_is_504_and_leaves_the_engine(operated, figure):
    begin = time.monotonic()
    with operated.client() as client:
        reply = client.post("/v1/completions", json=operated.long_text(8000))
    took_s = time.monotonic() - begin
    assert reply.status_code == 504, reply.text
    assert reply.json()["error"]["code"] == "timeout"
    # An answer of the whole length takes far longer.
    assert took_s >= TIMEOUT_S
    left_s = operated.comes_to("vllm:num_requests_running", 0)
    figure(f"timeout of {TIMEOUT_S:g} s answered after {took_s:.2f} s; engine idle {left_s:.2f} s later")


def test_a_stream_that_takes_too_long_ends_with_an_error(operated):
    with (
        operated.client() as client,
        client.stream("POST", "/v1/completions", json=operated.long_text(8000, stream=True)) as reply,
    ):
        events = [line for line in reply.iter_lines() if line.startswith("data: ")]
    assert reply.status_code == 200
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "timeout"
    operated.comes_to("vllm:num_requests_running", 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_the_engine(operated, stream, figure):
    left = clients_left(operated)
    with left_connection(operated, operated.long_text(8000, stream=stream)):
        operated.comes_to("vllm:num_requests_running", 1)
    left_s = operated.comes_to("vllm:num_requests_running", 0)
    operated.comes_to("decideploy_inflight", 0)
    with operated.client() as client:
        assert client.post("/v1/decide", json=QUESTION).status_code == 200
    until(lambda: clients_left(operated) == left + 1)
    figure(f"client left, {'stream' if stream else 'whole answer'}: engine idle {left_s:.2f} s later")


def clients_left(operated: Operated) -> int:
    return operated.access_log.read_text().count('"client_left"')


@contextmanager
def left_connection(operated: Operated, body: dict) -> Iterator[None]:
    """A completion under way, whose connection is closed without the answer at the end of the context."""
    content, port = json.dumps(body), int(operated.url.rsplit(":", 1)[1])
    head = ["POST /v1/completions HTTP/1.1", "Host: here", f"Authorization: Bearer {KEY}"]
    head += ["Content-Type: application/json", f"Content-Length: {len(content)}", "", content]
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall("\r\n".join(head).encode())
        yield


def test_a_full_queue_is_429_with_a_time(operated):
    leave = threading.Event()

    def hold() -> None:
        with (
            operated.client() as client,
            client.stream("POST", "/v1/completions", json=operated.long_text(8000, stream=True)) as reply,
        ):
            for _ in reply.iter_raw():
                if leave.is_set():
                    return

    with ThreadPoolExecutor(MAX_CONCURRENCY + MAX_QUEUE) as pool:
        held = [pool.submit(hold) for _ in range(MAX_CONCURRENCY + MAX_QUEUE)]
        operated.comes_to("decideploy_queue_depth", MAX_QUEUE)
        with operated.client() as client:
            replies = {path: client.post(path, json=QUESTION) for path in ("/v1/decide", "/v1/systemone")}
            assert client.get("/v1/models").status_code == 200
            assert client.get("/ready").json()["phase"] == "ready"
        leave.set()
        for future in held:
            future.result()
    assert {reply.status_code for reply in replies.values()} == {429}
    assert all(int(reply.headers["retry-after"]) >= 1 for reply in replies.values())
    assert replies["/v1/decide"].json()["error"]["code"] == "queue_full"
    assert replies["/v1/systemone"].json()["detail"][0]["type"] == "queue_full"
    operated.comes_to("decideploy_inflight", 0)


def test_ids_logs_and_metrics(operated):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with operated.client() as client:
        reply = client.post(
            "/v1/decide", json=QUESTION, headers={"x-request-id": "seven", "traceparent": trace}
        )
        assert reply.headers["x-request-id"] == "seven"
        text = client.get("/metrics").text
    assert 'decideploy_requests_total{dialect="decide"' in text
    assert "vllm:num_requests_running" in text
    assert "decideploy_ready 1.0" in text
    asked = set(re.findall(r"vllm:\w+", DASHBOARD.read_text("utf-8")))
    assert [name for name in sorted(asked) if f"\n{name}{{" not in text] == []
    until(lambda: '"seven"' in operated.access_log.read_text())
    lines = [json.loads(line) for line in operated.access_log.read_text().splitlines()]
    line = next(line for line in lines if line["request_id"] == "seven")
    assert (line["route"], line["status"], line["outcome"]) == ("/v1/decide", 200, "ok")
    assert line["trace_id"] == trace.split("-")[1]
    assert {"timeout", "client_left", "queue_full", "unauthorized"} <= {line["outcome"] for line in lines}
    written = operated.access_log.read_text() + operated.engine_log.read_text() + operated.stages.read_text()
    assert not [secret for secret in (KEY, FILE_KEY, PRIVATE) if secret in written]


def test_a_killed_engine_fails_fast_and_is_started_again(operated, figure):
    (core,) = [p for p in psutil.Process(operated.process.pid).children(recursive=True) if is_engine_core(p)]
    # When each was sent, and its answer.
    seen: list[tuple[float, int | None]] = []
    stop = threading.Event()

    def ask() -> None:
        with operated.client() as client:
            while not stop.is_set():
                sent_at = time.monotonic()
                try:
                    status = client.post("/v1/decide", json=QUESTION).status_code
                except httpx.TransportError:
                    status = None
                seen.append((sent_at, status))

    def answers_since(begin: float) -> set[int | None]:
        return {status for sent_at, status in list(seen) if sent_at > begin}

    with ThreadPoolExecutor(4) as pool, operated.client(key=None) as probe:
        askers = [pool.submit(ask) for _ in range(4)]
        until(lambda: 200 in answers_since(0))
        core.send_signal(signal.SIGKILL)
        dropped_s = until(lambda: not is_ready(probe))
        dropped_at = time.monotonic()
        until(lambda: 503 in answers_since(dropped_at), told=lambda: seen[-20:])
        stop.set()
        for asker in askers:
            asker.result()
        assert 200 not in answers_since(dropped_at)
        assert not answers_since(0) - {200, 503, None}
        back_s = until(lambda: is_ready(probe), 600, pause_s=0.5)
    figure(f"killed engine: not ready after {dropped_s:.2f} s, ready again after {back_s:.0f} s")
    assert not alive(core.pid)
    with operated.client() as client:
        assert client.post("/v1/decide", json=QUESTION).status_code == 200


def is_engine_core(process: psutil.Process) -> bool:
    try:
        return "EngineCore" in " ".join([process.name(), *process.cmdline()])
    except psutil.Error:
        return False


def is_ready(probe: httpx.Client) -> bool:
    try:
        return probe.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


def test_sigterm_finishes_what_is_in_flight_and_leaves_nothing(operated, figure):
    family = [process.pid for process in psutil.Process(operated.process.pid).children(recursive=True)]
    first = threading.Event()
    tokens = tokens_in(operated, 12.0)

    def stream() -> list[str]:
        body = operated.long_text(tokens, stream=True)
        with operated.client() as client, client.stream("POST", "/v1/completions", json=body) as reply:
            events = []
            for line in reply.iter_lines():
                events.append(line)
                first.set()
        return events

    with ThreadPoolExecutor(3) as pool, operated.client() as client, operated.client(key=None) as probe:
        streaming = pool.submit(stream)
        assert first.wait(PATIENCE_S)
        deciding = [pool.submit(operated_decision, operated) for _ in range(2)]
        begin = time.monotonic()
        operated.process.send_signal(signal.SIGTERM)
        closed_s = until(lambda: not is_ready(probe))
        assert operated.process.poll() is None, operated.stages.read_text("utf-8")
        refused = client.post("/v1/decide", json=QUESTION) if not streaming.done() else None
        events = streaming.result()
        drained_s = time.monotonic() - begin
        decided = {future.result() for future in deciding}
    assert "data: [DONE]" in events
    assert decided <= {200, 503}
    assert refused is not None, "the stream ended before the refusal: make it longer"
    assert (refused.status_code, refused.headers["connection"]) == (503, "close")
    assert "retry-after" in refused.headers
    assert operated.process.wait(PATIENCE_S) == 0
    stopped_s = time.monotonic() - begin - drained_s
    until(lambda: not [pid for pid in family if alive(pid)])
    assert is_free(int(operated.url.rsplit(":", 1)[1]))
    figure(f"SIGTERM: not ready after {closed_s:.2f} s, drained after {drained_s:.1f} s")
    figure(f"SIGTERM: everything gone {stopped_s:.1f} s after the last answer")


def tokens_in(operated: Operated, seconds: float) -> int:
    """How many tokens the server writes in ``seconds`` by the fastest of three: a pause gives too few."""
    count, took = 40, []
    with operated.client() as client:
        for _ in range(3):
            begin = time.monotonic()
            assert client.post("/v1/completions", json=operated.long_text(count)).status_code == 200
            took.append(time.monotonic() - begin)
    return max(count, round(count * seconds / min(took)))


def operated_decision(operated: Operated) -> int:
    with operated.client() as client:
        return client.post("/v1/decide", json=QUESTION).status_code
