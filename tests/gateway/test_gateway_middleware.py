import asyncio
import json
import re
from typing import Any

import pytest
from gateway_harness import KEY, OTHER_KEY, App, Call, Check, Proof, Served, served
from waiting import PATIENCE_S, turns_true

from decideploy.gateway import exchange as exchange_module
from decideploy.gateway import lifecycle

ROUTES = (
    "/v1/decide",
    "/v1/completions",
    "/metrics",
    "/docs",
    "/health",
    "/pause",
    "/invocations",
    "/ready/",
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "_TICK_S", 0.01)
    monkeypatch.setattr(exchange_module, "_GRACE_S", 0.05)


def test_a_key_is_needed_on_every_route_but_the_probes() -> None:
    async def story() -> None:
        async with served(keys=f"{KEY}, {OTHER_KEY}") as server:
            for path in ROUTES:
                for method in ("GET", "POST", "OPTIONS", "DELETE"):
                    assert (await server.ask(path, method=method)).status == 401, path
                    assert (await server.ask(path, method=method, key="wrong-key-of-somebody")).status == 401
                    only_read = path == "/metrics" and method != "GET"
                    for key in (KEY, OTHER_KEY):
                        status = (await server.ask(path, method=method, key=key)).status
                        assert status == (405 if only_read else 200), path
            assert (await server.ask("/live", method="GET")).status == 200
            assert (await server.ask("/ready", method="GET")).status == 200
            assert (await server.ask("/ready", method="POST")).status == 401
            basic = await server.ask("/v1/decide", headers={"Authorization": f"Basic {KEY}"})
            assert (basic.status, basic.headers["www-authenticate"]) == (401, "Bearer")
            log = server.stream.getvalue() + server.metrics()
            assert KEY not in log
            assert OTHER_KEY not in log
            assert "wrong-key" not in log

    asyncio.run(story())


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/decide", {"error": {"message", "type", "param", "code"}}),
        ("/v1/decisions", {"error": {"message", "type", "param", "code"}}),
        ("/v1/chat/completions", {"error": {"message", "type", "param", "code"}}),
        ("/v1/systemone", {"detail": [{"loc", "msg", "type"}]}),
        ("/v1/messages", {"error": {"message", "type"}}),
    ],
)
def test_errors_are_in_the_words_of_the_api(path: str, shape: Any) -> None:
    async def story() -> Any:
        async with served(keys=KEY) as server:
            return (await server.ask(path)).json()

    told = asyncio.run(story())
    if "detail" in shape:
        assert set(told["detail"][0]) == shape["detail"][0]
    else:
        assert set(told["error"]) == shape["error"]


def test_ids_and_traces() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async def story() -> None:
        async with served() as server:
            given = {"X-Request-Id": "client-7", "traceparent": trace, "tracestate": "a=b"}
            reply = await server.ask("/v1/systemone", headers=given)
            assert reply.headers["x-request-id"] == reply.headers["x-typesafe-request-id"] == "client-7"
            state = server.app.seen[-1]["state"]
            assert state["request_id"] == "client-7"
            assert state["trace_headers"] == {"traceparent": trace, "tracestate": "a=b"}
            assert server.app.traces[-1] == state["trace_headers"]
            assert (b"traceparent", trace.encode()) in server.app.seen[-1]["headers"]
            mad = {"X-Request-Id": 'x" \n\x1b[31m', "traceparent": "00-zz"}
            reply = await server.ask("/v1/decide", headers=mad)
            assert re.fullmatch("[0-9a-f]{32}", reply.headers["x-request-id"])
            assert server.app.seen[-1]["state"]["trace_headers"] == {}
            sent = dict(server.app.seen[-1]["headers"])
            assert sent[b"x-request-id"].decode() == reply.headers["x-request-id"]

    asyncio.run(story())


def test_a_full_queue_is_429_and_cheap_requests_pass() -> None:
    async def story() -> None:
        async with served(max_concurrency=1, max_queue=1) as server:
            held = [server.call("/v1/wait") for _ in range(2)]
            await turns_true(lambda: "decideploy_queue_depth 1.0" in server.metrics())
            assert "decideploy_inflight 1.0" in server.metrics()
            refused = await server.ask("/v1/decide")
            assert refused.status == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert (await server.ask("/v1/models", method="GET")).status == 200
            server.app.release.set()
            assert [(await call.reply()).status for call in held] == [200, 200]
            assert (await server.ask("/v1/decide")).status == 200
            assert "decideploy_inflight 0.0" in server.metrics()

    asyncio.run(story())


