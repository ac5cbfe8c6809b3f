"""What the engine's log says: facts to compare with the plan, and the likely cause of a death."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from threading import Lock, Thread
from typing import BinaryIO

from decideploy.errors import ConfigError
from decideploy.plan import Observed

_TAIL_LINES = 40
_BLOCK_LINES = 15
_CHUNK_BYTES = 64 * 1024
_LINE_BYTES = 8 * 1024
_GIB = 1024**3

_MOE_BACKEND = re.compile(r"Using '?(?P<name>\w[\w ]{0,40}?)'? (?:\w{1,40} )?MoE backend")
_KV_TOKENS = re.compile(r"KV cache size: (?P<tokens>\d[\d,]{0,20}) tokens")
_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
_KV_GIB = re.compile(rf"(?:Available KV cache memory: |Explicitly set \()(?P<gib>{_NUMBER})")
_WEIGHTS_GIB = re.compile(rf"Model loading took (?P<weights>{_NUMBER}) GiB")
_GRAPHS_GIB = re.compile(rf"CUDA graph pool memory: (?P<graphs>{_NUMBER}) GiB")
_INIT_S = re.compile(rf"init engine \(.{{1,80}}\) took (?P<init>{_NUMBER}) s")
_FACTS = (_MOE_BACKEND, _KV_TOKENS, _KV_GIB, _WEIGHTS_GIB, _GRAPHS_GIB, _INIT_S)

# vLLM puts its process before the level: "(EngineCore pid=7) ERROR 12-31 23:59:59 [core.py:1] …".
_PROCESS = r"^(?:\([^()]{1,60}\) ?)?"
_LEVEL = re.compile(_PROCESS + r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
_OPENS_ERROR = re.compile(
    _PROCESS + r"(?:Traceback \(most recent call last\)|[\w.]{0,80}(?:Error|Exception)\b|Fatal Python error|"
    r"terminate called|[\w./ -]{1,200}: error: |\S*python[\d.]*: |cannot run )"
)
# What Python's extension modules print at every exit, clean or not.
_NOISE = ("nanobind", "leaked")

# The latest line that matches wins: what an engine survived comes before what ended it.
_CAUSES = (
    (
        re.compile(r"No space left on device|Bus error"),
        "a disk or /dev/shm is full: check `df` and --shm-size",
    ),
    (
        re.compile(r"CUDA out of memory|OutOfMemoryError|No available memory for the cache blocks"),
        "the device ran out of memory: stop what else holds it (`nvidia-smi`), or use a card with more",
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
    (
        re.compile(r"No module named '?vllm'?\)?$"),
        "vLLM is not installed in this Python: install the built wheel",
    ),
    (re.compile(r"No module named"), "a dependency of vLLM is missing: install the lock's requirements"),
)


def unwritable(path: Path, error: OSError) -> ConfigError:
    """The error of a state folder that does not take ``path``."""
    return ConfigError(
        f"cannot write to the state folder: {error.strerror or error}",
        where=str(path),
        next_step="set DECIDEPLOY_HOME to a writable folder with free space",
    )


class EngineLog:
    """Copies the engine's output to a file as it comes, and keeps its last lines and its facts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._block: deque[str] = deque(maxlen=_BLOCK_LINES)
        self._block_ended = False
        self._in_error = False
        self._cause = ""
        self._found: dict[str, str] = {}
        self._lock = Lock()
        self._thread: Thread | None = None

    def prepare(self) -> None:
        """Make the folder and an empty file; the log of the start before is kept beside it. ConfigError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                self.path.replace(self.path.with_suffix(".previous.log"))
            self.path.touch()
        except OSError as error:
            raise unwritable(self.path, error) from error

    def follow(self, stream: BufferedReader) -> None:
        """Copy ``stream`` from a thread until it ends."""
        self._thread = Thread(target=self._copy, args=(stream,), name="engine-log", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait until the stream has ended, at most ``timeout_s``."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def tail(self, lines: int = _TAIL_LINES) -> tuple[str, ...]:
        """The last lines, oldest first, without what every engine prints as it ends."""
        with self._lock:
            return tuple(self._tail)[-lines:]

    @property
    def first_error(self) -> tuple[str, ...]:
        """The end of the first run of error lines: what went wrong before all that followed from it."""
        with self._lock:
            return tuple(self._block)

    @property
    def cause(self) -> str:
        """The likely cause of a death with its remedy, empty when no line tells."""
        with self._lock:
            return self._cause

    @property
    def facts(self) -> Observed:
        """What the log has told so far."""
        with self._lock:
            found = dict(self._found)
        tokens, init_s = found.get("tokens"), found.get("init")
        return Observed(
            moe_backend=found.get("name"),
            weights_bytes=_bytes(found.get("weights")),
            kv_cache_bytes=_bytes(found.get("gib")),
            kv_cache_tokens=int(tokens.replace(",", "")) if tokens else None,
            graph_bytes=_bytes(found.get("graphs")),
            init_s=float(init_s) if init_s else None,
        )

    def _copy(self, stream: BufferedReader) -> None:
        """Read to the end whatever happens to the file: an engine whose pipe is full stands still."""
        with stream, ExitStack() as closing:
            file = self._open(closing)
            pending = b""
            while chunk := stream.read1(_CHUNK_BYTES):
                file = self._write(file, chunk)
                *lines, pending = _cut(pending + chunk)
                for line in lines:
                    self._take(_shown(line))
            if pending:
                self._take(_shown(pending))

    def _open(self, closing: ExitStack) -> BinaryIO | None:
        try:
            # Unbuffered, so that closing it has nothing left to write and cannot fail for a full disk.
            return closing.enter_context(self.path.open("ab", buffering=0))
        except OSError as error:
            self._note(error)
            return None

    def _write(self, file: BinaryIO | None, chunk: bytes) -> BinaryIO | None:
        """Write ``chunk``; returns None once the file takes no more."""
        try:
            while file is not None and chunk:
                chunk = chunk[file.write(chunk) :]
        except OSError as error:
            self._note(error)
            return None
        return file

    def _note(self, error: OSError) -> None:
        with self._lock:
            self._tail.append(f"(the log file ends here: {error.strerror or error}; the engine goes on)")

    def _take(self, line: str) -> None:
        with self._lock:
            if not any(word in line for word in _NOISE):
                self._tail.append(line)
            for pattern in _FACTS:
                if match := pattern.search(line):
                    # The first line names the choice; later ones name its classes.
                    self._found = match.groupdict() | self._found
            self._take_error(line)

    def _take_error(self, line: str) -> None:
        """Lines without a level of their own belong to the one before: a traceback, a wrapped message."""
        if level := _LEVEL.match(line):
            self._in_error = level["level"] in ("ERROR", "CRITICAL")
        elif _OPENS_ERROR.match(line):
            self._in_error = True
        if not self._in_error:
            self._block_ended = bool(self._block)
            return
        if not self._block_ended:
            self._block.append(line)
        self._cause = next((remedy for pattern, remedy in _CAUSES if pattern.search(line)), self._cause)


def _bytes(gib: str | None) -> int | None:
    return None if gib is None else round(float(gib) * _GIB)


def _cut(text: bytes) -> Iterator[bytes]:
    """Lines of ``text``, the last one unfinished; lines past the limit come in pieces."""
    for line in text.split(b"\n"):
        yield line[:_LINE_BYTES]
        yield from (line[at : at + _LINE_BYTES] for at in range(_LINE_BYTES, len(line), _LINE_BYTES))


def _shown(line: bytes) -> str:
    """``line`` as a terminal leaves it: a progress bar writes over itself."""
    return line.decode("utf-8", "replace").rstrip().rpartition("\r")[2]
