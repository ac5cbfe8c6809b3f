"""Whether traffic should come here, from what the engine did lately."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

Phase = Literal["starting", "testing", "ready", "failing", "draining", "failed"]

SCHEMA_VERSION: Final = 1


class Proof(Protocol):
    """A self-test's report, as far as it is told."""

    @property
    def failures(self) -> tuple[Any, ...]:
        """The failed checks: ``name``, ``detail``, ``meaning``, ``remedy``."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """The whole report."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """When a server that passed its self-test counts as failing; see ``ServerSettings``."""

    failures_in_a_row: int = 3
    stall_s: float = 60.0
    canary_s: float = 20.0


class Readiness:
    """A state machine: starting, testing, then ready or failing; failed and draining are final.

    Failures of requests alone do not turn readiness off, or a client with a request that the engine cannot
    answer could: the last of the failures in a row must be that of a canary, which :attr:`wants_canary` asks
    for. A busy engine is not failing: any answer, and any piece of a streamed one, shows that it works.
    """

    def __init__(self, rules: Rules, *, now: Callable[[], float] = time.monotonic) -> None:
        self._rules, self._now = rules, now
        self._stage: Phase = "starting"
        self._reason = "the engine's routes are not up yet"
        self._proof: Proof | None = None
        self._failures = 0
        self._good_at = self._canary_at = now()
        self._draining = False

    @property
    def admits(self) -> bool:
        """Whether requests are let through: from the self-test's passing, also while failing."""
        return self.phase in ("ready", "failing")

    @property
    def is_ready(self) -> bool:
        """Whether ``/ready`` answers 200."""
        return self.phase == "ready"

    @property
    def phase(self) -> Phase:
        """Where the server is."""
        if self._draining:
            return "draining"
        return "failing" if self._stage == "ready" and self._fault() else self._stage

    @property
    def wants_canary(self) -> bool:
        """Whether the engine should be asked now: it was not heard of lately, or requests fail."""
        if self._stage != "ready" or self._draining:
            return False
        pause_s = self._now() - self._canary_at
        suspected = self._failures >= self._rules.failures_in_a_row - 1 > 0
        return pause_s >= (1.0 if suspected else self._rules.canary_s) and (
            suspected or self._now() - self._good_at >= self._rules.canary_s
        )

    def test(self) -> None:
        """The self-test begins."""
        self._stage, self._reason = "testing", "the self-test runs"

    def tested(self, proof: Proof) -> None:
        """The self-test ended."""
        self._proof = proof
        if proof.failures:
            names = ", ".join(check.name for check in proof.failures)
            self.fail(f"self-test failed: {names}")
        else:
            self._stage, self._reason = "ready", ""
            self._good_at = self._canary_at = self._now()

    def fail(self, reason: str) -> None:
        """Nothing will mend this server; the first reason stands."""
        if self._stage != "failed":
            self._stage, self._reason = "failed", reason

    def drain(self) -> None:
        """The server stops."""
        self._draining = True

    def progress(self) -> None:
        """The engine gave something."""
        self._good_at, self._failures = self._now(), 0

    def request_failed(self) -> None:
        """The engine failed a request: it counts, but the last word is a canary's."""
        self._failures = max(self._failures, min(self._failures + 1, self._rules.failures_in_a_row - 1))

    def canary_sent(self) -> None:
        """A canary is on its way."""
        self._canary_at = self._now()

    def canary_failed(self) -> None:
        """A canary was not answered, or not rightly."""
        self._failures += 1

    def document(self) -> dict[str, Any]:
        """The body of ``/ready``."""
        phase = self.phase
        return {
            "schema_version": SCHEMA_VERSION,
            "ready": phase == "ready",
            "phase": phase,
            "reasons": self._reasons(phase),
            "failures": self._failed_checks(),
            "selftest": self._proof.to_dict() if self._proof else None,
        }

    def _reasons(self, phase: Phase) -> list[str]:
        if phase == "draining":
            return ["the server is stopping"]
        if phase == "failing":
            return self._fault()
        return [self._reason] if self._reason else []

    def _fault(self) -> list[str]:
        faults = []
        if self._failures >= self._rules.failures_in_a_row:
            faults.append(f"the last {self._failures} requests failed in the engine, a canary among them")
        if (silent_s := self._now() - self._good_at) > self._rules.stall_s:
            faults.append(f"the engine has answered nothing for {silent_s:.0f} s")
        return faults

    def _failed_checks(self) -> list[Mapping[str, str]]:
        names = ("name", "detail", "meaning", "remedy")
        checks = self._proof.failures if self._proof else ()
        return [{name: str(getattr(check, name)) for name in names} for check in checks]
