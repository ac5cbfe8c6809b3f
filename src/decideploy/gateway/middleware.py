"""The ASGI middleware: what happens to a request, in order."""

from __future__ import annotations

import functools
import json
import secrets
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from decideploy.gateway import refusals, trace
from decideploy.gateway.access_log import AccessLog
from decideploy.gateway.admission import Admission
from decideploy.gateway.exchange import App, Exchange, Message, Receive, Scope, Send, Socket
from decideploy.gateway.keys import Caller, KeyFile
from decideploy.gateway.lifecycle import Lifecycle, Prove
from decideploy.gateway.metrics import TALLY, GatewayMetrics, Tally, shared_metrics
from decideploy.gateway.probes import LIVE_PATH, READY_PATH, Described, describe_gateway
from decideploy.gateway.readiness import Readiness, Rules
from decideploy.gateway.refusals import Headers, Refusal
from decideploy.gateway.settings import ServerSettings, read_settings
from decideploy.gateway.start import read_start

_METRICS_PATH: Final = "/metrics"
_READING_METHODS: Final = frozenset({"GET", "HEAD"})
# They only tell something, so they take no slot.
_CHEAP_METHODS: Final = _READING_METHODS | {"OPTIONS"}
# Where an answer of 200 shows that the engine works; others only count tokens or look something up.
_ENGINE_PATHS: Final = frozenset(
    {
        *("/v1/decide", "/v1/systemone", "/v1/decisions"),
        *("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"),
    }
)
_CLOSING_PHASES: Final = frozenset({"draining", "failed"})
# The self-test and the canary have limits of their own, which a small limit of clients must not undercut.
_INTERNAL_TIMEOUT_S: Final = 600.0
_WEBSOCKET_POLICY, _WEBSOCKET_TRY_AGAIN = 1008, 1013