def test_one_that_leaves_the_queue_leaves_its_place() -> None:
    async def story() -> None:
        async with served(max_concurrency=1, max_queue=1, request_timeout_s=0.1) as server:
            replies = await asyncio.gather(*(server.ask("/v1/wait") for _ in range(2)))
            assert [reply.status for reply in replies] == [504, 504]
            server.app.release.set()
            # Never 429: how fast it answers then is another matter.
            assert (await server.ask("/v1/wait")).status in (200, 504)

    asyncio.run(story())


@pytest.mark.parametrize("path", ["/v1/wait", "/v1/listen"])
def test_what_takes_too_long_is_stopped_and_504(path: str) -> None:
    async def story() -> None:
        async with served(request_timeout_s=0.05) as server:
            reply = await server.ask(path)
            assert reply.status == 504
            assert reply.json()["error"]["code"] == "timeout"
            assert server.app.stopped == 1
            assert [line["outcome"] for line in server.lines()] == ["timeout"]

    asyncio.run(story())


def test_a_body_that_does_not_arrive_is_408_and_gives_its_slot_back() -> None:
    async def story() -> None:
        async with served(max_concurrency=1, body_timeout_s=0.05) as server:
            held = server.call("/v1/decide", whole=False)
            await turns_true(lambda: "decideploy_inflight 1.0" in server.metrics())
            waiting = server.call("/v1/decide")
            reply = await held.reply()
            assert (reply.status, reply.headers["connection"]) == (408, "close")
            assert reply.json()["error"]["code"] == "body_timeout"
            # It waited in the queue, and its own time began after that.
            assert (await waiting.reply()).status == 200
            assert "decideploy_inflight 0.0" in server.metrics()
            assert sorted(line["outcome"] for line in server.lines()) == ["body_late", "ok"]

    asyncio.run(story())


def test_a_refusal_that_closes_the_connection_takes_the_body_first() -> None:
    async def story() -> None:
        async with served() as server:
            server.gateway.readiness.drain()
            call = server.call("/v1/decide", body=[b"{", b'"a": 1', b"}"])
            reply = await call.reply()
            assert (reply.status, reply.headers["connection"]) == (503, "close")
            assert reply.json()["error"]["code"] == "draining"
            # What is left unread when a connection is closed resets it, and the client loses the answer.
            assert not call._chunks
            assert reply.ended

    asyncio.run(story())


def test_work_goes_on_after_the_time_of_the_body() -> None:
    async def story() -> None:
        async with served(body_timeout_s=0.05) as server:
            call = server.call("/v1/wait")
            await asyncio.sleep(0.2)
            server.app.release.set()
            reply = await call.reply()
            assert (reply.status, "connection" in reply.headers) == (200, False)

    asyncio.run(story())


@pytest.mark.parametrize(("whole", "connection"), [(True, None), (False, "close")])
def test_an_answer_before_the_end_of_the_body_ends_the_connection(
    whole: bool, connection: str | None
) -> None:
    async def story() -> None:
        async with served(request_timeout_s=0.05) as server:
            reply = await server.ask("/v1/wait", whole=whole)
            assert (reply.status, reply.headers.get("connection")) == (504, connection)

    asyncio.run(story())


def test_a_stream_that_takes_too_long_ends_with_an_error_event() -> None:
    async def story() -> None:
        async with served(request_timeout_s=0.05) as server:
            reply = await server.ask("/v1/stream")
            first, last = reply.body.decode().strip().split("\n\n")
            assert first == "data: one"
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
            assert reply.ended
            assert server.app.stopped == 1

    asyncio.run(story())


@pytest.mark.parametrize("path", ["/v1/wait", "/v1/listen", "/v1/stream"])
def test_work_of_a_client_that_left_is_stopped(path: str) -> None:
    async def story() -> None:
        async with served() as server:
            call = server.call(path)
            await turns_true(lambda: len(server.app.seen) == 1)
            call.leave()
            await call.task
            assert server.app.stopped == 1
            assert server.lines()[-1]["outcome"] == "client_left"

    asyncio.run(story())


