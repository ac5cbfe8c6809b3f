"""Every error that decideploy raises on purpose.

    Error(1)                  base; ``diagnostics()`` lists what, where and the next step
    ├── SeveralErrors         some of those below, found together, with the number of the first
    ├── ConfigError(2)        an option, setting or input file is wrong
    ├── IntegrityError(3)     bytes are not what a lock names
    ├── PatchError(4)         the patch series is malformed or does not apply exactly
    ├── VerificationError(5)  the model's files are not what the engine needs
    ├── ProbeError(6)         the hardware cannot be read or cannot be used
    ├── CapacityError(7)      the plan does not fit
    └── EngineError(8)        the engine failed, timed out or answered badly

The number is the exit status of the command that ends with the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnostic:
    """One fault, told so that the reader can act on it."""

    what: str
    where: str = ""
    next_step: str = ""
    code: str = ""

    def __str__(self) -> str:
        head = f"[{self.code}] {self.what}" if self.code else self.what
        lines = [head]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.next_step:
            lines.append(f"  next:  {self.next_step}")
        return "\n".join(lines)


class Error(Exception):
    """Base of all errors raised on purpose.

    ``what`` names the fault, ``where`` the file, key or command at fault, ``next_step`` the remedy.
    """

    exit_code: int = 1

    def __init__(self, what: str, *, where: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.next_step = next_step

    def diagnostics(self) -> Sequence[Diagnostic]:
        """All faults that this error stands for, at least one."""
        return (Diagnostic(what=self.what, where=self.where, next_step=self.next_step),)

    def __str__(self) -> str:
        return "\n".join(str(diagnostic) for diagnostic in self.diagnostics())


class SeveralErrors(Error):  # noqa: N818
    """Errors that were found together; the exit status is the first one's."""

    def __init__(self, errors: Sequence[Error]) -> None:
        first = errors[0]
        super().__init__(first.what, where=first.where, next_step=first.next_step)
        self.errors = tuple(errors)
        self.exit_code = first.exit_code

    def diagnostics(self) -> Sequence[Diagnostic]:
        """Those of every error."""
        return tuple(diagnostic for error in self.errors for diagnostic in error.diagnostics())


def raise_together(errors: Sequence[Error]) -> None:
    """Raise what was found: one error as it is, several as one, nothing when there is none."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise SeveralErrors(errors)


class ConfigError(Error):
    """An option, setting or input file is wrong."""

    exit_code = 2


class IntegrityError(Error):
    """Bytes are not what a lock names; ``faults`` holds every fault where there are several."""

    exit_code = 3

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        next_step: str = "",
        expected: str = "",
        actual: str = "",
        source: str = "",
        faults: Sequence[Diagnostic] = (),
    ) -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.faults = tuple(faults)
        self.expected = expected
        self.actual = actual
        self.source = source

    def diagnostics(self) -> Sequence[Diagnostic]:
        """Every fault, or the one with what was expected, what was found and whence it came."""
        if self.faults:
            return self.faults
        parts = [self.what]
        if self.expected or self.actual:
            parts.append(f"expected {self.expected or 'nothing'}, found {self.actual or 'nothing'}")
        if self.source:
            parts.append(f"from {self.source}")
        what = "; ".join(parts)
        return (Diagnostic(what=what, where=self.where, next_step=self.next_step),)


class PatchError(Error):
    """The patch series is malformed or does not apply exactly."""

    exit_code = 4


class VerificationError(Error):
    """The model's files are not what the engine needs; ``issues`` holds every fault."""

    exit_code = 5

    def __init__(self, what: str, *, issues: Sequence[Diagnostic], where: str = "") -> None:
        super().__init__(what, where=where)
        self.issues = tuple(issues)

    def diagnostics(self) -> Sequence[Diagnostic]:
        """Every fault of the files."""
        return self.issues or super().diagnostics()


class ProbeError(Error):
    """The hardware cannot be read or cannot be used."""

    exit_code = 6


class CapacityError(Error):
    """The plan does not fit: ``needed_bytes`` against ``available_bytes``."""

    exit_code = 7

    def __init__(
        self,
        what: str,
        *,
        needed_bytes: int,
        available_bytes: int,
        largest_term: str,
        where: str = "",
        next_step: str = "",
    ) -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.largest_term = largest_term


class EngineError(Error):
    """The engine failed: ``status`` is 503 (not ready), 504 (timeout) or 502 (bad reply)."""

    exit_code = 8

    def __init__(self, what: str, *, status: int = 503, where: str = "", next_step: str = "") -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.status = status
