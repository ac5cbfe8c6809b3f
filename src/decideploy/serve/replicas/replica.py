"""One replica: an engine, or the place of one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from decideploy.errors import EngineError, Error
from decideploy.serve.launch import EngineProcess
from decideploy.serve.stages import ServeResult
from decideploy.serve.supervise import STEADY_S, Policy, pauses_between_starts

if TYPE_CHECKING:
    from decideploy.plan import LaunchPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Revision:
    """One verified model, with a plan for each replica; ``golden`` are the decisions that it must repeat."""

    model: Path
    launches: tuple[LaunchPlan, ...]
    golden: Path | None = None


Engines: TypeAlias = Callable[[Revision], AbstractContextManager[EngineProcess]]
Proves: TypeAlias = Callable[[EngineProcess, Revision], ServeResult]


class Replica:
    """The replica number ``index``; ``engines`` makes its engine, ``prove`` awaits a started one's proof.

    ``at_work`` is held by whoever stops or starts it. ``revision`` is what it serves, or is to serve.
    """

    def __init__(self, index: int, engines: Engines, prove: Proves, policy: Policy) -> None:
        self.index = index
        self.revision: Revision | None = None
        self.fault: Error | None = None
        self.at_work = threading.Lock()
        self._engines, self._prove, self._policy = engines, prove, policy
        self._engine: EngineProcess | None = None
        self._stack = ExitStack()
        self._guard = threading.Lock()
        self._closed = False
        self._ready = False
        self._ready_at = 0.0
        self._pauses = pauses_between_starts(policy)

    @property
    def ready(self) -> bool:
        """Whether its engine has passed its self-test and lives."""
        return self._ready and self._engine is not None and self._engine.exit_status is None

    def start(self, revision: Revision) -> ServeResult:
        """Start an engine for ``revision`` and await its proof; where it fails, nothing of it is left."""
        self.revision = revision
        try:
            result = self._prove(self._hold(revision), revision)
        except BaseException:
            self.stop()
            raise
        self._ready, self._ready_at, self.fault = True, time.monotonic(), None
        return result

    def _hold(self, revision: Revision) -> EngineProcess:
        with self._guard:
            if self._closed:
                raise EngineError("the server stops")
            # Started while none can stop it, or it would begin after its end.
            engine = self._stack.enter_context(self._engines(revision))
            engine.start()
            self._engine = engine
            return engine

    def death(self) -> EngineError | None:
        """The error that tells of its engine's end, if it has ended by itself."""
        try:
            if self._engine is not None:
                self._engine.check_alive()
        except EngineError as error:
            return error
        return None

    def pause_s(self) -> float | None:
        """Seconds to wait before the next start; None when no more is allowed in a row."""
        if self._ready and time.monotonic() - self._ready_at > STEADY_S:
            self.forgive()
        return next(self._pauses, None)

    def forgive(self) -> None:
        """Count its restarts from the beginning."""
        self._pauses = pauses_between_starts(self._policy)

    def stop(self) -> None:
        """Let the engine finish what is in flight, and end it."""
        self._ready = False
        with self._guard:
            stack, self._stack = self._stack, ExitStack()
        # Leaving the contexts stops the engine; the guard is free, so that it can be hastened.
        stack.close()
        self._engine = None

    def close(self) -> None:
        """Stop for good, also a start that is under way."""
        with self._guard:
            self._closed = True
        self.stop()

    def hasten(self) -> None:
        """Finish nothing more."""
        if (engine := self._engine) is not None:
            engine.hasten()
