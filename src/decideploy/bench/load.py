"""Closed and open loops over one asynchronous call."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

OK: Final = "200"

# Sends one request; gives the HTTP status as text, or the name of what kept it from having one.
Call: TypeAlias = Callable[[], Awaitable[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One request: when it was due after the start, how long it took from then, how late it was sent."""

    due_s: float
    latency_s: float
    late_s: float
    status: str


async def closed_loop(call: Call, *, clients: int, duration_s: float) -> list[Sample]:
    """``clients`` that each send their next request when the last is answered, for ``duration_s``.

    What is under way at the end is waited for.
    """
    samples: list[Sample] = []
    start = time.perf_counter()

    async def client() -> None:
        while (due_s := time.perf_counter() - start) < duration_s:
            samples.append(await timed(call, start, due_s))

    await asyncio.gather(*(client() for _ in range(clients)))
    return samples


async def open_loop(call: Call, *, rate_per_s: float, duration_s: float, seed: int) -> list[Sample]:
    """Requests at random times, ``rate_per_s`` of them on average (Poisson), whatever has been answered.

    A latency counts from the time at which its request was due: a server that falls behind makes the later
    requests wait, and that wait is part of what a user sees.
    """
    start = time.perf_counter()
    generator, due_s = random.Random(seed), 0.0
    tasks: list[asyncio.Task[Sample]] = []
    while (due_s := due_s + generator.expovariate(rate_per_s)) < duration_s:
        await asyncio.sleep(max(0.0, start + due_s - time.perf_counter()))
        tasks.append(asyncio.create_task(timed(call, start, due_s)))
    return list(await asyncio.gather(*tasks))


async def timed(call: Call, start: float, due_s: float) -> Sample:
    """One call that was due ``due_s`` after ``start``."""
    late_s = time.perf_counter() - start - due_s
    status = await call()
    latency_s = time.perf_counter() - start - due_s
    return Sample(due_s=due_s, latency_s=latency_s, late_s=late_s, status=status)