class Gateway:
    """Wraps ``app``. The engine constructs it with ``app`` alone; tests give the rest.

    ``prove`` runs the self-test against a URL with a key. ConfigError when settings or keys cannot be used.
    """

    def __init__(
        self,
        app: App,
        *,
        settings: ServerSettings | None = None,
        environ: Mapping[str, str] | None = None,
        metrics: GatewayMetrics | None = None,
        access_log: AccessLog | None = None,
        prove: Prove | None = None,
    ) -> None:
        self._app = app
        self._settings = settings or read_settings(environ)
        token = secrets.token_urlsafe(32)
        self._keys = KeyFile(self._settings.api_key_file, token=token, environ=environ)
        self._metrics = metrics or shared_metrics()
        self._admission = Admission(self._settings.max_concurrency, self._settings.max_queue)
        self._in_flight: set[Exchange | Socket] = set()
        self.readiness = Readiness(_rules(self._settings))
        self.lifecycle = Lifecycle(
            self._settings,
            self.readiness,
            self._keys,
            self._metrics,
            self._in_flight,
            token=token,
            prove=prove,
        )
        self._log = access_log or AccessLog(self._settings.access_log)
        self._metrics.watch(
            inflight=lambda: self._admission.running,
            queue_depth=lambda: self._admission.queued,
            ready=lambda: self.readiness.is_ready,
        )
        self._metrics.start.source = lambda: read_start(self._settings.start_record)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await self._run_lifespan(scope, receive, send)
            return
        self.lifecycle.check_engine()
        if scope["type"] == "websocket":
            await self._open_websocket(scope, receive, send)
        elif probe := self._probe(scope):
            await _send_json(send, *probe)
        else:
            await self._answer(scope, receive, send)

    async def _run_lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def watched(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                app = scope.get("app")
                if isinstance(app, Described):
                    describe_gateway(app, closed=self._keys.keyring.closed)
                self.lifecycle.start(app)
            elif message["type"].startswith("lifespan.shutdown"):
                await self.lifecycle.stop()
                self._log.close()
            await send(message)

        await self._app(scope, receive, watched)

    def _probe(self, scope: Scope) -> tuple[int, dict[str, Any]] | None:
        """The answer of the two routes that need no key."""
        if scope["method"] not in _READING_METHODS:
            return None
        if _path(scope) == READY_PATH:
            return (200 if self.readiness.is_ready else 503), self.readiness.document()
        if _path(scope) == LIVE_PATH:
            live = self.lifecycle.live
            return (200 if live else 503), {"live": live}
        return None

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin = time.monotonic()
        headers = _headers(scope)
        caller = self._keys.keyring.caller(headers.get("authorization"))
        request_id = _identify(scope, headers)
        tally = Tally(internal=caller is not None and caller.internal)
        TALLY.set(tally)
        exchange = Exchange(
            scope,
            receive,
            send,
            headers=functools.partial(self._answer_headers, _path(scope), request_id),
            max_body_bytes=self._settings.max_body_bytes,
            body_timeout_s=self._settings.body_timeout_s,
            on_progress=self.readiness.progress if _asks_engine(scope) else lambda: None,
        )
        self._in_flight.add(exchange)
        try:
            await self._admit(exchange, caller, headers)
        except Exception as error:
            await _answer_fault(exchange, error)
            raise
        finally:
            self._in_flight.discard(exchange)
            self._account(exchange, caller, tally, time.monotonic() - begin)

    async def _admit(self, exchange: Exchange, caller: Caller | None, headers: Mapping[str, str]) -> None:
        scope = exchange.scope
        if refusal := self._refusal(scope, caller) or self._refusal_of_size(headers):
            await exchange.refuse(refusal)
            return
        internal = caller is not None and caller.internal
        free = internal or scope["method"] in _CHEAP_METHODS
        timeout_s = _INTERNAL_TIMEOUT_S if internal else self._settings.request_timeout_s
        await exchange.run(self._app if free else self._in_slot, timeout_s)

    async def _in_slot(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._admission.slot():
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, caller: Caller | None) -> Refusal | None:
        """Why this caller is not let through now."""
        if caller is None:
            return refusals.UNAUTHORIZED
        # The engine's route there answers to every method, and to every path that begins like it.
        if _path(scope).startswith(_METRICS_PATH) and scope.get("method") not in _READING_METHODS:
            return refusals.NOT_FOR_METRICS
        if _path(scope) == _METRICS_PATH:
            return None
        if closed := self._refusal_of_phase():
            testing = caller.internal and self.readiness.phase == "testing"
            return None if testing else closed
        cheap = scope.get("method") in _CHEAP_METHODS
        if self._admission.full and not cheap and not caller.internal:
            return refusals.QUEUE_FULL.after(self._admission.retry_after_s)
        return None

    def _refusal_of_phase(self) -> Refusal | None:
        if self.readiness.admits:
            return None
        if self.lifecycle.engine_is_dead:
            return refusals.ENGINE_DEAD
        return refusals.DRAINING if self.readiness.phase == "draining" else refusals.NOT_READY

    def _refusal_of_size(self, headers: Mapping[str, str]) -> Refusal | None:
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()):
            return refusals.BAD_LENGTH
        return refusals.TOO_LARGE if int(length) > self._settings.max_body_bytes else None

    def _answer_headers(self, path: str, request_id: str) -> Headers:
        found: Headers = [(b"x-request-id", request_id.encode())]
        if path == refusals.SYSTEMONE_PATH:
            found.append((b"x-typesafe-request-id", request_id.encode()))
        if self.readiness.phase in _CLOSING_PHASES:
            found.append((b"connection", b"close"))
        return found

    def _account(self, exchange: Exchange, caller: Caller | None, tally: Tally, seconds: float) -> None:
        """Count and log one request, and learn from it whether the engine works."""
        scope, outcome = exchange.scope, _outcome(exchange)
        dialect = refusals.dialect(_path(scope))
        if outcome == "server_error" and _asks_engine(scope) and not tally.internal:
            self.readiness.request_failed()
        if not tally.internal:
            self._metrics.answered(dialect=dialect, kinds=tally.kinds, outcome=outcome, seconds=seconds)
        elif outcome == "ok":
            return
        self._log.write(
            {
                **_named(scope, caller),
                "status": exchange.refusal.status if exchange.refusal else exchange.status,
                "outcome": outcome,
                "seconds": round(seconds, 6),
                "kinds": sorted(tally.kinds) or None,
            }
        )

    async def _open_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin = time.monotonic()
        headers = _headers(scope)
        caller = self._keys.keyring.caller(headers.get("authorization"))
        _identify(scope, headers)
        socket = Socket()
        if refusal := self._refusal(scope, caller):
            socket.refusal = refusal
            await _refuse_websocket(scope, receive, send, refusal)
        else:
            self._in_flight.add(socket)
            try:
                # Routes write into the scope that they get; what is logged is the request's own.
                await socket.run(self._in_slot, {**scope}, receive, send)
            finally:
                self._in_flight.discard(socket)
        outcome = socket.refusal.outcome if socket.refusal else "ok"
        seconds = time.monotonic() - begin
        self._metrics.answered(dialect="websocket", kinds=set(), outcome=outcome, seconds=seconds)
        self._log.write({**_named(scope, caller), "outcome": outcome, "seconds": round(seconds, 6)})


