"""What a request's headers say about itself: its id and the trace that it belongs to."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final

_SANE_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
# W3C Trace Context, version 00 and later: version, trace id, parent id, flags.
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)

# Those of the request that is being answered, for the engine's own spans: tasks of it inherit them.
TRACE_HEADERS: Final[ContextVar[Mapping[str, str] | None]] = ContextVar("trace_headers", default=None)


def request_id(headers: Mapping[str, str]) -> str:
    """The client's x-request-id when it is fit for logs and headers, else a new one."""
    given = headers.get("x-request-id", "")
    return given if _SANE_ID.fullmatch(given) else uuid.uuid4().hex


def trace_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """``traceparent`` and ``tracestate`` as the engine takes them; empty without a valid traceparent."""
    if not _TRACEPARENT.fullmatch(headers.get("traceparent", "")):
        return {}
    return {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}


def trace_id(trace: Mapping[str, str]) -> str | None:
    """The trace's id, for the log."""
    return trace["traceparent"].split("-")[1] if trace else None
