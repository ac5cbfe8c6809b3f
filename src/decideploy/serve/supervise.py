"""Keep one engine running: start it again when it dies, as the operator allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Literal, Protocol, TypeVar

from rich.console import Console

from decideploy.errors import EngineError
from decideploy.serve.launch import EngineProcess

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
STEADY_S = 600.0
"""An engine that served for so long did not die of what killed the one before."""

Result = TypeVar("Result")


class Policy(Protocol):
    """What the operator allows; see ``ServeOptions``."""

    @property
    def restart(self) -> Literal["never", "on-failure"]:
        """Whether a dead engine is started again."""
        ...

    @property
    def max_restarts(self) -> int:
        """How often in a row."""
        ...


def supervise(
    engines: Callable[[], AbstractContextManager[EngineProcess]],
    bring_up: Callable[[EngineProcess], Result],
    announce: Callable[[Result], None],
    policy: Policy,
    console: Console,
) -> Result:
    """Run engines one after the other until SIGINT or SIGTERM; returns what the last start gave.

    The first start's error is raised as it is, and so is that of an engine that may not be started again.
    ``announce`` is told of the first start only. Between two engines there is none, and no port is held.
    """
    with engines() as engine:
        result, since = bring_up(engine), time.monotonic()
        fault = _until_death(engine, lambda: announce(result), console)
    pauses = pauses_between_starts(policy)
    while fault is not None:
        if time.monotonic() - since > STEADY_S:
            pauses = pauses_between_starts(policy)
        if (pause_s := next(pauses, None)) is None:
            raise fault
        console.print(f"{fault.what.splitlines()[0]}: starting it again in {pause_s:g} s", markup=False)
        try:
            time.sleep(pause_s)
            with engines() as engine:
                result, since = bring_up(engine), time.monotonic()
                fault = _until_death(engine, lambda: console.print("ready again"), console)
        except EngineError as error:
            fault = error
        except KeyboardInterrupt:
            return result
    return result


def pauses_between_starts(policy: Policy) -> Iterator[float]:
    """How long to wait before each start that is allowed, longer each time."""
    if policy.restart == "on-failure":
        for attempt in range(policy.max_restarts):
            yield min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)


def _until_death(
    engine: EngineProcess, tell_ready: Callable[[], object], console: Console
) -> EngineError | None:
    """None on SIGINT or SIGTERM; the error that tells the engine's death when it ends by itself."""
    try:
        tell_ready()
        engine.wait()
        engine.check_alive()
    except KeyboardInterrupt:
        console.print("stopping: requests in flight may finish")
    except EngineError as error:
        return error
    return None
