"""All replicas and their front: started, kept alive, renewed one at a time, and stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Final, Protocol, TypeAlias

from rich.console import Console

from decideploy.errors import ConfigError, EngineError, Error, raise_together
from decideploy.serve.replicas.replica import Replica, Revision
from decideploy.serve.stages import ServeResult
from decideploy.serve.supervise import STEADY_S, Policy, pauses_between_starts

_POLL_S: Final = 0.25
# A request that HAProxy has sent but the replica has not yet seen; the replica's own drain has the rest.
_SETTLE_S: Final = 5.0
# HAProxy asks every second.
_ROTATION_S: Final = 30.0

Tell: TypeAlias = Callable[[str], None]


class FrontControl(Protocol):
    """What the fleet needs of :class:`FrontProcess`."""

    def start(self) -> None:
        """Listen."""
        ...

    def stop(self) -> None:
        """Hand over the last answers and end."""
        ...

    def check_alive(self) -> None:
        """EngineError when it has ended."""
        ...

    def drain(self, index: int) -> None:
        """Send nothing new to a replica."""
        ...

    def admit(self, index: int) -> None:
        """Send requests to a replica once it is found ready."""
        ...

    def wait_idle(self, index: int, timeout_s: float) -> bool:
        """Whether a replica has nothing in flight in time."""
        ...

    def wait_serving(self, index: int, timeout_s: float) -> bool:
        """Whether a replica is sent requests in time."""
        ...


class Fleet:
    """``replicas`` behind ``front``; ``policy`` is what each of them may do when its engine dies.

    :meth:`tend` runs in the main thread; :meth:`renew` in that of whoever asks for it.
    """

    def __init__(
        self, replicas: Sequence[Replica], front: FrontControl, policy: Policy, console: Console
    ) -> None:
        self.replicas = tuple(replicas)
        self.revision: Revision | None = None
        self._front, self._policy, self._console = front, policy, console
        self._front_pauses = pauses_between_starts(policy)
        self._front_at = time.monotonic()
        self._front_lock = threading.Lock()
        self._renewing = threading.Lock()
        self._closing = threading.Event()
        self._restarts: dict[int, threading.Thread] = {}

    @property
    def starts_something(self) -> bool:
        """Whether an engine is stopped or started now: that has limits of its own."""
        return any(replica.at_work.locked() for replica in self.replicas)

    def start(self, revision: Revision) -> tuple[ServeResult, ...]:
        """Start every replica, then the front; raises the first start's error, or those of all others.

        The first alone: it compiles what the others find in the caches, and tells a fault of the model once.
        """
        self.revision = revision
        first, *others = self.replicas
        results = [first.start(revision)]
        if others:
            results += self._start_at_once(others, revision)
        self._front.start()
        return tuple(results)

    def _start_at_once(self, replicas: Sequence[Replica], revision: Revision) -> list[ServeResult]:
        pool = ThreadPoolExecutor(len(replicas), thread_name_prefix="replica")
        try:
            starts = [pool.submit(replica.start, revision) for replica in replicas]
            wait(starts)
        except BaseException:
            for replica in replicas:
                replica.close()
            raise
        finally:
            pool.shutdown()
        raise_together([error for start in starts if isinstance(error := start.exception(), Error)])
        return [start.result() for start in starts]

    def tend(self) -> None:
        """Keep the front and every replica alive until an interrupt.

        EngineError when the front, or every replica, has died as often as the policy allows.
        """
        while True:
            self._tend_front()
            for replica in self.replicas:
                self._tend_replica(replica)
            self._check_any_left()
            time.sleep(_POLL_S)

    def _tend_front(self) -> None:
        try:
            self._front.check_alive()
        except EngineError as error:
            self._restart_front(error)

    def _restart_front(self, fault: EngineError) -> None:
        if time.monotonic() - self._front_at > STEADY_S:
            self._front_pauses = pauses_between_starts(self._policy)
        while (pause_s := next(self._front_pauses, None)) is not None:
            self._tell(f"{_first_line(fault)}: starting it again in {pause_s:g} s")
            time.sleep(pause_s)
            try:
                with self._front_lock:
                    self._front.stop()
                    self._front.start()
            except (ConfigError, EngineError) as error:
                fault = error if isinstance(error, EngineError) else EngineError(error.what)
                continue
            self._front_at = time.monotonic()
            self._tell("HAProxy answers again")
            return
        raise fault

    def _tend_replica(self, replica: Replica) -> None:
        if replica.fault is not None or not replica.at_work.acquire(blocking=False):
            return
        try:
            fault = replica.death()
        finally:
            replica.at_work.release()
        if fault is not None:
            self._schedule(replica, fault)

    def _schedule(self, replica: Replica, fault: Error) -> None:
        """Start ``replica`` again after a pause, in a thread: the others go on."""
        replica.fault = fault
        pause_s = replica.pause_s()
        if pause_s is None:
            self._tell(f"replica {replica.index} is given up: {fault}")
            return
        self._tell(f"replica {replica.index}: {_first_line(fault)}: starting it again in {pause_s:g} s")
        thread = threading.Thread(
            target=self._restart, args=(replica, pause_s), name=f"restart-{replica.index}", daemon=True
        )
        self._restarts[replica.index] = thread
        thread.start()

    def _restart(self, replica: Replica, pause_s: float) -> None:
        with replica.at_work:
            if replica.ready:
                # Somebody renewed it meanwhile.
                return
            replica.stop()
            if self._closing.wait(pause_s):
                return
            try:
                assert replica.revision is not None
                replica.start(replica.revision)
            except Error as error:
                if not self._closing.is_set():
                    self._schedule(replica, error)
                return
        self._tell(f"replica {replica.index}: ready again")

    def _check_any_left(self) -> None:
        given_up = [replica.fault for replica in self.replicas if not self._has_hope(replica)]
        if len(given_up) == len(self.replicas):
            raise_together([fault for fault in given_up if fault is not None])

    def _has_hope(self, replica: Replica) -> bool:
        thread = self._restarts.get(replica.index)
        return replica.fault is None or replica.at_work.locked() or (thread is not None and thread.is_alive())

    def renew(self, revision: Revision, tell: Tell) -> None:
        """Stop and start the replicas one at a time, with ``revision``; ``tell`` is told each step.

        The first one that does not come back ends it with its error. Was ``revision`` a new one, every
        replica that has it gets the old one back; else it is started again as after a death.

        Raises ConfigError when another renewal is under way, EngineError when no other replica is ready.
        """
        if not self._renewing.acquire(blocking=False):
            raise ConfigError(
                "another rolling restart is under way", next_step="wait until it has ended, then ask again"
            )
        try:
            self._renew_all(revision, tell)
        finally:
            self._renewing.release()

    def _renew_all(self, revision: Revision, tell: Tell) -> None:
        before = self.revision
        assert before is not None
        renewed: list[Replica] = []
        for replica in self.replicas:
            try:
                self._renew(replica, revision, tell)
            except Error as error:
                if revision is before:
                    self._leave_to_restarts(replica, error)
                else:
                    changed = [one for one in (replica, *reversed(renewed)) if one.revision is revision]
                    self._roll_back(changed, before, error, tell)
                raise
            renewed.append(replica)
        self.revision = revision

    def _roll_back(self, replicas: Sequence[Replica], before: Revision, error: Error, tell: Tell) -> None:
        """Give ``before`` back to ``replicas``; what fails in that is raised beside ``error``."""
        tell(f"{_first_line(error)}: back to {before.model}")
        faults = [error]
        for replica in replicas:
            # From now on it is the old one that is started again, whatever happens.
            replica.revision = before
            try:
                self._renew(replica, before, tell)
            except Error as fault:
                self._leave_to_restarts(replica, fault)
                faults.append(fault)
        if len(faults) > 1:
            raise_together(faults)

    def _leave_to_restarts(self, replica: Replica, fault: Error) -> None:
        if not replica.ready and not self._closing.is_set():
            self._schedule(replica, fault)

    def _renew(self, replica: Replica, revision: Revision, tell: Tell) -> None:
        name = f"replica {replica.index}"
        with replica.at_work:
            self._require_another(replica)
            tell(f"{name}: draining")
            try:
                with self._front_lock:
                    self._front.drain(replica.index)
                self._front.wait_idle(replica.index, _SETTLE_S)
                replica.stop()
                tell(f"{name}: stopped; starting {revision.model}")
                replica.forgive()
                replica.start(revision)
            finally:
                # Its own checks keep it out until it is ready; without HAProxy its next start admits it.
                with suppress(EngineError), self._front_lock:
                    self._front.admit(replica.index)
        if not self._front.wait_serving(replica.index, _ROTATION_S):
            raise EngineError(
                f"{name} has passed its self-test, and HAProxy does not find it ready",
                next_step=f"ask it: /replicas/{replica.index}/ready",
            )
        tell(f"{name}: ready, and serving again")

    def _require_another(self, replica: Replica) -> None:
        if not any(other.ready for other in self.replicas if other is not replica):
            raise EngineError(
                f"no other replica than number {replica.index} is ready: to renew it would be an outage",
                next_step="wait until another one is, or restart `decideploy serve` where one may be had",
            )

    def close(self) -> None:
        """Let every replica finish what is in flight, then the front; an interrupt hastens it."""
        self._closing.set()
        # Not in the main thread, where an interrupt could come between any two steps.
        thread = threading.Thread(target=self._close, name="close")
        thread.start()
        while thread.is_alive():
            try:
                thread.join()
            except KeyboardInterrupt:
                for replica in self.replicas:
                    replica.hasten()

    def _close(self) -> None:
        for replica in self.replicas:
            # A front that has died drains nobody; the replicas refuse by themselves.
            with suppress(EngineError), self._front_lock:
                self._front.drain(replica.index)
        with ThreadPoolExecutor(len(self.replicas), thread_name_prefix="stop") as pool:
            for replica in self.replicas:
                pool.submit(replica.close)
        self._front.stop()

    def _tell(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _first_line(error: Error) -> str:
    return error.what.splitlines()[0]
