"""JSON values that a client sends as content: what may be in them, and the text that the model reads."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, JsonValue
from pydantic_core import PydanticCustomError

from decideploy.decide.schema import MAX_STATE_DEPTH

Location: TypeAlias = tuple[str | int, ...]


def _checked_content(value: object) -> object:
    # The union below would refuse it once for each of its members.
    if not isinstance(value, str | dict | list):
        raise PydanticCustomError("content_type", "must be a string, an object or an array")
    return value


Content: TypeAlias = Annotated[
    str | dict[str, JsonValue] | list[JsonValue], BeforeValidator(_checked_content)
]


def content_text(value: str | dict[str, Any] | list[Any]) -> str:
    """A string as it is, anything else as JSON on one line, in the form in which the core writes objects."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)


def content_fault(document: object) -> tuple[Location, str] | None:
    """Where ``document`` holds what no text can hold, and what it is; None when it is sound.

    A JSON text may hold lone surrogates, numbers beyond a float, and more levels than its readers bear.
    """
    level: list[tuple[Location, object]] = [((), document)]
    for _ in range(MAX_STATE_DEPTH + 1):
        for location, value in level:
            if fault := _scalar_fault(value):
                return location, fault
        level = [member for location, value in level for member in _members(location, value)]
        if not level:
            return None
    return level[0][0][:1], f"nests more than {MAX_STATE_DEPTH} objects and lists in each other"


def _scalar_fault(value: object) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return "is beyond the range of a number"
    texts = value.keys() if isinstance(value, dict) else (value,) if isinstance(value, str) else ()
    if any(not _is_encodable(text) for text in texts):
        return "holds a lone surrogate, which is not valid Unicode text"
    return None


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _members(location: Location, value: object) -> Iterator[tuple[Location, object]]:
    if isinstance(value, Mapping):
        yield from (((*location, key), inner) for key, inner in value.items())
    elif isinstance(value, list):
        yield from (((*location, index), inner) for index, inner in enumerate(value))
