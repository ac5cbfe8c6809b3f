import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from decideploy.errors import EngineError
from decideploy.serve import supervise as supervise_module
from decideploy.serve.supervise import supervise


@dataclass
class Engines:
    """Starts engines whose fates are told: "dies", "stopped" or "never-up"; ``open`` are running."""

    fates: list[str]
    started: int = 0
    open: int = 0
    slept_s: list[float] = field(default_factory=list)
    announced: list[int] = field(default_factory=list)

    @contextmanager
    def start(self) -> Iterator[Any]:
        assert self.open == 0, "two engines at once"
        self.started += 1
        self.open += 1
        fate = self.fates.pop(0)
        try:
            yield SimpleNamespace(
                fate=fate, wait=lambda: self.wait(fate), check_alive=lambda: self.check(fate)
            )
        finally:
            self.open -= 1

    def wait(self, fate: str) -> None:
        if fate == "stopped":
            raise KeyboardInterrupt

    def check(self, fate: str) -> None:
        raise EngineError(f"the engine ended: {fate}")

    def bring_up(self, engine: Any) -> int:
        if engine.fate == "never-up":
            raise EngineError("the engine did not come up")
        return self.started

    def run(self, restart: str, max_restarts: int = 2) -> int:
        policy: Any = SimpleNamespace(restart=restart, max_restarts=max_restarts)
        console = Console(file=io.StringIO())
        return supervise(self.start, self.bring_up, self.announced.append, policy, console)


class Interrupting(list[int]):
    def append(self, _result: int) -> None:
        raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(supervise_module.time, "sleep", slept.append)
    return slept


def test_a_stopped_engine_is_not_started_again() -> None:
    engines = Engines(["stopped"])
    assert engines.run("on-failure") == 1
    assert (engines.open, engines.announced) == (0, [1])


def test_a_dead_engine_ends_serve_unless_it_may_be_restarted() -> None:
    engines = Engines(["dies"])
    with pytest.raises(EngineError, match="dies"):
        engines.run("never")
    assert engines.started == 1


def test_a_dead_engine_is_started_again_with_longer_pauses(clock: list[float]) -> None:
    engines = Engines(["dies", "never-up", "dies", "stopped"])
    assert engines.run("on-failure", max_restarts=3) == 4
    assert clock == [1.0, 2.0, 4.0]
    assert engines.announced == [1]


def test_restarts_are_counted_in_a_row() -> None:
    engines = Engines(["dies", "dies", "never-up"])
    with pytest.raises(EngineError, match="did not come up"):
        engines.run("on-failure")
    assert engines.started == 3


def test_the_count_starts_over_after_a_steady_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise_module, "STEADY_S", -1.0)
    engines = Engines(["dies"] * 5 + ["stopped"])
    assert engines.run("on-failure", max_restarts=1) == 6


def test_the_first_start_is_never_repeated() -> None:
    engines = Engines(["never-up"])
    with pytest.raises(EngineError, match="did not come up"):
        engines.run("on-failure")
    assert engines.started == 1


def test_a_stop_that_is_asked_for_while_ready_is_told_ends_serve_as_later() -> None:
    engines = Engines(["dies"], announced=Interrupting())
    assert engines.run("on-failure") == 1
    assert (engines.open, engines.started) == (0, 1)


def test_an_interrupt_between_two_engines_ends_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(supervise_module.time, "sleep", interrupt)
    engines = Engines(["dies"])
    assert engines.run("on-failure") == 1
