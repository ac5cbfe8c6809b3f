"""A tiny application behind the gateway, and a client that speaks ASGI to it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from waiting import turns_true

from decideploy.gateway import Gateway, GatewayMetrics, ServerSettings
from decideploy.gateway.access_log import AccessLog
from decideploy.gateway.trace import TRACE_HEADERS

KEY = "a-key-of-sixteen-characters"
OTHER_KEY = "another-key-of-the-server"


@dataclass(frozen=True)
class Check:
    name: str = "adapter-moves"
    detail: str = "0.000 nats"
    meaning: str = "the adapter has no effect"
    remedy: str = "check the patches"


@dataclass(frozen=True)
class Proof:
    failures: tuple[Check, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"passed": not self.failures}


class Engine:
    """What the gateway sees of vLLM's client."""

    errored = False


@dataclass
class App:
    """Routes that answer, wait, stream or fail, as their path says; ``stopped`` counts cancelled work."""

    engine: Engine = field(default_factory=Engine)
    status: int = 200
    probabilities: tuple[float, ...] = (0.25, 0.75)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: int = 0
    seen: list[dict[str, Any]] = field(default_factory=list)
    traces: list[Any] = field(default_factory=list)
    exception_handlers: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        server = SimpleNamespace(started=True, should_exit=False, config=SimpleNamespace())
        args = SimpleNamespace(host="0.0.0.0", port=8000)
        self.state = SimpleNamespace(engine_client=self.engine, server=server, args=args)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.live(receive, send)
        elif scope["type"] == "websocket":
            await self.talk(receive, send)
        else:
            self.seen.append(scope)
            self.traces.append(TRACE_HEADERS.get())
            try:
                await self.answer(scope, receive, send)
            except asyncio.CancelledError:
                self.stopped += 1
                raise

    async def live(self, receive: Any, send: Any) -> None:
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})

    async def talk(self, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await self.release.wait()
        await send({"type": "websocket.close", "code": 1000})

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        if path == "/v1/stream":
            await self.stream(receive, send)
            return
        if path == "/v1/raise":
            raise KeyError("a fault that no route caught")
        if scope["method"] == "POST":
            await read_body(receive)
        if path == "/v1/wait":
            await self.release.wait()
        if path == "/v1/listen" and (await receive())["type"] == "http.disconnect":
            self.stopped += 1
            raise RuntimeError("nobody listens")
        content = json.dumps({"probabilities": self.probabilities}).encode()
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": content})

    async def stream(self, receive: Any, send: Any) -> None:
        await read_body(receive)
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: one\n\n", "more_body": True})
        await self.release.wait()
        await send({"type": "http.response.body", "body": b"data: two\n\n"})


async def read_body(receive: Any) -> bytes:
    content = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RuntimeError("the client left")
        content += message.get("body", b"")
        if not message.get("more_body"):
            return content


class Reply:
    """The messages of one answer."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages
        self.status = messages[0]["status"] if messages else None
        found = messages[0]["headers"] if messages else []
        self.headers = {name.decode(): value.decode() for name, value in found}
        self.body = b"".join(message.get("body", b"") for message in messages[1:])
        self.ended = bool(messages) and not messages[-1].get("more_body", False)

    def json(self) -> Any:
        return json.loads(self.body)


class Call:
    """One request in flight; ``leave`` closes its connection."""

    def __init__(
        self, gateway: Gateway, app: App, scope: dict[str, Any], chunks: list[bytes], *, whole: bool = True
    ) -> None:
        self._chunks, self._whole, self._left = chunks, whole, asyncio.Event()
        self.messages: list[dict[str, Any]] = []
        self.task = asyncio.ensure_future(gateway({**scope, "app": app}, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._chunks:
            body = self._chunks.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(self._chunks) or not self._whole}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.messages.append(message)

    def leave(self) -> None:
        self._left.set()

    async def reply(self) -> Reply:
        await self.task
        return Reply(self.messages)


@dataclass
class Served:
    """A gateway whose application is up, its log and its metrics."""

    gateway: Gateway
    app: App
    registry: CollectorRegistry
    stream: io.StringIO
    log: AccessLog

    def call(
        self,
        path: str,
        *,
        method: str = "POST",
        headers: dict[str, str] | None = None,
        body: list[bytes] | None = None,
        key: str | None = None,
        whole: bool = True,
    ) -> Call:
        """``whole`` is False for a body that never ends."""
        sent = {**(headers or {}), **({"Authorization": f"Bearer {key}"} if key else {})}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"secret=words",
            "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
            "client": ("10.0.0.7", 1234),
        }
        return Call(self.gateway, self.app, scope, body if body is not None else [b"{}"], whole=whole)

    async def ask(self, path: str, **options: Any) -> Reply:
        return await self.call(path, **options).reply()

    async def ready(self) -> dict[str, Any]:
        return (await self.ask("/ready", method="GET")).json()

    def metrics(self) -> str:
        return generate_latest(self.registry).decode()

    def lines(self) -> list[dict[str, Any]]:
        self.log._listener.stop()
        self.log._listener.start()
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@asynccontextmanager
async def served(
    app: App | None = None,
    *,
    proof: Callable[[str, str], Any] | None = None,
    keys: str = "",
    wait: bool = True,
    **settings: Any,
) -> AsyncIterator[Served]:
    """A gateway after its start-up; with ``wait`` also after its self-test."""
    app, stream, registry = app or App(), io.StringIO(), CollectorRegistry()
    log = AccessLog(stream)
    gateway = Gateway(
        app,
        settings=ServerSettings(**settings),
        environ={"DECIDEPLOY_API_KEYS": keys},
        metrics=GatewayMetrics(registry),
        access_log=log,
        prove=proof or (lambda _url, _token: Proof()),
    )
    inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    life = asyncio.ensure_future(gateway({"type": "lifespan", "app": app}, inbox.get, outbox.put))
    inbox.put_nowait({"type": "lifespan.startup"})
    assert (await outbox.get())["type"] == "lifespan.startup.complete"
    if wait:
        await turns_true(lambda: gateway.readiness.phase not in ("starting", "testing"))
    try:
        yield Served(gateway, app, registry, stream, log)
    finally:
        app.release.set()
        inbox.put_nowait({"type": "lifespan.shutdown"})
        await life
