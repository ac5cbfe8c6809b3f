"""Read a small JSON file of the model into a pydantic model, every fault named by file and key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from decideploy.errors import Diagnostic, VerificationError
from decideploy.texts import parse_json

Document = TypeVar("Document", bound=BaseModel)

NEXT_STEP = (
    "take the file from the model's pinned revision again, or make it with `decideploy convert-adapter`"
)


def read_document(path: Path, model: type[Document]) -> Document:
    """The file at ``path`` as ``model``; VerificationError holds all faults, each as ``file: key[index]``."""
    return parse_document(read_bytes(path), path, model)


def read_bytes(path: Path) -> bytes:
    """The content of ``path``; VerificationError when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        fault = Diagnostic(
            code="file-unreadable",
            what=f"{path.name} cannot be read: {error.strerror or error}",
            where=str(path),
            next_step=NEXT_STEP,
        )
        raise VerificationError(fault.what, issues=(fault,), where=str(path)) from error


def parse_document(content: bytes, path: Path, model: type[Document]) -> Document:
    """``content`` of the file ``path`` as ``model``; errors as in :func:`read_document`."""
    try:
        # The JSON mode of pydantic: strict types, yet lists may fill tuples.
        document = model.model_validate_json(content)
        # Pydantic tells every fault by its key, but takes a key twice and NaN where it looks at no value.
        parse_json(content)
    except ValidationError as error:
        faults = [
            _fault(path, fault_message(fault["msg"]), key_path(fault["loc"]))
            for fault in error.errors(include_url=False, include_context=False)
        ]
        raise _malformed(path, faults) from error
    except ValueError as error:
        raise _malformed(path, [_fault(path, f"not JSON: {error}")]) from error
    return document


def _fault(path: Path, what: str, key: str = "") -> Diagnostic:
    where = f"{path}: {key}" if key else str(path)
    return Diagnostic(code="file-malformed", what=f"{path.name}: {what}", where=where, next_step=NEXT_STEP)


def _malformed(path: Path, faults: Sequence[Diagnostic]) -> VerificationError:
    return VerificationError(f"{path.name} is malformed", issues=tuple(faults), where=str(path))


def key_path(location: tuple[str | int, ...]) -> str:
    """``("slots", "ranges", 1)`` as ``slots.ranges[1]``."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return path.removeprefix(".")


def fault_message(message: str) -> str:
    """Pydantic's message without the prefix that it puts before a validator's own words."""
    return message.removeprefix("Value error, ")