@pytest.mark.parametrize(
    ("headers", "body"),
    [({"Content-Length": "11"}, [b"x" * 11]), ({}, [b"x" * 6, b"x" * 5])],
    ids=["declared", "streamed"],
)
def test_large_bodies_are_refused_on_every_route(headers: dict[str, str], body: list[bytes]) -> None:
    async def story() -> None:
        async with served(max_body_bytes=10) as server:
            assert (await server.ask("/tokenize", headers=headers, body=body)).status == 413
            assert (await server.ask("/tokenize", body=[b"x" * 6, b"x" * 4])).status == 200
            assert (await server.ask("/tokenize", headers={"Content-Length": "-1"})).status == 400

    asyncio.run(story())


def test_nothing_passes_before_the_self_test_but_its_own_requests() -> None:
    async def story() -> None:
        seen: dict[str, str] = {}
        proven = asyncio.Event()
        loop = asyncio.get_running_loop()

        def prove(url: str, token: str) -> Proof:
            seen.update(url=url, token=token)
            asyncio.run_coroutine_threadsafe(proven.wait(), loop).result()
            return Proof()

        async with served(proof=prove, keys=KEY, wait=False) as server:
            await turns_true(lambda: "token" in seen)
            assert seen["url"] == "http://127.0.0.1:8000"
            assert (await server.ready())["phase"] == "testing"
            refused = await server.ask("/v1/decide", key=KEY)
            assert (refused.status, refused.json()["error"]["code"]) == (503, "not_ready")
            assert "retry-after" in refused.headers
            assert (await server.ask("/v1/completions", key=seen["token"])).status == 200
            assert (await server.ask("/metrics", method="GET", key=KEY)).status == 200
            assert (await server.ask("/live", method="GET")).status == 200
            assert "decideploy_ready 0.0" in server.metrics()
            proven.set()
            await turns_true(lambda: server.gateway.readiness.is_ready)
            assert (await server.ask("/v1/decide", key=KEY)).status == 200
            assert "decideploy_ready 1.0" in server.metrics()
            assert 'outcome="not_ready"' in server.metrics()

    asyncio.run(story())


def test_the_limit_of_clients_is_not_the_self_tests() -> None:
    async def story() -> None:
        tokens: list[str] = []

        def prove(_url: str, token: str) -> Proof:
            tokens.append(token)
            return Proof()

        async with served(proof=prove, request_timeout_s=0.01) as server:
            own = server.call("/v1/wait", key=tokens[0])
            assert (await server.ask("/v1/wait")).status == 504
            assert not own.task.done()
            server.app.release.set()
            assert (await own.reply()).status == 200

    asyncio.run(story())


def test_a_failed_self_test_is_told_and_nothing_passes() -> None:
    async def story() -> None:
        async with served(proof=lambda _url, _token: Proof(failures=(Check(),))) as server:
            document = await server.ready()
            assert (document["ready"], document["phase"]) == (False, "failed")
            assert document["failures"][0] == {
                "name": "adapter-moves",
                "detail": "0.000 nats",
                "meaning": "the adapter has no effect",
                "remedy": "check the patches",
            }
            assert (await server.ask("/v1/decide")).status == 503

    asyncio.run(story())


def test_a_self_test_that_cannot_run_is_no_pass() -> None:
    def prove(_url: str, _token: str) -> Proof:
        raise OSError("no route")

    async def story() -> None:
        async with served(proof=prove) as server:
            document = await server.ready()
            assert document["phase"] == "failed"
            assert "no route" in document["reasons"][0]

    asyncio.run(story())


def test_a_dead_engine_fails_everything_at_once() -> None:
    async def story() -> None:
        async with served(dead_linger_s=0.1) as server:
            held = [server.call("/v1/wait"), server.call("/v1/stream")]
            await turns_true(lambda: len(server.app.seen) == 2)
            server.app.engine.errored = True
            assert (await server.ready())["phase"] == "failed"
            replies = [await call.reply() for call in held]
            assert replies[0].status == 503
            assert b"engine_dead" in replies[1].body
            assert (await server.ask("/v1/decide")).json()["error"]["code"] == "engine_dead"
            await turns_true(lambda: server.app.state.server.should_exit)

    asyncio.run(story())


