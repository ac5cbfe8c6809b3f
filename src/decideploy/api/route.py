"""The route classes of our endpoints, and work that ends when its client leaves."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from decideploy.api.content import content_fault
from decideploy.api.errors import DECIDE, DECISIONS, SYSTEMONE, ClientLeftError, Dialect, Failure
from decideploy.api.faults import Fault, RequestFaults
from decideploy.api.json_body import StrictJsonRequest, check_content_type, media_type
from decideploy.api.multipart import MEDIA_TYPE, read_parts
from decideploy.decide import RequestError

Result = TypeVar("Result")


class DecideRoute(APIRoute):  # type: ignore[misc]
    """A route that answers each of its errors with the envelope of its dialect."""

    dialect: ClassVar[Dialect] = DECIDE

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As Starlette, but by the path alone: no later route answers to a method that this one lacks."""
        match, child_scope = super().matches(scope)
        return (Match.FULL if match is Match.PARTIAL else match), child_scope

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Starlette's entry to the route; a method that it does not have is an error of ours as well."""
        if scope["method"] in self.methods:
            await super().handle(scope, receive, send)
            return
        allowed = ", ".join(sorted(self.methods))
        fault = f"{scope['method']} is not served here; use {allowed}"
        response = self.dialect.answer(Failure(status=405, message=fault, code="method_not_allowed"))
        response.headers["Allow"] = allowed
        identify(Request(scope), response, self.dialect)
        await response(scope, receive, send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's extension point: the endpoint with the error answers around it."""
        endpoint = super().get_route_handler()

        async def answer(request: Request) -> Response:
            strict = StrictJsonRequest(request.scope, request.receive)
            try:
                if strict.method == "POST":
                    strict = await self.read(strict)
                response: Response = await endpoint(strict)
            except Exception as error:
                response = self.dialect.answer_error(error)
            identify(request, response, self.dialect)
            return response

        return answer

    async def read(self, request: StrictJsonRequest) -> StrictJsonRequest:
        """``request`` with its JSON parsed already: FastAPI would hide the error behind one of its own."""
        check_content_type(request)
        await request.json()
        return request


class DecisionsRoute(DecideRoute):
    """A route of the OpenAI dialect."""

    dialect: ClassVar[Dialect] = DECISIONS

    async def read(self, request: StrictJsonRequest) -> StrictJsonRequest:
        """As in the base; RequestFaults also when the JSON holds what no text can hold."""
        read = await super().read(request)
        if fault := content_fault(await read.json()):
            location, message = fault
            raise RequestFaults([Fault(location=("body", *location), message=message)])
        return read


class SystemOneRoute(DecisionsRoute):
    """A route of the TypeSafe dialect; a multipart body's files are in ``request.state.parts``."""

    dialect: ClassVar[Dialect] = SYSTEMONE

    async def read(self, request: StrictJsonRequest) -> StrictJsonRequest:
        """As in the base; RequestError(400) also for a malformed multipart body."""
        request.state.parts = {}
        if media_type(request) != MEDIA_TYPE:
            return await super().read(request)
        parts = read_parts(request.headers["content-type"], await request.body())
        if "request" not in parts:
            raise RequestError(
                'the part "request", the JSON document, is missing', code="invalid_multipart", status=400
            )
        document = parts.pop("request")
        request.state.parts = parts
        return await super().read(request.with_document(document))


class NothingHere:
    """What stands below a path of ours: nothing, told in the words of its dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        # vLLM prints the name of every endpoint as it starts.
        self.__name__ = "nothing_here"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 404 to every method."""
        failure = Failure(status=404, message=f"there is no {scope['path']}", code="not_found")
        response = self._dialect.answer(failure)
        identify(Request(scope), response, self._dialect)
        await response(scope, receive, send)


def identify(request: Request, response: Response, dialect: Dialect) -> None:
    """Put the request's id into the headers of ``response``, unless the gateway, which gave it, does so."""
    if getattr(request.state, "request_id", None):
        return
    response.headers["x-request-id"] = request_id(request)
    if dialect.request_id_header:
        response.headers[dialect.request_id_header] = request_id(request)


def request_id(request: Request) -> str:
    """The id that the gateway gave the request, or one of our own where none stands before the routes."""
    state = request.state
    if not hasattr(state, "own_request_id"):
        state.own_request_id = uuid.uuid4().hex
    return str(getattr(state, "request_id", None) or state.own_request_id)


async def unless_client_leaves(request: Request, work: Awaitable[Result]) -> Result:
    """The result of ``work``; when the client disconnects first, ``work`` is cancelled: the engine aborts.

    The request's body must have been read, because the next message is taken to be the disconnect.
    """
    answering = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
        raise ClientLeftError
    finally:
        answering.cancel()
        leaving.cancel()
        await asyncio.gather(answering, leaving, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
