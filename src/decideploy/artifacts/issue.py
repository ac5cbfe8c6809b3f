"""Faults found in a model's files, and the registry of the rules that find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from decideploy.errors import Diagnostic

if TYPE_CHECKING:
    from decideploy.artifacts.files import ModelFiles

Severity = Literal["error", "warning"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Issue:
    """One fault: ``where`` is the file, ``key`` the key or tensor in it, empty for the whole file."""

    code: str
    what: str
    where: str
    key: str
    consequence: str
    next_step: str
    severity: Severity = "error"

    def to_diagnostic(self) -> Diagnostic:
        """The issue as every error of this package reports itself."""
        where = f"{self.where}: {self.key}" if self.key else self.where
        return Diagnostic(
            code=self.code, what=f"{self.what}: {self.consequence}", where=where, next_step=self.next_step
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What a rule saw and where; the rule's registration adds what it means."""

    what: str
    where: str
    key: str = ""


Check = Callable[["ModelFiles"], Iterator[Finding]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One named check: at run time its findings mean ``consequence``; ``deep`` rules read all weights."""

    code: str
    check: Check
    consequence: str
    next_step: str
    severity: Severity
    deep: bool

    def issues(self, files: ModelFiles) -> Iterator[Issue]:
        """Run the check and complete its findings."""
        for finding in self.check(files):
            yield Issue(
                code=self.code,
                what=finding.what,
                where=finding.where,
                key=finding.key,
                consequence=self.consequence,
                next_step=self.next_step,
                severity=self.severity,
            )


class RuleSet:
    """The rules of one subject, in the order in which they are defined."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def rule(
        self,
        code: str,
        *,
        consequence: str,
        next_step: str,
        severity: Severity = "error",
        deep: bool = False,
    ) -> Callable[[Check], Check]:
        """Register the decorated function as the check named ``code``."""

        def register(check: Check) -> Check:
            self.rules.append(
                Rule(
                    code=code,
                    check=check,
                    consequence=consequence,
                    next_step=next_step,
                    severity=severity,
                    deep=deep,
                )
            )
            return check

        return register
