"""What the gateway answers by itself, in the words of the API that was asked."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from decideploy.api.errors import Failure, detail_envelope, error_envelope
from decideploy.api.faults import Fault
from decideploy.api.systemone_wire import DetailEnvelope
from decideploy.decide import ErrorEnvelope

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """An answer that no route gives. ``outcome`` is its word in metrics and logs, ``code`` in the body.

    ``allow`` are the methods that the path has, for a method that it has not.
    """

    status: int
    outcome: str
    code: str
    message: str
    retry_after_s: int | None = None
    allow: str | None = None

    def after(self, retry_after_s: int) -> Refusal:
        """The same with a time after which to try again."""
        return replace(self, retry_after_s=retry_after_s)


UNAUTHORIZED: Final = Refusal(
    status=401,
    outcome="unauthorized",
    code="invalid_api_key",
    message="no valid API key: send the header Authorization: Bearer KEY",
)
QUEUE_FULL: Final = Refusal(
    status=429,
    outcome="queue_full",
    code="queue_full",
    message="as many requests wait as this server lets wait; try again later",
)
NOT_READY: Final = Refusal(
    status=503,
    outcome="not_ready",
    code="not_ready",
    message="the server is not ready: /ready tells why",
    retry_after_s=5,
)
DRAINING: Final = Refusal(
    status=503,
    outcome="draining",
    code="draining",
    message="the server is stopping and takes no new requests",
    retry_after_s=5,
)
DRAINED: Final = Refusal(
    status=503,
    outcome="draining",
    code="draining",
    message="the server stopped before the request was done",
    retry_after_s=5,
)
ENGINE_DEAD: Final = Refusal(
    status=503,
    outcome="engine_dead",
    code="engine_dead",
    message="the engine has died",
    retry_after_s=30,
)
NOT_FOR_METRICS: Final = Refusal(
    status=405,
    outcome="client_error",
    code="method_not_allowed",
    message="metrics are only read: use GET, HEAD",
    allow="GET, HEAD",
)
TOO_LARGE: Final = Refusal(
    status=413,
    outcome="too_large",
    code="body_too_large",
    message="the body is larger than this server reads",
)
BAD_LENGTH: Final = Refusal(
    status=400,
    outcome="client_error",
    code="invalid_content_length",
    message="the Content-Length header is not a number",
)
BODY_LATE: Final = Refusal(
    status=408,
    outcome="body_late",
    code="body_timeout",
    message="the body did not arrive in the time that this server waits for one",
)
TIMEOUT: Final = Refusal(
    status=504,
    outcome="timeout",
    code="timeout",
    message="the request took longer than this server lets one take; its work was stopped",
)
# nginx's status for a client that left; nobody reads it but the log.
CLIENT_LEFT: Final = Refusal(status=499, outcome="client_left", code="client_left", message="the client left")

SYSTEMONE_PATH: Final = "/v1/systemone"
_MESSAGES_PATH: Final = "/v1/messages"
_DIALECTS: Final = {
    "/v1/decide": "decide",
    "/v1/decide/info": "decide",
    SYSTEMONE_PATH: "systemone",
    "/v1/decisions": "decisions",
}
_ANTHROPIC_TYPES: Final[dict[int, str]] = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}


class AnthropicFault(BaseModel):
    """What is wrong, in the words of Anthropic's Messages API."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str
    message: str


class AnthropicError(BaseModel):
    """The envelope that clients of Anthropic's Messages API read; the engine serves that API as well."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["error"] = "error"
    error: AnthropicFault


def dialect(path: str) -> str:
    """Which API ``path`` belongs to, as metrics name it: decide, systemone, decisions, openai or other."""
    return _DIALECTS.get(path) or ("openai" if path.startswith("/v1/") else "other")


def body(refusal: Refusal, path: str) -> bytes:
    """``refusal`` as the clients of ``path`` read errors, JSON in UTF-8."""
    return json.dumps(_envelope(refusal, path).model_dump(mode="json")).encode()


def _envelope(refusal: Refusal, path: str) -> BaseModel:
    if path.startswith(_MESSAGES_PATH):
        return _anthropic(refusal)
    fault = Fault(location=("request",), message=refusal.message, code=refusal.code)
    failure = Failure(status=refusal.status, message=refusal.message, code=refusal.code, faults=(fault,))
    envelope = detail_envelope if path == SYSTEMONE_PATH else error_envelope
    return envelope(failure)


def _anthropic(refusal: Refusal) -> AnthropicError:
    server = HTTPStatus.INTERNAL_SERVER_ERROR
    other = "api_error" if refusal.status >= server else "invalid_request_error"
    kind = _ANTHROPIC_TYPES.get(refusal.status, other)
    return AnthropicError(error=AnthropicFault(type=kind, message=refusal.message))


def envelope_model(path: str) -> type[BaseModel]:
    """The type of :func:`body` for ``path``."""
    if path.startswith(_MESSAGES_PATH):
        return AnthropicError
    return DetailEnvelope if path == SYSTEMONE_PATH else ErrorEnvelope


def headers(refusal: Refusal, content: bytes) -> Headers:
    """The headers of an answer with ``content``."""
    found: Headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
    ]
    if refusal.retry_after_s is not None:
        found.append((b"retry-after", str(refusal.retry_after_s).encode()))
    if refusal.allow is not None:
        found.append((b"allow", refusal.allow.encode()))
    if refusal.status == HTTPStatus.UNAUTHORIZED:
        found.append((b"www-authenticate", b"Bearer"))
    return found
