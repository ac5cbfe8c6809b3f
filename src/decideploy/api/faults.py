"""Errors that name their places in a client's request, whatever its dialect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decideploy.api.content import Location
from decideploy.decide.documents import key_path
from decideploy.decide.schema import MAX_TOLD_FAULTS, RequestError

INVALID: str = "invalid_request"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One field at fault: ``location`` starts at ``body``, ``code`` is a word for programs."""

    location: Location
    message: str
    code: str = INVALID


class RequestFaults(RequestError):  # noqa: N818 - several errors in one
    """Every field at fault, at least one; the first ten are told and the rest counted.

    ``count`` is how many there are, where ``faults`` are only the first of them.
    """

    def __init__(self, faults: Sequence[Fault], *, count: int | None = None) -> None:
        told = [f"{parameter(fault.location)}: {fault.message}" for fault in faults[:MAX_TOLD_FAULTS]]
        self.untold = (len(faults) if count is None else count) - len(told)
        if self.untold:
            told.append(f"and {self.untold} more")
        super().__init__("; ".join(told), param=parameter(faults[0].location), code=INVALID)
        self.faults = tuple(faults[:MAX_TOLD_FAULTS])


class PlacedError(RequestError):
    """``error`` of the core, with the ``location`` of its cause in the client's request."""

    def __init__(self, error: RequestError, location: Location) -> None:
        super().__init__(error.what, param=parameter(location), code=error.code, status=error.status)
        self.location = location


def parameter(location: Location) -> str:
    """``("body", "questions", 1, "name")`` as ``questions[1].name``; ``body`` for the whole."""
    return key_path(location[1:]) or "body"