def test_draining_finishes_what_is_in_flight() -> None:
    async def story() -> None:
        async with served() as server:
            held = [server.call("/v1/wait"), server.call("/v1/stream")]
            await turns_true(lambda: len(server.app.seen) == 2)
            server.gateway.lifecycle.drain()
            assert (await server.ready())["phase"] == "draining"
            refused = await server.ask("/v1/decide")
            assert (refused.status, refused.headers["connection"]) == (503, "close")
            assert "retry-after" in refused.headers
            await asyncio.sleep(0.1)
            assert not server.app.state.server.should_exit
            server.app.release.set()
            replies = [await call.reply() for call in held]
            assert [reply.status for reply in replies] == [200, 200]
            assert replies[1].body.endswith(b"data: two\n\n")
            await turns_true(lambda: server.app.state.server.should_exit)

    asyncio.run(story())


@pytest.mark.parametrize("twice", [False, True])
def test_draining_ends_in_time_or_when_asked_again(twice: bool) -> None:
    async def story() -> None:
        async with served(drain_timeout_s=2 * PATIENCE_S if twice else 0.1) as server:
            held = server.call("/v1/wait")
            await turns_true(lambda: len(server.app.seen) == 1)
            server.gateway.lifecycle.drain()
            if twice:
                server.gateway.lifecycle.drain()
            reply = await held.reply()
            assert (reply.status, reply.json()["error"]["code"]) == (503, "draining")
            await turns_true(lambda: server.app.state.server.should_exit)

    asyncio.run(story())


def test_an_idle_server_drains_at_once() -> None:
    async def story() -> None:
        async with served(drain_timeout_s=2 * PATIENCE_S) as server:
            server.gateway.lifecycle.drain()
            await turns_true(lambda: server.app.state.server.should_exit)

    asyncio.run(story())


def test_failures_call_a_canary_which_decides() -> None:
    async def story() -> None:
        async with served(failures_in_a_row=2, canary_s=60.0) as server:
            server.app.status = 500
            assert (await server.ask("/v1/decide")).status == 500
            assert (await server.ready())["phase"] == "ready"
            server.gateway.readiness._canary_at -= 10
            await turns_true(lambda: server.gateway.readiness.phase == "failing")
            assert (await server.ask("/v1/completions")).status == 500
            server.app.status = 200
            assert (await server.ask("/v1/completions")).status == 200
            assert (await server.ready())["phase"] == "ready"
            assert 'decideploy_canaries_total{outcome="failed"}' in server.metrics()

    asyncio.run(story())


def test_a_canary_whose_answer_moves_is_a_failure() -> None:
    async def story() -> None:
        async with served(failures_in_a_row=1, canary_s=0.02) as server:
            await turns_true(lambda: 'canaries_total{outcome="ok"}' in server.metrics())
            server.app.probabilities = (0.75, 0.25)
            await turns_true(lambda: 'canaries_total{outcome="failed"}' in server.metrics())
            assert (await server.ready())["phase"] == "failing"

    asyncio.run(story())


def test_the_status_of_a_stream_is_no_sign_of_life() -> None:
    async def story() -> list[int]:
        seen: list[int] = []
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def app(_scope: Any, _receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"", "more_body": True})
            seen.append(len(sent))
            await send({"type": "http.response.body", "body": b"data: a token", "more_body": False})

        exchange = exchange_module.Exchange(
            {"path": "/"},
            send,
            send,
            headers=list,
            max_body_bytes=1,
            body_timeout_s=5.0,
            on_progress=lambda: seen.append(len(sent)),
        )
        await exchange.run(app, 5.0)
        return seen

    assert asyncio.run(story()) == [2, 2]


def test_only_answers_of_the_engine_are_signs_of_life() -> None:
    async def story() -> None:
        async with served() as server:
            readiness = server.gateway.readiness
            readiness._good_at = 0.0
            server.app.status = 500
            await server.ask("/v1/decide")
            server.app.status = 200
            await server.ask("/tokenize")
            await server.ask("/v1/decide", method="GET")
            assert readiness._good_at == 0.0
            await server.ask("/v1/decide")
            assert readiness._good_at > 0.0

    asyncio.run(story())


def test_an_engine_that_fails_for_long_counts_as_dead() -> None:
    async def story() -> None:
        async with served(failures_in_a_row=1, canary_s=0.02, give_up_s=3600.0, dead_linger_s=0.0) as server:
            server.app.status = 503
            lifecycle = server.gateway.lifecycle
            await turns_true(lambda: lifecycle._failing_at is not None)
            assert (await server.ready())["phase"] == "failing"
            assert not server.app.state.server.should_exit
            lifecycle._failing_at -= 3601
            await turns_true(lambda: server.app.state.server.should_exit)
            assert "failed for 3600 s" in (await server.ready())["reasons"][0]

    asyncio.run(story())


