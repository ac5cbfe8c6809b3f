"""From an exception to the HTTP answer: status, and the envelope of the dialect that the path belongs to.

Errors are answered inside the routes, because the application around them belongs to the engine, whose own
exception answers would otherwise apply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from fastapi import Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from decideploy.api.content import Location
from decideploy.api.faults import INVALID, Fault, PlacedError, RequestFaults
from decideploy.api.json_body import MAX_BODY_BYTES, MAX_BODY_VALUES
from decideploy.api.systemone_wire import Detail, DetailEnvelope
from decideploy.decide import ErrorEnvelope, RequestError
from decideploy.decide.documents import fault_message
from decideploy.decide.schema import MAX_TOLD_FAULTS, ErrorBody, ErrorType, request_error
from decideploy.errors import EngineError

logger = logging.getLogger(__name__)

# nginx's status for a client that left; nobody reads it but the access log.
CLIENT_CLOSED_REQUEST: Final = 499
# An engine that is not ready loads for a minute or restarts; clients that retry at once only add work.
RETRY_AFTER_S: Final = 1.0


class ClientLeftError(Exception):
    """The client closed the connection before its answer was there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An answer that is not 200: ``code`` is a word for programs, ``faults`` the fields at fault, if any,
    and ``untold_faults`` how many more there are.

    ``retry_after_s`` tells a client that comes again when to do so.
    """

    status: int
    message: str
    code: str
    param: str | None = None
    faults: tuple[Fault, ...] = ()
    untold_faults: int = 0
    retry_after_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """How one API answers: ``envelope`` is its body of an error, ``model`` that body's type.

    ``invalid`` tells the faults that validation found; ``request_id_header`` also carries the request's id.
    """

    envelope: Callable[[Failure], BaseModel]
    model: type[BaseModel]
    invalid: Callable[[RequestValidationError], RequestError]
    request_id_header: str | None = None

    def answer(self, failure: Failure) -> Response:
        """The HTTP answer that tells ``failure``."""
        body = self.envelope(failure).model_dump(mode="json")
        return JSONResponse(body, status_code=failure.status, headers=retry_headers(failure.retry_after_s))

    def answer_error(self, error: Exception) -> Response:
        """The HTTP answer to ``error``; one that was not raised on purpose is logged and not told."""
        if isinstance(error, ClientLeftError | ClientDisconnect):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        if isinstance(error, RequestValidationError):
            error = self.invalid(error)
        return self.answer(failure_of(error))

    def responses(self, statuses: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
        """What a route declares about its errors: status → description."""
        return {
            status: {
                "model": self.model,
                "description": description,
                "content": {"application/json": {"example": self._example(status)}},
            }
            for status, description in statuses.items()
        }

    def _example(self, status: int) -> Any:
        phrase = HTTPStatus(status).phrase
        code = phrase.lower().replace(" ", "_")
        return self.envelope(Failure(status=status, message=phrase, code=code)).model_dump(mode="json")


def failure_of(error: Exception) -> Failure:
    """What is told about ``error``."""
    if isinstance(error, RequestError):
        return Failure(
            status=error.status,
            message=error.what,
            code=error.code,
            param=error.param,
            faults=_faults(error),
            untold_faults=error.untold if isinstance(error, RequestFaults) else 0,
        )
    if isinstance(error, EngineError):
        logger.error("decision failed: %s", error)
        retry = RETRY_AFTER_S if error.status == HTTPStatus.SERVICE_UNAVAILABLE else None
        return Failure(status=error.status, message=error.what, code="engine_error", retry_after_s=retry)
    logger.error("decision failed unexpectedly", exc_info=error)
    return Failure(status=500, message="internal error; the server's log has it", code="internal_error")


def _faults(error: RequestError) -> tuple[Fault, ...]:
    if isinstance(error, RequestFaults):
        return error.faults
    param: Location = ("body", error.param) if error.param else ("body",)
    location = error.location if isinstance(error, PlacedError) else param
    return (Fault(location=location, message=error.what, code=error.code),)


def retry_headers(retry_after_s: float | None) -> dict[str, str]:
    """The headers that tell a client to wait: whole seconds, and milliseconds for those that read them."""
    if retry_after_s is None:
        return {}
    return {"retry-after": str(-int(-retry_after_s // 1)), "retry-after-ms": str(round(retry_after_s * 1000))}


def error_envelope(failure: Failure) -> ErrorEnvelope:
    """``{"error": {…}}``, the OpenAI API's and ``/v1/decide``'s."""
    kind: ErrorType = "server_error" if failure.status >= 500 else "invalid_request_error"
    if failure.status == HTTPStatus.TOO_MANY_REQUESTS:
        kind = "rate_limit_error"
    return ErrorEnvelope(
        error=ErrorBody(
            message=failure.message,
            type=kind,
            param=failure.param,
            code=failure.code,
        )
    )


def detail_envelope(failure: Failure) -> DetailEnvelope:
    """``{"detail": […]}``, the form in which FastAPI tells what is invalid."""
    faults = failure.faults or (Fault(location=(), message=failure.message, code=failure.code),)
    if failure.untold_faults:
        more = f"and {failure.untold_faults} more fields are at fault"
        faults += (Fault(location=("body",), message=more),)
    return DetailEnvelope(
        detail=[Detail(loc=list(fault.location), msg=fault.message, type=fault.code) for fault in faults]
    )


def _core_faults(error: RequestValidationError) -> RequestError:
    return request_error(error.errors())


def _located_faults(error: RequestValidationError) -> RequestError:
    found = error.errors()
    told = [_fault(fault, fault["loc"]) for fault in found[:MAX_TOLD_FAULTS]]
    return RequestFaults(told, count=len(found))


def _untagged_faults(error: RequestValidationError) -> RequestError:
    found = error.errors()
    told = [_fault(fault, untagged(fault["loc"], error.body)) for fault in found[:MAX_TOLD_FAULTS]]
    return RequestFaults(told, count=len(found))


def _fault(fault: Mapping[str, Any], location: Location) -> Fault:
    message = fault_message(fault["msg"])
    if fault["type"] == "extra_forbidden":
        message = "this server does not serve this field"
    code = INVALID if fault["type"] == "value_error" else str(fault["type"])
    return Fault(location=tuple(location), message=message, code=code)


def untagged(location: Sequence[str | int], document: object) -> Location:
    """``location`` without the steps that are no keys of ``document`` but members of a union."""
    path: list[str | int] = []
    value: Any = {"body": document}
    for index, step in enumerate(location):
        is_key = isinstance(value, dict) and step in value
        is_tag = isinstance(step, str) and step.startswith("<")
        is_member = isinstance(value, dict) and index < len(location) - 1
        if not is_key and (is_tag or is_member):
            continue
        path.append(step)
        value = _member(value, step)
    return tuple(path)


def _member(value: Any, step: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(step)
    return value[step] if isinstance(value, list) and isinstance(step, int) and step < len(value) else None


DECIDE: Final = Dialect(envelope=error_envelope, model=ErrorEnvelope, invalid=_core_faults)
DECISIONS: Final = Dialect(envelope=error_envelope, model=ErrorEnvelope, invalid=_untagged_faults)
SYSTEMONE: Final = Dialect(
    envelope=detail_envelope,
    model=DetailEnvelope,
    invalid=_located_faults,
    request_id_header="x-typesafe-request-id",
)

Statuses: TypeAlias = dict[int, str]
# What stands before every route may answer these as well.
GATE_STATUSES: Final[Statuses] = {
    401: "No valid API key",
    405: "Another method than those of this path",
    429: "Too many requests wait already; Retry-After says when to come again",
    500: "Internal error",
    503: "The engine is not ready; Retry-After says when to come again",
    504: "No answer in time",
}
POST_STATUSES: Final[Statuses] = {
    400: "Not JSON, or longer than max_model_len",
    408: "The body did not arrive in time",
    413: f"The body is larger than {MAX_BODY_BYTES // 2**20} MiB ({MAX_BODY_BYTES} bytes), or has more than "
    f"{MAX_BODY_VALUES} JSON values",
    415: "The body does not say that it is JSON",
    422: "A field is wrong",
    502: "The engine answered badly",
    **GATE_STATUSES,
}
ASKING_STATUSES: Final[Statuses] = {404: "No such model", **POST_STATUSES}