def _rules(settings: ServerSettings) -> Rules:
    return Rules(
        failures_in_a_row=settings.failures_in_a_row, stall_s=settings.stall_s, canary_s=settings.canary_s
    )


def _path(scope: Scope) -> str:
    """The path as routes see it, behind a proxy's prefix too."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"


def _headers(scope: Scope) -> dict[str, str]:
    """The headers by name; of one that is sent twice the last."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _identify(scope: Scope, headers: Mapping[str, str]) -> str:
    """Put the request's id and trace where routes find them; returns the id.

    The engine reads the id and the trace from the headers, so they get the id as well.
    """
    request_id = trace.request_id(headers)
    state = scope.setdefault("state", {})
    state["request_id"] = request_id
    state["trace_headers"] = trace.trace_headers(headers)
    trace.TRACE_HEADERS.set(state["trace_headers"] or None)
    others = [(name, value) for name, value in scope["headers"] if name != b"x-request-id"]
    scope["headers"] = [*others, (b"x-request-id", request_id.encode())]
    return request_id


def _asks_engine(scope: Scope) -> bool:
    return scope["method"] == "POST" and _path(scope) in _ENGINE_PATHS


def _outcome(exchange: Exchange) -> str:
    """How it ended, as metrics and logs name it."""
    if exchange.refusal:
        return exchange.refusal.outcome
    if exchange.status is None or exchange.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "server_error"
    return "client_error" if exchange.status >= HTTPStatus.BAD_REQUEST else "ok"


def _named(scope: Scope, caller: Caller | None) -> dict[str, Any]:
    """Who asked for what, without the query string, which is the client's text."""
    return {
        "request_id": scope["state"]["request_id"],
        "trace_id": trace.trace_id(scope["state"]["trace_headers"]),
        "client": (scope.get("client") or (None,))[0],
        "key": caller.fingerprint if caller else None,
        "internal": True if caller and caller.internal else None,
        "method": scope.get("method", "WEBSOCKET"),
        "route": _path(scope),
    }


async def _answer_fault(exchange: Exchange, error: Exception) -> None:
    """Answer what no route caught as the application would, so that this answer too has our headers."""
    respond = getattr(exchange.scope.get("app"), "exception_handlers", {}).get(Exception)
    if exchange.status is not None or respond is None:
        return
    from starlette.requests import Request  # noqa: PLC0415

    response = await respond(Request(exchange.scope), error)
    await response(exchange.scope, exchange.receive, exchange.send)


async def _refuse_websocket(scope: Scope, receive: Receive, send: Send, refusal: Refusal) -> None:
    await receive()
    if "websocket.http.response" in scope.get("extensions", {}):
        content = refusals.body(refusal, _path(scope))
        start = {"type": "websocket.http.response.start", "status": refusal.status}
        await send({**start, "headers": refusals.headers(refusal, content)})
        await send({"type": "websocket.http.response.body", "body": content})
        return
    policy = refusal.status == HTTPStatus.UNAUTHORIZED
    code = _WEBSOCKET_POLICY if policy else _WEBSOCKET_TRY_AGAIN
    await send({"type": "websocket.close", "code": code, "reason": refusal.code})


async def _send_json(send: Send, status: int, document: Mapping[str, Any]) -> None:
    content = json.dumps(document).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
