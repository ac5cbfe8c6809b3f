"""Waiting for what must come about, however slow and busy the machine; and ports that stay free meanwhile."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Callable

import psutil

# Far above what anything takes that works: how long a failure is waited for, never how long a success takes.
PATIENCE_S = 120.0
# Below the ports that Linux gives to outgoing connections (32768 up), one of which could come in between.
_PORTS = range(20_000, 32_000)


def until(
    condition: Callable[[], object],
    within_s: float = PATIENCE_S,
    *,
    pause_s: float = 0.02,
    told: Callable[[], object] = lambda: "",
) -> float:
    """Seconds until ``condition()`` held; a failure after ``within_s`` shows what ``told()`` gives."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < within_s, f"not within {within_s:g} s: {told()}"
        time.sleep(pause_s)
    return time.monotonic() - begin


async def turns_true(condition: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """:func:`until` beside the tasks of an event loop."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


def free_port() -> int:
    """A port of 127.0.0.1 where nobody listens, and that no connection is given by itself."""
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def is_free(port: int) -> bool:
    """Whether a server could listen there now; old connections in TIME_WAIT do not keep it from that."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not yet collected does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
