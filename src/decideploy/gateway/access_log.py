"""One JSON line for each request: who, what, how it ended and how long it took; never a word of its text."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import queue
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from decideploy.errors import ConfigError

# Beyond this many unwritten lines the disk or the pipe does not keep up, and lines are dropped, not requests.
_BACKLOG_LINES = 10_000


class _DroppingQueueHandler(logging.handlers.QueueHandler):
    """``dropped`` counts the lines for which there was no room."""

    dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record


class AccessLog:
    """Writes lines to ``target``, a file's path or an open descriptor's number, from a thread of its own."""

    def __init__(self, target: Path | int | TextIO) -> None:
        self._stream = _open(target)
        backlog: queue.Queue[logging.LogRecord] = queue.Queue(_BACKLOG_LINES)
        self._queue = _DroppingQueueHandler(backlog)
        self._listener = logging.handlers.QueueListener(backlog, logging.StreamHandler(self._stream))
        self._listener.start()

    def write(self, entry: Mapping[str, Any]) -> None:
        """Write ``entry`` after the time; values that are None are left out."""
        told = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry}
        if self._queue.dropped:
            told["dropped_lines"], self._queue.dropped = self._queue.dropped, 0
        line = json.dumps({name: value for name, value in told.items() if value is not None})
        self._queue.handle(logging.makeLogRecord({"msg": line, "args": None}))

    def close(self) -> None:
        """Write what is left."""
        self._listener.stop()
        self._stream.close()


def _open(target: Path | int | TextIO) -> TextIO:
    if not isinstance(target, int | Path):
        return target
    try:
        # A copy of the descriptor: the engine puts its own prefix before every line of sys.stdout.
        return open(os.dup(target) if isinstance(target, int) else target, "a", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"the access log cannot be written: {error.strerror}",
            where=str(target),
            next_step="name a file in a writable folder with --access-log",
        ) from error
