"""``multipart/form-data`` bodies: a JSON document and files beside it (RFC 7578)."""

from __future__ import annotations

import logging
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header

from decideploy.api.json_body import MAX_BODY_BYTES
from decideploy.decide import RequestError

MEDIA_TYPE: Final = "multipart/form-data"
# Far more than a request may bring images.
MAX_PARTS: Final = 64

# It logs what it raises as well; a client's fault is told to the client.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


def read_parts(content_type: str, body: bytes) -> dict[str, bytes]:
    """The parts of ``body`` by name; RequestError(400) when it is malformed, or has two parts of one name."""
    parts: dict[str, bytes] = {}

    def keep(part: Field | File) -> None:
        name, content = _name_and_content(part)
        if name in parts:
            raise FormParserError(f"two parts have the name {name!r}")
        if len(parts) == MAX_PARTS:
            raise FormParserError(f"it has more than {MAX_PARTS} parts")
        parts[name] = content

    try:
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        # Parts stay in memory: the whole body is there already.
        parser = FormParser(
            MEDIA_TYPE, keep, keep, boundary=boundary, config={"MAX_MEMORY_FILE_SIZE": MAX_BODY_BYTES + 1}
        )
        parser.write(body)
        parser.finalize()
    except (FormParserError, UnicodeError) as error:
        raise RequestError(
            f"the body is not valid {MEDIA_TYPE}: {error}", code="invalid_multipart", status=400
        ) from error
    return parts


def _name_and_content(part: Field | File) -> tuple[str, bytes]:
    if isinstance(part, Field):
        return (part.field_name or b"").decode(), part.value or b""
    part.file_object.seek(0)
    return (part.field_name or b"").decode(), part.file_object.read()
