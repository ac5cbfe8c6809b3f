"""How much runs at once, and how much waits behind it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

_LONGEST_RETRY_S: Final = 60
_SMOOTHING: Final = 0.1


class Admission:
    """``max_concurrency`` slots and a queue of ``max_queue``, first come, first served; on one event loop."""

    def __init__(self, max_concurrency: int, max_queue: int) -> None:
        self._max_concurrency, self._max_queue = max_concurrency, max_queue
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._mean_s = 0.0
        self.running = 0

    @property
    def queued(self) -> int:
        """How many wait for a slot."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether one more would find no place, not even to wait."""
        return self.running >= self._max_concurrency and self.queued >= self._max_queue

    @property
    def retry_after_s(self) -> int:
        """When a slot is likely to be free, from how long requests held theirs lately."""
        ahead = (self.queued + 1) / self._max_concurrency
        return min(max(math.ceil(self._mean_s * ahead), 1), _LONGEST_RETRY_S)

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot; waits for one."""
        await self._acquire()
        begin = time.monotonic()
        try:
            yield
        finally:
            self._mean_s += _SMOOTHING * (time.monotonic() - begin - self._mean_s)
            self._release()

    async def _acquire(self) -> None:
        if self.running < self._max_concurrency:
            self.running += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._waiting.remove(waiter)
            else:
                # The slot came in the same turn of the loop as the cancellation.
                self._release()
            raise

    def _release(self) -> None:
        """Hand the slot to the first that still waits."""
        for waiter in self._waiting:
            if not waiter.done():
                self._waiting.remove(waiter)
                waiter.set_result(None)
                return
        self.running -= 1
