"""What the gateway answers by itself, in the words of the API that was asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """An answer that no route gives. ``outcome`` is its word in metrics and logs, ``code`` in the body."""

    status: int
    outcome: str
    code: str
    message: str
    retry_after_s: int | None = None

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
TIMEOUT: Final = Refusal(
    status=504,
    outcome="timeout",
    code="timeout",
    message="the request took longer than this server lets one take; its work was stopped",
)
# nginx's status for a client that left; nobody reads it but the log.
CLIENT_LEFT: Final = Refusal(status=499, outcome="client_left", code="client_left", message="the client left")

SYSTEMONE_PATH: Final = "/v1/systemone"
_DIALECTS: Final = {
    "/v1/decide": "decide",
    "/v1/decide/info": "decide",
    SYSTEMONE_PATH: "systemone",
    "/v1/decisions": "decisions",
}


def dialect(path: str) -> str:
    """Which API ``path`` belongs to, as metrics name it: decide, systemone, decisions, openai or other."""
    return _DIALECTS.get(path) or ("openai" if path.startswith("/v1/") else "other")


def body(refusal: Refusal, path: str) -> bytes:
    """``refusal`` as the clients of ``path`` read errors, JSON in UTF-8."""
    return json.dumps(_ENVELOPES.get(dialect(path), _openai)(refusal)).encode()


def headers(refusal: Refusal, content: bytes) -> Headers:
    """The headers of an answer with ``content``."""
    found: Headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
    ]
    if refusal.retry_after_s is not None:
        found.append((b"retry-after", str(refusal.retry_after_s).encode()))
    if refusal.status == HTTPStatus.UNAUTHORIZED:
        found.append((b"www-authenticate", b"Bearer"))
    return found


def _decide(refusal: Refusal) -> dict[str, Any]:
    return _error(refusal, _kind(refusal))


def _openai(refusal: Refusal) -> dict[str, Any]:
    # OpenAI has a type of its own for this one.
    limited = refusal.status == HTTPStatus.TOO_MANY_REQUESTS
    return _error(refusal, "rate_limit_error" if limited else _kind(refusal))


def _systemone(refusal: Refusal) -> dict[str, Any]:
    return {"detail": [{"loc": ["request"], "msg": refusal.message, "type": refusal.code}]}


def _error(refusal: Refusal, kind: str) -> dict[str, Any]:
    return {"error": {"message": refusal.message, "type": kind, "param": None, "code": refusal.code}}


def _kind(refusal: Refusal) -> str:
    return "server_error" if refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"


_ENVELOPES: Final[dict[str, Callable[[Refusal], dict[str, Any]]]] = {
    "decide": _decide,
    "systemone": _systemone,
}
