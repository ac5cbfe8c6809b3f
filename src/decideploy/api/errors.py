"""From an exception to the HTTP answer of ``/v1/decide``: status and envelope.

Errors are answered inside the route, because the application around it belongs to the engine, whose own
exception answers would otherwise apply.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from fastapi import Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from decideploy.api.json_body import MAX_BODY_BYTES
from decideploy.decide import ErrorEnvelope, RequestError
from decideploy.decide.schema import ErrorBody, request_error
from decideploy.errors import EngineError

logger = logging.getLogger(__name__)

# nginx's status for a client that left; nobody reads it but the access log.
CLIENT_CLOSED_REQUEST: Final = 499


class ClientLeftError(Exception):
    """The client closed the connection before its answer was there."""


def error_response(error: Exception) -> Response:
    """The HTTP answer to ``error``; one that was not raised on purpose is logged and not told."""
    if isinstance(error, ClientLeftError | ClientDisconnect):
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    if isinstance(error, RequestValidationError):
        error = request_error(error.errors())
    if isinstance(error, RequestError):
        return envelope(error.status, error.what, "invalid_request_error", error.param, error.code)
    if isinstance(error, EngineError):
        logger.error("decision failed: %s", error)
        return envelope(error.status, error.what, "server_error", None, "engine_error")
    logger.error("decision failed unexpectedly", exc_info=error)
    return envelope(500, "internal error; the server's log has it", "server_error", None, "internal_error")


def envelope(status: int, message: str, kind: Any, param: str | None, code: str | None) -> Response:
    """An answer of ``status`` with the error envelope; ``kind`` is its type."""
    body = ErrorEnvelope(error=ErrorBody(message=message, type=kind, param=param, code=code))
    return JSONResponse(body.model_dump(mode="json"), status_code=status)


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
