"""The fleet's rules, with engines and a front that do as they are told."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from waiting import until

from decideploy.errors import ConfigError, EngineError, SeveralErrors
from decideploy.serve import supervise
from decideploy.serve.replicas import fleet as fleet_module
from decideploy.serve.replicas.fleet import Fleet
from decideploy.serve.replicas.replica import Replica, Revision

OLD = Revision(model=Path("old"), launches=())
NEW = Revision(model=Path("new"), launches=())


class Engine:
    """Runs until it is stopped or dies."""

    def __init__(self) -> None:
        self.exit_status: int | None = None
        self.started = False

    def start(self) -> None:
        self.started = True

    def check_alive(self) -> None:
        if self.exit_status is not None:
            raise EngineError("the engine ended")

    def hasten(self) -> None:
        pass


@dataclass
class Ground:
    """``refused`` are the starts that fail: (replica, model); ``steps`` is what happened, in order."""

    count: int = 3
    restart: str = "on-failure"
    max_restarts: int = 2
    refused: set[tuple[int, str]] = field(default_factory=set)
    steps: list[str] = field(default_factory=list)
    engines: dict[int, Engine] = field(default_factory=dict)
    front_faults: list[EngineError] = field(default_factory=list)
    out: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        policy: Any = SimpleNamespace(restart=self.restart, max_restarts=self.max_restarts)
        replicas = [self.replica(index, policy) for index in range(self.count)]
        self.fleet = Fleet(replicas, self, policy, Console(file=self.out, width=300))

    def replica(self, index: int, policy: Any) -> Replica:
        @contextmanager
        def engines(_revision: Revision) -> Iterator[Any]:
            engine = self.engines[index] = Engine()
            try:
                yield engine
            finally:
                if engine.exit_status is None:
                    self.steps.append(f"stop {index}")
                    engine.exit_status = 0

        def prove(_engine: Any, revision: Revision) -> Any:
            if (index, str(revision.model)) in self.refused:
                raise EngineError(f"replica {index} refuses {revision.model}")
            self.steps.append(f"{revision.model} {index}")
            return index

        return Replica(index, engines, prove, policy)

    def served(self) -> list[str]:
        return [str(one.revision.model) if one.ready and one.revision else "-" for one in self.fleet.replicas]

    def run(self) -> None:
        """Tend until a test's step raises."""
        thread = threading.Thread(target=self.fleet.tend, daemon=True)
        thread.start()

    def start(self) -> None:
        self.steps.append("front")

    def stop(self) -> None:
        self.steps.append("front stopped")

    def check_alive(self) -> None:
        if self.front_faults:
            raise self.front_faults.pop()

    def drain(self, index: int) -> None:
        self.steps.append(f"drain {index}")

    def admit(self, index: int) -> None:
        self.steps.append(f"admit {index}")

    def wait_idle(self, _index: int, _timeout_s: float) -> bool:
        return True

    def wait_serving(self, index: int, _timeout_s: float) -> bool:
        return self.fleet.replicas[index].ready


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are as many as ever, and short."""
    monkeypatch.setattr(supervise, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(fleet_module, "_POLL_S", 0.001)


def started(**changes: Any) -> Ground:
    ground = Ground(**changes)
    assert sorted(ground.fleet.start(OLD)) == list(range(ground.count))
    ground.steps.clear()
    return ground


def test_the_first_start_is_alone_and_the_front_comes_last() -> None:
    ground = Ground()
    ground.fleet.start(OLD)
    assert (ground.steps[0], ground.steps[-1]) == ("old 0", "front")
    assert set(ground.steps[1:-1]) == {"old 1", "old 2"}


def test_a_fault_of_the_first_start_starts_no_other() -> None:
    ground = Ground(refused={(0, "old")})
    with pytest.raises(EngineError, match="replica 0 refuses old"):
        ground.fleet.start(OLD)
    assert set(ground.engines) == {0}


def test_faults_of_the_other_starts_are_told_together() -> None:
    ground = Ground(refused={(1, "old"), (2, "old")})
    with pytest.raises(SeveralErrors) as caught:
        ground.fleet.start(OLD)
    assert [fault.what for fault in caught.value.diagnostics()] == [
        "replica 1 refuses old",
        "replica 2 refuses old",
    ]
    assert "front" not in ground.steps


def test_replicas_are_renewed_one_at_a_time() -> None:
    ground, told = started(count=2), []
    ground.fleet.renew(OLD, told.append)
    assert ground.steps == [
        *("drain 0", "stop 0", "old 0", "admit 0"),
        *("drain 1", "stop 1", "old 1", "admit 1"),
    ]
    assert told[-1] == "replica 1: ready, and serving again"


def test_an_update_is_what_dead_replicas_are_started_with_later() -> None:
    ground = started()
    ground.fleet.renew(NEW, lambda _: None)
    assert ground.fleet.revision is NEW
    ground.run()
    ground.engines[1].exit_status = 1
    until(lambda: ground.served() == ["new"] * 3 and ground.steps[-1] == "new 1")


def test_the_first_that_does_not_come_back_ends_the_renewal() -> None:
    ground = started(max_restarts=9)
    ground.refused = {(1, "old")}
    with pytest.raises(EngineError, match="replica 1 refuses old"):
        ground.fleet.renew(OLD, lambda _: None)
    assert "drain 2" not in ground.steps
    # It is started again as after a death.
    ground.refused.clear()
    until(lambda: ground.served() == ["old"] * 3)


def test_an_update_that_one_replica_refuses_is_rolled_back_on_all() -> None:
    ground = started(refused={(2, "new")})
    with pytest.raises(EngineError, match="replica 2 refuses new"):
        ground.fleet.renew(NEW, lambda _: None)
    assert ground.fleet.revision is OLD
    assert ground.served() == ["old"] * 3
    proofs = [step for step in ground.steps if step[:3] in ("old", "new")]
    assert proofs == ["new 0", "new 1", "old 2", "old 1", "old 0"]


def test_a_rollback_that_fails_is_told_beside_what_caused_it() -> None:
    ground = started(max_restarts=9)
    ground.refused = {(1, "new"), (1, "old")}
    with pytest.raises(SeveralErrors) as caught:
        ground.fleet.renew(NEW, lambda _: None)
    assert [fault.what for fault in caught.value.diagnostics()] == [
        "replica 1 refuses new",
        "replica 1 refuses old",
    ]
    ground.refused.clear()
    until(lambda: ground.served() == ["old"] * 3)


def test_the_last_ready_replica_is_not_taken_away() -> None:
    ground = started(count=1)
    with pytest.raises(EngineError, match="would be an outage"):
        ground.fleet.renew(OLD, lambda _: None)
    assert ground.steps == []


def test_a_second_renewal_is_refused() -> None:
    ground, told = started(), []

    def tell(text: str) -> None:
        if not told:
            told.append(text)
            with pytest.raises(ConfigError, match="another rolling restart"):
                ground.fleet.renew(OLD, lambda _: None)
            told.append("refused")

    ground.fleet.renew(OLD, tell)
    assert told[1:] == ["refused"]


def test_a_dead_replica_is_started_again_until_it_is_given_up() -> None:
    ground = started()
    ground.run()
    ground.refused = {(1, "old")}
    ground.engines[1].exit_status = 1
    until(lambda: "replica 1 is given up" in ground.out.getvalue())
    assert ground.out.getvalue().count("starting it again") == 2
    assert ground.served() == ["old", "-", "old"]
    # A renewal tries it again.
    ground.refused.clear()
    ground.fleet.renew(OLD, lambda _: None)
    assert ground.served() == ["old"] * 3


def test_a_fleet_without_a_replica_left_ends() -> None:
    ground = started(count=2, restart="never")
    for engine in ground.engines.values():
        engine.exit_status = 1
    with pytest.raises(SeveralErrors) as caught:
        ground.fleet.tend()
    assert caught.value.exit_code == 8


def test_a_dead_front_is_started_again_until_it_is_given_up() -> None:
    ground = started()
    ground.front_faults = [EngineError(f"HAProxy ended {number}") for number in range(3)]
    with pytest.raises(EngineError, match="HAProxy ended 0"):
        ground.fleet.tend()
    assert ground.steps.count("front") == 2
    assert ground.served() == ["old"] * 3


def test_a_stop_drains_all_and_ends_the_front_last() -> None:
    ground = started()
    ground.fleet.close()
    assert ground.steps[:3] == ["drain 0", "drain 1", "drain 2"]
    assert set(ground.steps[3:-1]) == {"stop 0", "stop 1", "stop 2"}
    assert ground.steps[-1] == "front stopped"
    with pytest.raises(EngineError, match="the server stops"):
        ground.fleet.replicas[0].start(OLD)
