"""JSON bodies as RFC 8259 has them, up to a size, and the faults of those that are not."""

from __future__ import annotations

import json
from email.message import Message
from typing import Any, Final, NoReturn

from fastapi import Request

from decideploy.decide import RequestError

# 32 bytes for each of 262,144 tokens, the longest context there is; a body is held and parsed as a whole.
MAX_BODY_BYTES: Final = 8 * 2**20


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
