"""The route class of our endpoints, and work that ends when its client leaves."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from decideploy.api.errors import ClientLeftError, envelope, error_response
from decideploy.api.json_body import StrictJsonRequest, check_content_type

Result = TypeVar("Result")


class DecideRoute(APIRoute):  # type: ignore[misc]
    """A route that answers each of its errors with the envelope."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Starlette's entry to the route; a method that it does not have is an error of ours as well."""
        if scope["method"] in self.methods:
            await super().handle(scope, receive, send)
            return
        allowed = ", ".join(sorted(self.methods))
        fault = f"{scope['method']} is not served here; use {allowed}"
        response = envelope(405, fault, "invalid_request_error", None, "method_not_allowed")
        response.headers["Allow"] = allowed
        await response(scope, receive, send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's extension point: the endpoint with the error answers around it."""
        endpoint = super().get_route_handler()

        async def answer(request: Request) -> Response:
            strict = StrictJsonRequest(request.scope, request.receive)
            try:
                if strict.method == "POST":
                    check_content_type(strict)
                    # Parsed here already: FastAPI would hide the error behind one of its own.
                    await strict.json()
                response: Response = await endpoint(strict)
            except Exception as error:
                return error_response(error)
            return response

        return answer


def request_id(request: Request) -> str:
    """The id that the gateway gave the request, or a new one where none stands before the routes."""
    return str(getattr(request.state, "request_id", None) or uuid.uuid4().hex)


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
