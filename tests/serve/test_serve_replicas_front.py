"""The real HAProxy in front of fake replicas: who is asked, what is repeated, what is told."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from replicas import CHAT, DECIDE, QUESTION, Fakes, fakes, load
from waiting import PATIENCE_S, until


@pytest.fixture(scope="module")
def two() -> Iterator[Fakes]:
    with fakes(2) as found:
        yield found


@pytest.fixture(autouse=True)
def whole(two: Fakes) -> None:
    """Every test begins with two replicas that serve."""
    for index in range(2):
        if index not in two.processes or two.processes[index].poll() is not None:
            two.start(index)
    until(lambda: two.serving() == [True, True])


def in_flight(two: Fakes, path: str, pool: ThreadPoolExecutor) -> tuple[int, object]:
    """A slow question, and which replica has it."""
    future = pool.submit(two.ask, path, "slow")
    until(lambda: any(server.sessions for server in two.front.servers()))
    return next(index for index, server in enumerate(two.front.servers()) if server.sessions), future


def go(two: Fakes, index: int) -> None:
    httpx.get(f"http://127.0.0.1:{two.ports[index]}/go")


def test_both_are_asked_and_headers_go_through(two: Fakes) -> None:
    assert {two.ask().headers["x-port"] for _ in range(8)} == {str(port) for port in two.ports}
    sent = {
        "x-request-id": "mine-1",
        "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01",
        "authorization": "Bearer key",
    }
    seen = httpx.get(f"{two.url}/v1/models", headers=sent).json()["headers"]
    assert {name: seen[name] for name in sent} == sent
    assert seen["x-forwarded-for"] == "127.0.0.1"
    made = httpx.get(f"{two.url}/v1/models", headers={"x-request-id": "not one: é".encode()}).json()
    assert len(made["headers"]["x-request-id"]) == 36


def test_a_killed_replica_fails_no_decision(two: Fakes) -> None:
    with load(two.url) as told:
        two.end(0)
        until(lambda: two.serving() == [False, True])
    assert (told.faults, set(told.statuses)) == ([], {200})


def test_a_decision_in_flight_on_a_killed_replica_is_made_by_another(two: Fakes) -> None:
    with ThreadPoolExecutor() as pool:
        index, future = in_flight(two, DECIDE, pool)
        two.end(index)
        until(lambda: two.front.servers()[1 - index].sessions == 1)
        go(two, 1 - index)
        reply = future.result()
    assert (reply.status_code, reply.headers["x-port"]) == (200, str(two.ports[1 - index]))


def test_text_in_flight_on_a_killed_replica_is_not_written_twice(two: Fakes) -> None:
    with ThreadPoolExecutor() as pool:
        index, future = in_flight(two, CHAT, pool)
        two.end(index)
        reply = future.result()
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
    assert reply.json()["error"]["code"] == "no_replica"
    assert len(reply.headers["x-request-id"]) == 36


def test_a_question_that_kills_goes_to_two_replicas_at_the_most(two: Fakes) -> None:
    with fakes(3) as three:
        reply = three.ask(state="die")
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
        until(lambda: sum(process.poll() is not None for process in three.processes.values()) == 2)
        assert three.ask().status_code == 200


def test_a_drained_replica_fails_nothing(two: Fakes) -> None:
    """Whoever drains it: SIGTERM from outside is told to nobody."""
    with ThreadPoolExecutor() as pool:
        index, future = in_flight(two, CHAT, pool)
        with load(two.url) as told:
            drained = two.processes[index]
            drained.send_signal(signal.SIGTERM)
            until(lambda: not two.serving()[index])
            go(two, index)
            assert future.result().status_code == 200
            assert drained.wait(PATIENCE_S) == 0
    assert (told.faults, set(told.statuses)) == ([], {200})


def test_the_front_takes_a_replica_out_of_rotation_and_back(two: Fakes) -> None:
    two.front.drain(0)
    assert {two.ask().headers["x-port"] for _ in range(6)} == {str(two.ports[1])}
    assert two.front.wait_idle(0, PATIENCE_S)
    two.front.admit(0)
    assert two.front.wait_serving(0, PATIENCE_S)
    assert str(two.ports[0]) in {two.ask().headers["x-port"] for _ in range(8)}


def test_a_replicas_own_bad_gateway_stays_one(two: Fakes) -> None:
    reply = two.ask(state="bad")
    assert (reply.status_code, reply.json()["error"]["code"]) == (502, "unusable")


def test_a_body_too_large_to_be_held_is_passed_on(two: Fakes) -> None:
    assert two.ask(state="long " * 60_000).status_code == 200


def test_a_request_that_does_not_come_is_let_go(two: Fakes) -> None:
    with socket.create_connection(("127.0.0.1", int(two.url.rpartition(":")[2]))) as stream:
        stream.settimeout(PATIENCE_S)
        stream.sendall(b"POST /v1/decide HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n{")
        reply = b"".join(iter(lambda: stream.recv(4096), b""))
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408")
    assert json.loads(body)["error"]["code"] == "body_timeout"


def test_one_ready_replica_is_ready_and_none_is_told_in_the_words_of_the_api(two: Fakes) -> None:
    document = httpx.get(f"{two.url}/ready").json()
    assert (document["phase"], document["replicas"]) == ("ready", {"ready": 2, "all": 2})
    two.end(0)
    until(lambda: httpx.get(f"{two.url}/ready").json()["replicas"]["ready"] == 1)
    assert httpx.get(f"{two.url}/ready").status_code == 200
    two.end(1)
    until(lambda: httpx.get(f"{two.url}/ready").status_code == 503)
    assert httpx.get(f"{two.url}/live").json() == {"live": True}
    shapes = {DECIDE: "error", "/v1/systemone": "detail", "/v1/messages": "type"}
    for path, key in shapes.items():
        reply = two.ask(path)
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
        assert reply.headers["content-type"] == "application/json"
        assert next(iter(reply.json())) == key


def test_each_replica_is_reached_by_its_number(two: Fakes) -> None:
    for index, port in enumerate(two.ports):
        for route in ("metrics", "v1/decide/info"):
            assert httpx.get(f"{two.url}/replicas/{index}/{route}").json()["port"] == port
    assert httpx.get(f"{two.url}/replicas/0/ready").json()["phase"] == "ready"
    assert httpx.get(f"{two.url}/metrics").status_code == 404
    assert "/replicas/0/metrics" in httpx.get(f"{two.url}/metrics").json()["error"]["message"]


def test_haproxy_counts_on_loopback(two: Fakes) -> None:
    text = httpx.get(f"{two.stats_url}/metrics").text
    assert 'haproxy_server_status{proxy="replicas",server="replica-1",state="UP"} 1' in text
    for name in ("haproxy_server_retry_warnings_total", "haproxy_server_redispatch_warnings_total"):
        assert f'{name}{{proxy="replicas",server="replica-1"}}' in text
    assert "replica-0" in httpx.get(two.stats_url).text


def test_a_client_that_leaves_ends_its_work(two: Fakes) -> None:
    body = json.dumps({**QUESTION, "state": "slow"}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", int(two.url.rpartition(":")[2]))) as stream:
        stream.sendall(head + body)
        until(lambda: sum(server.sessions for server in two.front.servers()) == 1)
    until(lambda: sum(server.sessions for server in two.front.servers()) == 0)
