"""Tell the service manager that started us what is true: ready, working, stopping (``sd_notify(3)``)."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import httpx

from decideploy.errors import ConfigError

# Of the phases that /ready tells, those in which a server does what it should.
_WORKING: Final = frozenset({"starting", "testing", "ready", "draining"})
_SIGNS_PER_LIMIT: Final = 4
_ANSWER_S: Final = 5.0


class ServiceManager:
    """The socket of ``NOTIFY_SOCKET``; without one nobody is told anything.

    ``watchdog_s`` is how long the manager waits for a sign before it ends this process, None when it does not
    watch it.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._address = environ.get("NOTIFY_SOCKET", "")
        self.watchdog_s = _watchdog_s(environ) if self._address else None

    def ready(self, status: str) -> None:
        """The service has started; ``status`` is one line for people."""
        self._tell(f"READY=1\nSTATUS={status}")

    def working(self) -> None:
        """A sign of work, for the watchdog."""
        self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """The service ends as it was asked to."""
        self._tell("STOPPING=1\nSTATUS=draining")

    def _tell(self, message: str) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as stream:
                stream.connect(address)
                stream.sendall(message.encode())
        except OSError as error:
            raise ConfigError(
                f"the service manager cannot be told {message.splitlines()[0]}: {error.strerror}",
                where=f"NOTIFY_SOCKET={self._address}",
                next_step="start it as a unit of Type=notify, or unset the variable",
            ) from error


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    """The limit of ``WATCHDOG_USEC``, if it is meant for this process."""
    limit = environ.get("WATCHDOG_USEC", "")
    meant = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(limit) / 1e6 if meant and limit.isdigit() and int(limit) else None


def works(base_url: str) -> bool:
    """Whether the server at ``base_url`` is ready, comes up or drains, by its own word."""
    try:
        reply = httpx.get(f"{base_url}/ready", timeout=_ANSWER_S, trust_env=False)
        phase = reply.json().get("phase")
    except (httpx.HTTPError, ValueError, AttributeError):
        return False
    return phase in _WORKING


class Watch:
    """Signs of work for ``manager``, given only while :func:`works`, or while an engine is brought up.

    That has limits of its own, and nothing answers meanwhile.
    """

    def __init__(self, manager: ServiceManager, working: Callable[[], bool]) -> None:
        self._manager, self._working = manager, working
        self._starting = threading.Event()
        self._ended = threading.Event()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """While an engine is brought up."""
        self._starting.set()
        try:
            yield
        finally:
            self._starting.clear()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Give the signs, as often as the manager needs them."""
        if self._manager.watchdog_s is None:
            yield
            return
        pause_s = self._manager.watchdog_s / _SIGNS_PER_LIMIT
        thread = threading.Thread(target=self._run, args=(pause_s,), name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _run(self, pause_s: float) -> None:
        while not self._ended.is_set():
            if self._starting.is_set() or self._working():
                self._manager.working()
            self._ended.wait(pause_s)
