"""One HTTP request on its way through the application, which can be cut off at any point."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

from decideploy.gateway import refusals
from decideploy.gateway.refusals import BODY_LATE, CLIENT_LEFT, TIMEOUT, TOO_LARGE, Headers, Refusal

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# A route that hears that its client has left stops in an orderly way; one that does not is cancelled.
_GRACE_S: Final = 1.0
_LINGER_S: Final = 2.0
_EVENT_STREAM: Final = b"text/event-stream"
_CLOSE: Final = (b"connection", b"close")


class Exchange:
    """The messages of one request. ``refusal`` says why it was cut off, None while it goes its way.

    ``headers`` are added to every answer, ``on_progress`` is called for each piece of an answer of 200.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        headers: Callable[[], Headers],
        max_body_bytes: int,
        body_timeout_s: float,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.scope = scope
        self.status: int | None = None
        self.refusal: Refusal | None = None
        self._receive, self._send = receive, send
        self._headers, self._on_progress = headers, on_progress
        self._left_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s
        self._body_timer: asyncio.TimerHandle | None = None
        self._body_read = False
        self._complete = False
        self._event_stream = False
        self._gone = asyncio.Event()
        self._limit: asyncio.Timeout | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def run(self, app: App, timeout_s: float) -> None:
        """Let ``app`` answer; what it has not done after ``timeout_s`` is stopped and answered 504.

        A body that has not arrived in time is answered 408, counted from when ``app`` first asks for it.
        """
        timer = asyncio.get_running_loop().call_later(timeout_s, self.cut, TIMEOUT)
        try:
            async with asyncio.timeout(None) as self._limit:
                # Routes write into the scope that they get; what is logged is the request's own.
                await app({**self.scope}, self.receive, self.send)
        except Exception:
            # Whatever a route makes of its client's leaving is no news.
            if self.refusal is None:
                raise
        finally:
            timer.cancel()
            if self._body_timer:
                self._body_timer.cancel()
            self._limit = None
            if self._watcher:
                self._watcher.cancel()
        if self.refusal:
            # What may still come of the body is no next request.
            await self.refuse(self.refusal, closing=not self._body_read)

    async def refuse(self, refusal: Refusal, *, closing: bool = False) -> None:
        """Answer ``refusal``, or end the answer that has begun so that its reader sees that it is cut.

        ``closing`` ends the connection with it.
        """
        self.refusal = refusal
        if refusal is CLIENT_LEFT:
            return
        content = refusals.body(refusal, self.scope["path"])
        if self.status is None:
            self.status = refusal.status
            start = self._start(refusals.headers(refusal, content), closing=closing)
            await self._send(start)
            await self._send({"type": "http.response.body", "body": content, "more_body": True})
            if _CLOSE in start["headers"]:
                await self._take_rest()
            await self._send({"type": "http.response.body", "body": b""})
        elif self._event_stream and not self._complete:
            await self._send({"type": "http.response.body", "body": b"data: " + content + b"\n\n"})

    async def _take_rest(self) -> None:
        """Read what comes of the body: closed before, the connection is reset and its answer lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while not self._body_read:
                    self._body_read = not (await self._receive()).get("more_body")

    def cut(self, refusal: Refusal) -> None:
        """Stop the application's work for the reason of ``refusal``; the first reason stands."""
        if self.refusal or self._complete:
            return
        self.refusal = refusal
        self._gone.set()
        asyncio.get_running_loop().call_later(_GRACE_S, self._cancel)

    def _cancel(self) -> None:
        if self._limit and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def receive(self) -> Message:
        """The next message for the application: once its body is read only that its client has left."""
        if self._body_read or self.refusal:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        if self._body_timer is None:
            loop = asyncio.get_running_loop()
            self._body_timer = loop.call_later(self._body_timeout_s, self.cut, BODY_LATE)
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.cut(CLIENT_LEFT)
            return message
        self._left_bytes -= len(message.get("body", b""))
        if self._left_bytes < 0:
            self.cut(TOO_LARGE)
            return {"type": "http.disconnect"}
        if not message.get("more_body"):
            self._body_read = True
            self._body_timer.cancel()
            self._watcher = asyncio.create_task(self._watch())
        return message

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.cut(CLIENT_LEFT)

    async def send(self, message: Message) -> None:
        """Pass the application's ``message`` on, unless the request was cut off."""
        if self.refusal:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            content_type = dict(message.get("headers", ())).get(b"content-type", b"")
            self._event_stream = content_type.startswith(_EVENT_STREAM)
            message = self._start(list(message.get("headers", ())))
        else:
            self._complete = not message.get("more_body")
            # Only content counts: a stream's status is sent before the engine has given anything.
            if message.get("body") and self.status == HTTPStatus.OK:
                self._on_progress()
        await self._send(message)

    def _start(self, headers: Headers, *, closing: bool = False) -> Message:
        found = [*headers, *self._headers()]
        if closing and _CLOSE not in found:
            found.append(_CLOSE)
        return {"type": "http.response.start", "status": self.status, "headers": found}


class Socket:
    """A websocket, which has no time limit but can be cut off."""

    def __init__(self) -> None:
        self.refusal: Refusal | None = None
        self._limit: asyncio.Timeout | None = None

    async def run(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        """Let ``app`` talk until it ends or is cut off."""
        try:
            async with asyncio.timeout(None) as self._limit:
                await app(scope, receive, send)
        except TimeoutError:
            if self.refusal is None:
                raise
        finally:
            self._limit = None

    def cut(self, refusal: Refusal) -> None:
        """Stop the application's work; the server closes the connection."""
        if self.refusal is None and self._limit:
            self.refusal = refusal
            self._limit.reschedule(asyncio.get_running_loop().time())
