"""FastAPI routes: ``POST /v1/decide`` and ``GET /v1/decide/info``.

Errors leave as the envelope of :mod:`decideploy.decide.schema`. They are answered inside the route, because
the application around it belongs to the engine, whose own exception answers would otherwise apply.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from email.message import Message
from typing import Any, Final, NoReturn, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from decideploy.decide.calibration import Calibration
from decideploy.decide.core import ADAPTER_NAME, Engine, decide
from decideploy.decide.encoder import PromptEncoder
from decideploy.decide.head import DecisionHead
from decideploy.decide.schema import (
    MAX_OPTIONS,
    BuildInfo,
    DecideRequest,
    DecideResponse,
    Defaults,
    ErrorBody,
    ErrorEnvelope,
    InfoResponse,
    RequestError,
    request_error,
)
from decideploy.decide.slots import KINDS
from decideploy.errors import EngineError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# nginx's status for a client that left; nobody reads it but the access log.
CLIENT_CLOSED_REQUEST: Final = 499
# 32 bytes for each of 262,144 tokens, the longest context there is; a body is held and parsed as a whole.
MAX_BODY_BYTES: Final = 8 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class DecideService:
    """What the routes need; the plugin puts one into ``app.state.decideploy``."""

    engine: Engine
    encoder: PromptEncoder
    head: DecisionHead
    calibration: Calibration
    max_model_len: int
    model: str
    build: BuildInfo

    async def decide(self, request: DecideRequest) -> DecideResponse:
        """Answer ``request``; errors as in :func:`decideploy.decide.decide`."""
        return await decide(
            request,
            engine=self.engine,
            encoder=self.encoder,
            head=self.head,
            calibration=self.calibration,
            max_model_len=self.max_model_len,
        )

    def info(self) -> InfoResponse:
        """What this server serves."""
        return InfoResponse(
            model=self.model,
            adapter=ADAPTER_NAME,
            kinds=KINDS,
            max_options=MAX_OPTIONS,
            max_model_len=self.max_model_len,
            template_version=self.head.slots.template_version,
            defaults=Defaults(),
            temperatures={kind: self.calibration.temperature(kind) for kind in KINDS},
            calibration_sha256=self.calibration.sha256,
            build=self.build,
        )


class ClientLeftError(Exception):
    """The client closed the connection before its answer was there."""


class StrictJsonRequest(Request):  # type: ignore[misc]
    """A request whose body is JSON as RFC 8259 has it: no NaN, no Infinity, no key twice; 8 MiB at most."""

    async def body(self) -> bytes:
        """The body, read once; RequestError(413) as soon as it is known to be too large."""
        if not hasattr(self, "_body"):
            declared = self.headers.get("content-length", "")
            check_body_size(int(declared) if declared.isdecimal() else 0)
            content = bytearray()
            async for chunk in self.stream():
                content += chunk
                check_body_size(len(content))
            self._body = bytes(content)
        return self._body

    async def json(self) -> Any:
        """The body, parsed once; RequestError(400) when it is not JSON."""
        if not hasattr(self, "_json"):
            self._json = parse_json(await self.body())
        return self._json


class DecideRoute(APIRoute):  # type: ignore[misc]
    """A route that answers each of its errors with the envelope."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Starlette's entry to the route; a method that it does not have is an error of ours as well."""
        if scope["method"] in self.methods:
            await super().handle(scope, receive, send)
            return
        allowed = ", ".join(sorted(self.methods))
        fault = f"{scope['method']} is not served here; use {allowed}"
        response = _envelope(405, fault, "invalid_request_error", None, "method_not_allowed")
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


def check_content_type(request: Request) -> None:
    """Raise RequestError(415) when a body does not say that it is JSON."""
    header = Message()
    header["content-type"] = request.headers.get("content-type", "")
    subtype = header.get_content_subtype()
    if header.get_content_maintype() != "application" or not (subtype == "json" or subtype.endswith("+json")):
        raise RequestError(
            "the body must be JSON: send the header Content-Type: application/json",
            code="unsupported_media_type",
            status=415,
        )


def check_body_size(size_bytes: int) -> None:
    """Raise RequestError(413) when a body of ``size_bytes`` is larger than ``MAX_BODY_BYTES``."""
    if size_bytes > MAX_BODY_BYTES:
        raise RequestError(
            f"the body has more than {MAX_BODY_BYTES} bytes ({MAX_BODY_BYTES // 2**20} MiB), the most that "
            "this server reads: shorten the state",
            code="body_too_large",
            status=413,
        )


def error_response(error: Exception) -> Response:
    """The HTTP answer to ``error``; one that was not raised on purpose is logged and not told."""
    if isinstance(error, ClientLeftError | ClientDisconnect):
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    if isinstance(error, RequestValidationError):
        error = request_error(error.errors())
    if isinstance(error, RequestError):
        return _envelope(error.status, error.what, "invalid_request_error", error.param, error.code)
    if isinstance(error, EngineError):
        logger.error("decision failed: %s", error)
        return _envelope(error.status, error.what, "server_error", None, "engine_error")
    logger.error("decision failed unexpectedly", exc_info=error)
    return _envelope(500, "internal error; the server's log has it", "server_error", None, "internal_error")


def _envelope(status: int, message: str, kind: Any, param: str | None, code: str | None) -> Response:
    body = ErrorEnvelope(error=ErrorBody(message=message, type=kind, param=param, code=code))
    return JSONResponse(body.model_dump(mode="json"), status_code=status)


def parse_json(content: bytes) -> Any:
    """``content`` as JSON; RequestError(400) when it is none, or when its meaning depends on the parser."""
    try:
        return json.loads(content, parse_constant=_refuse_constant, object_pairs_hook=_distinct_keys)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json", status=400) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"an object has the key {key!r} twice")
        seen.add(key)
    return dict(pairs)


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


ERROR_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": ErrorEnvelope, "description": "Not JSON, or longer than max_model_len"},
    413: {
        "model": ErrorEnvelope,
        "description": f"The body is larger than {MAX_BODY_BYTES // 2**20} MiB ({MAX_BODY_BYTES} bytes)",
    },
    415: {"model": ErrorEnvelope, "description": "The body does not say that it is JSON"},
    422: {"model": ErrorEnvelope, "description": "A field is wrong; param names it"},
    500: {"model": ErrorEnvelope, "description": "Internal error"},
    502: {"model": ErrorEnvelope, "description": "The engine answered badly"},
    503: {"model": ErrorEnvelope, "description": "The engine is not ready"},
    504: {"model": ErrorEnvelope, "description": "The engine did not answer in time"},
}

router = APIRouter(route_class=DecideRoute, tags=["decide"])


@router.post("/v1/decide", responses=ERROR_RESPONSES)  # type: ignore[untyped-decorator]
async def post_decide(body: DecideRequest, raw_request: Request) -> DecideResponse:
    """Probabilities of the options, given the state and the question."""
    service: DecideService = raw_request.app.state.decideploy
    return await unless_client_leaves(raw_request, service.decide(body))


@router.get("/v1/decide/info", responses={500: ERROR_RESPONSES[500]})  # type: ignore[untyped-decorator]
async def get_info(raw_request: Request) -> InfoResponse:
    """What this server serves and with which files."""
    service: DecideService = raw_request.app.state.decideploy
    return service.info()