def test_each_request_is_one_line_and_one_count() -> None:
    async def story() -> None:
        async with served(keys=KEY) as server:
            await server.ask("/v1/decide", key=KEY, body=[b'{"state": "private words"}'])
            await server.ask("/v1/systemone")
            first, second = server.lines()
            assert first["request_id"]
            assert (first["route"], first["status"], first["outcome"]) == ("/v1/decide", 200, "ok")
            assert re.fullmatch("[0-9a-f]{8}", first["key"])
            assert first["seconds"] >= 0
            assert (second["status"], second["outcome"], "key" in second) == (401, "unauthorized", False)
            text = server.stream.getvalue()
            assert "private" not in text
            assert "secret=words" not in text
            for dialect, outcome in (("decide", "ok"), ("systemone", "unauthorized")):
                labels = f'{{dialect="{dialect}",kind="none",outcome="{outcome}"}}'
                assert f"decideploy_requests_total{labels} 1.0" in server.metrics()

    asyncio.run(story())


@pytest.mark.parametrize("path", ["/metrics", "/metrics/", "/metrics/x"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "TRACE", "OPTIONS"])
def test_metrics_are_only_read(path: str, method: str) -> None:
    async def story() -> None:
        async with served() as server:
            for reading in ("GET", "HEAD"):
                assert (await server.ask(path, method=reading)).status == 200
            seen = len(server.app.seen)
            reply = await server.ask(path, method=method)
            assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
            assert reply.json()["error"]["code"] == "method_not_allowed"
            assert len(server.app.seen) == seen
            assert {line["route"] for line in server.lines()} == {path}

    asyncio.run(story())


class Mounting(App):
    """It writes into the scope which part of the path is its own, as a mounted application does."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            scope["root_path"] = scope["path"][:-1]
        await super().__call__(scope, receive, send)


def test_the_route_in_the_log_is_the_path_whatever_a_mount_makes_of_it() -> None:
    async def story() -> None:
        async with served(Mounting()) as server:
            await server.ask("/metrics", method="GET")
            await server.ask("/v1/decide")
            held = websocket(server, [], {})
            await turns_true(lambda: bool(held.messages))
            server.app.release.set()
            await held.task
            assert [line["route"] for line in server.lines()] == ["/metrics", "/v1/decide", "/v1/realtime"]
            assert 'dialect="decide"' in server.metrics()

    asyncio.run(story())


def test_a_fault_that_no_route_caught_has_our_headers() -> None:
    async def respond(_request: Any, _error: Exception) -> Any:
        async def response(_scope: Any, _receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 500, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})

        return response

    async def story() -> None:
        app = App(exception_handlers={Exception: respond})
        async with served(app) as server:
            call = server.call("/v1/raise", headers={"X-Request-Id": "seven"})
            with pytest.raises(KeyError):
                await call.task
            assert call.messages[0]["status"] == 500
            assert (b"x-request-id", b"seven") in call.messages[0]["headers"]
            assert server.lines()[-1]["status"] == 500

    asyncio.run(story())


def websocket(server: Served, headers: list[tuple[bytes, bytes]], extensions: dict[str, Any]) -> Call:
    scope = {"type": "websocket", "path": "/v1/realtime", "headers": headers, "extensions": extensions}
    return Call(server.gateway, server.app, scope, [b""])


def test_websockets_need_a_key_too_and_are_drained() -> None:
    async def story() -> None:
        async with served(keys=KEY, drain_timeout_s=0.05) as server:
            plain = websocket(server, [], {})
            await plain.task
            assert plain.messages == [{"type": "websocket.close", "code": 1008, "reason": "invalid_api_key"}]
            told = websocket(server, [], {"websocket.http.response": {}})
            await told.task
            assert told.messages[0]["status"] == 401
            held = websocket(server, [(b"authorization", f"Bearer {KEY}".encode())], {})
            await turns_true(lambda: bool(held.messages))
            assert held.messages[0]["type"] == "websocket.accept"
            server.gateway.lifecycle.drain()
            await held.task
            await turns_true(lambda: server.app.state.server.should_exit)

    asyncio.run(story())
