"""Read a small JSON file of the model into a pydantic model, every fault named by file and key."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from decideploy.errors import Diagnostic, VerificationError

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
        return model.model_validate_json(content)
    except ValidationError as error:
        faults = tuple(
            Diagnostic(
                code="file-malformed",
                what=f"{path.name}: {fault_message(fault['msg'])}",
                where=f"{path}: {key_path(fault['loc'])}".removesuffix(": "),
                next_step=NEXT_STEP,
            )
            for fault in error.errors(include_url=False, include_context=False)
        )
        raise VerificationError(f"{path.name} is malformed", issues=faults, where=str(path)) from error


def key_path(location: tuple[str | int, ...]) -> str:
    """``("slots", "ranges", 1)`` as ``slots.ranges[1]``."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return path.removeprefix(".")


def fault_message(message: str) -> str:
    """Pydantic's message without the prefix that it puts before a validator's own words."""
    return message.removeprefix("Value error, ")
