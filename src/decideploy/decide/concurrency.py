"""Awaitables that belong together: all of them, or the first error and none."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def all_of(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results in order. The first error cancels the rest, waits for them, and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
