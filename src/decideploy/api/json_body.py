"""JSON bodies as RFC 8259 has them, up to a size, and the faults of those that are not."""

from __future__ import annotations

import asyncio
from email.message import Message
from typing import Any, Final, Self

from backports import zstd
from fastapi import Request

from decideploy import texts
from decideploy.decide import RequestError

# 16 MiB of images in base64, and room for their text; a body is held and parsed as a whole.
MAX_BODY_BYTES: Final = 24 * 2**20
# A value is a few tokens, and more of them than the longest context holds only cost the time to look at them:
# what is wrong with a field is found for each of them, while no other request is answered.
MAX_BODY_VALUES: Final = 50_000
# Parsing a larger one takes long enough to be done where the event loop can go on.
LONG_BODY_BYTES: Final = 2**20
# A window larger than the largest body serves nobody but an attacker: it is memory held while decoding.
MAX_WINDOW_LOG: Final = (MAX_BODY_BYTES - 1).bit_length()


class StrictJsonRequest(Request):  # type: ignore[misc]
    """A request whose body is JSON as RFC 8259 has it: no NaN, no Infinity, no key twice; 24 MiB at most.

    The body may be compressed with zstd; the limit holds for both sizes.
    """

    async def body(self) -> bytes:
        """The body, read once; RequestError(413) as soon as it is known to be too large."""
        if not hasattr(self, "_body"):
            declared = self.headers.get("content-length", "")
            check_body_size(int(declared) if declared.isdecimal() else 0)
            content = bytearray()
            async for chunk in self.stream():
                content += chunk
                check_body_size(len(content))
            self._body = decoded(bytes(content), self.headers.get("content-encoding", ""))
        return self._body

    async def json(self) -> Any:
        """The body, parsed once; RequestError: 400 when it is not JSON, 413 when it has too many values."""
        if not hasattr(self, "_json"):
            content = await self.body()
            if len(content) < LONG_BODY_BYTES:
                self._json = parse_bounded(content)
            else:
                self._json = await asyncio.to_thread(parse_bounded, content)
        return self._json

    def with_document(self, document: bytes) -> Self:
        """This request as one whose whole body is the JSON text ``document``."""
        headers = [pair for pair in self.scope["headers"] if pair[0] != b"content-type"]
        headers.append((b"content-type", b"application/json"))
        request = type(self)({**self.scope, "headers": headers}, self.receive)
        request._body = document
        return request


def media_type(request: Request) -> str:
    """The request's content type without parameters, ``text/plain`` where it has none."""
    header = Message()
    header["content-type"] = request.headers.get("content-type", "")
    return header.get_content_type()


def check_content_type(request: Request) -> None:
    """Raise RequestError(415) when a body does not say that it is JSON."""
    main, _, subtype = media_type(request).partition("/")
    if main != "application" or not (subtype == "json" or subtype.endswith("+json")):
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


def decoded(content: bytes, encoding: str) -> bytes:
    """``content`` without its content encoding: none, or zstd, which clients of this family send.

    Raises RequestError: 415 for another encoding, 413 when it decodes to too much, 400 when it is malformed.
    """
    if encoding.strip().lower() in ("", "identity"):
        return content
    if encoding.strip().lower() != "zstd":
        raise RequestError(
            "the body may be compressed with zstd or not at all",
            code="unsupported_content_encoding",
            status=415,
        )
    window = {int(zstd.DecompressionParameter.window_log_max): MAX_WINDOW_LOG}
    decoder = zstd.ZstdDecompressor(options=window)
    try:
        # One byte more than allowed tells too much from just enough; no more is ever decoded.
        body = decoder.decompress(content, MAX_BODY_BYTES + 1)
    except zstd.ZstdError as error:
        raise malformed_encoding(str(error)) from error
    check_body_size(len(body))
    if not decoder.eof or decoder.unused_data:
        raise malformed_encoding("it is no whole frame, or more than one")
    return body


def malformed_encoding(reason: str) -> RequestError:
    """The error of a body that its content encoding does not fit."""
    return RequestError(f"the body is not valid zstd: {reason}", code="invalid_content_encoding", status=400)


def parse_bounded(content: bytes) -> Any:
    """``content`` as JSON of at most ``MAX_BODY_VALUES`` values; RequestError as in ``json``."""
    document = parse_json(content)
    count = count_values(document, enough=MAX_BODY_VALUES)
    if count > MAX_BODY_VALUES:
        raise RequestError(
            f"the body has {count} JSON values or more; this server reads at most {MAX_BODY_VALUES}: "
            "write long lists and tables as text",
            code="too_many_values",
            status=413,
        )
    return document


def count_values(document: Any, *, enough: int) -> int:
    """How many members the objects and lists of ``document`` have; it may stop above ``enough``."""
    count, inner = 0, [document]
    while inner and count <= enough:
        value = inner.pop()
        members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        count += len(members)
        # A list that is too long by itself is not looked into.
        if count <= enough:
            inner.extend(member for member in members if isinstance(member, dict | list))
    return count


def parse_json(content: bytes) -> Any:
    """``content`` as JSON; RequestError(400) when it is none, or when its meaning depends on the parser."""
    try:
        return texts.parse_json(content)
    except ValueError as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json", status=400) from error
