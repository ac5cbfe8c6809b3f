"""What the engine's log says: facts to compare with the plan, and the likely cause of a death."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import IO

_TAIL_LINES = 40
_GIB = 1024**3

_MOE_BACKEND = re.compile(r"Using '?(?P<name>[\w ]+?)'? (?:\w+ )?MoE backend")
_KV_TOKENS = re.compile(r"KV cache size: (?P<tokens>[\d,]+) tokens")
_KV_GIB = re.compile(r"(?:Available KV cache memory: |Explicitly set \()(?P<gib>[\d.]+)")

# First match wins: causes come before the consequences that other processes log.
_CAUSES = (
    (
        re.compile(r"No space left on device|Bus error"),
        "a disk or /dev/shm is full: check `df` and --shm-size",
    ),
    (
        re.compile(r"CUDA out of memory|OutOfMemoryError|No available memory for the cache blocks"),
        "the device ran out of memory: lower gpu_memory_utilization or max_model_len, or stop other holders",
    ),
    (
        re.compile(r"Available memory on node .* is less than requested|Cannot allocate memory|MemoryError"),
        "the host has less free memory than the plan saw: stop other processes and try again",
    ),
    (
        re.compile(r"Free memory on device .* is less than desired"),
        "another process took GPU memory after the probe: stop it and try again",
    ),
    (
        re.compile(r"driver version is insufficient|forward compatibility was attempted"),
        "the NVIDIA driver is older than the CUDA build needs: `decideploy probe` names the version",
    ),
    (
        re.compile(r"vocab size must be|expected target modules in"),
        "this vLLM lacks the lm_head LoRA patch: install the wheel of `decideploy build`",
    ),
    (re.compile(r"Unknown vLLM environment variable"), "unset the VLLM_ variable that the line names"),
    (re.compile(r"Address already in use"), "another process took the port: choose another --port"),
    (
        re.compile(r"unrecognized arguments|error: argument"),
        "this vLLM is not release 0.30: check `decideploy doctor`",
    ),
    (re.compile(r"No module named '?vllm"), "vLLM is not installed in this Python: install the built wheel"),
    (re.compile(r"No module named"), "a dependency of vLLM is missing: install the lock's requirements"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LogFacts:
    """What was found so far; None until the engine has logged it."""

    moe_backend: str | None = None
    kv_cache_tokens: int | None = None
    kv_cache_bytes: int | None = None


class EngineLog:
    """Copies the engine's output to a file as it comes, and keeps its last lines and its facts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._cause = ""
        self._found: dict[str, str] = {}
        self._lock = Lock()
        self._thread: Thread | None = None

    def follow(self, stream: IO[bytes]) -> None:
        """Copy ``stream`` from a thread until it ends. The log of the start before is kept beside it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self.path.replace(self.path.with_suffix(".previous.log"))
        self._thread = Thread(target=self._copy, args=(stream,), name="engine-log", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait until the stream has ended, at most ``timeout_s``."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def tail(self, lines: int = _TAIL_LINES) -> tuple[str, ...]:
        """The last lines, oldest first."""
        with self._lock:
            return tuple(self._tail)[-lines:]

    @property
    def cause(self) -> str:
        """The likely cause of a death with its remedy, empty when no line tells."""
        with self._lock:
            return self._cause

    @property
    def facts(self) -> LogFacts:
        """What the log has told so far."""
        with self._lock:
            found = dict(self._found)
        tokens, gib = found.get("tokens"), found.get("gib")
        return LogFacts(
            moe_backend=found.get("name"),
            kv_cache_tokens=int(tokens.replace(",", "")) if tokens else None,
            kv_cache_bytes=round(float(gib) * _GIB) if gib else None,
        )

    def _copy(self, stream: IO[bytes]) -> None:
        with stream, self.path.open("ab") as file:
            for raw in stream:
                file.write(raw)
                file.flush()
                self._take(raw.decode("utf-8", "replace").rstrip())

    def _take(self, line: str) -> None:
        with self._lock:
            self._tail.append(line)
            for pattern in (_MOE_BACKEND, _KV_TOKENS, _KV_GIB):
                if match := pattern.search(line):
                    # The first line names the choice; later ones name its classes.
                    self._found = match.groupdict() | self._found
            if not self._cause:
                self._cause = next((remedy for pattern, remedy in _CAUSES if pattern.search(line)), "")
