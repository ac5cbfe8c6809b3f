"""``decideploy serve`` as a container's child: proven before traffic, missed at once, drained at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from decideploy.deploy.modal.config import SERVE_STOP_S, ModalConfig
from decideploy.errors import EngineError

PORT: Final = 8000

_REAPER: Final = Path(__file__).parents[2] / "serve" / "reaper.py"
_KILL_WAIT_S: Final = 15.0


def serve_command(config: ModalConfig, model: Path) -> tuple[str, ...]:
    """``decideploy serve`` of the verified folder ``model``, by this very Python."""
    return (
        *(sys.executable, "-m", "decideploy", "serve", str(model)),
        *("--json", "--host", "0.0.0.0", "--port", str(PORT)),
        *("--startup-timeout", str(config.engine_timeout_s)),
    )


class ServedModel:
    """One ``decideploy serve``. ``start`` returns once its self-test passed; ``stop`` once it drained.

    ``on_death`` is called when it ends without having been asked to. A child that dies, or that outlives its
    parent's death, takes every process below it along: it runs under the reaper of ``decideploy.serve``.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        ready_timeout_s: float,
        stop_timeout_s: float = SERVE_STOP_S,
        env: Mapping[str, str] | None = None,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self.command = tuple(command)
        self.base_url = f"http://127.0.0.1:{PORT}"
        self._env = {**os.environ, **(env or {})}
        self._ready_timeout_s, self._stop_timeout_s = ready_timeout_s, stop_timeout_s
        self._on_death = on_death
        self._process: subprocess.Popen[str] | None = None
        self._lifeline = -1
        self._ready, self._ended, self._stopping = threading.Event(), threading.Event(), threading.Event()
        self._document: dict[str, Any] = {}
        self._watcher: threading.Thread | None = None

    def start(self) -> dict[str, Any]:
        """Start and wait until it serves; returns the document that it printed when it was ready.

        EngineError at once when it ends first, and after ``ready_timeout_s``. Nothing is left running when
        this raises, whatever it raises.
        """
        try:
            self._spawn()
            self._wait_ready()
        except BaseException:
            self._end()
            raise
        return self._document

    def prove(self) -> None:
        """Run the self-test against the running server; its error stops the container."""
        from decideploy.gateway.keys import read_keys  # noqa: PLC0415
        from decideploy.serve import selftest  # noqa: PLC0415

        key = next(iter(read_keys(None)), None)
        selftest(self.base_url, api_key=key).raise_for_failures()

    def stop(self) -> None:
        """SIGTERM, upon which it drains. EngineError when it had died before it was asked to stop."""
        died = self._ended.is_set() and not self._stopping.is_set()
        status = self._end()
        if died:
            raise EngineError(
                f"the server ended by itself with exit status {status}",
                where="decideploy serve",
                next_step="the lines above name the cause",
            )

    def _spawn(self) -> None:
        read_end, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(_REAPER), str(read_end), *self.command],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=(read_end,),
                start_new_session=True,
            )
        finally:
            os.close(read_end)
        self._watcher = threading.Thread(target=self._watch, args=(self._process,), daemon=True)
        self._watcher.start()

    def _watch(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            self._read_until_ready(lines)
        process.wait()
        self._ended.set()
        served = self._document != {}
        self._ready.set()
        if served and not self._stopping.is_set():
            print(
                f"the server ended by itself with exit status {process.returncode}",
                file=sys.stderr,
                flush=True,
            )
            self._on_death()

    def _read_until_ready(self, lines: IO[str]) -> None:
        for line in lines:
            document = _ready_document(line)
            if document is None:
                print(line, end="", flush=True)
            else:
                self._document = document
                self._ready.set()

    def _wait_ready(self) -> None:
        assert self._process is not None
        if not self._ready.wait(self._ready_timeout_s):
            raise EngineError(
                f"the server was not ready within {self._ready_timeout_s:.0f} s",
                status=504,
                where="startup_timeout_s",
                next_step="raise it if the lines above show progress",
            )
        if not self._document or self._ended.is_set():
            raise EngineError(
                f"the server ended with exit status {self._process.wait()} before it was ready",
                where="decideploy serve",
                next_step="the lines above name the cause",
            )

    def _end(self) -> int | None:
        self._stopping.set()
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.terminate()
            self._wait_quietly(self._stop_timeout_s)
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        if self._wait_quietly(_KILL_WAIT_S) is None:
            self._process.kill()
        return self._process.wait()

    def _wait_quietly(self, timeout_s: float) -> int | None:
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None


def _ready_document(line: str) -> dict[str, Any] | None:
    """The document that ``decideploy serve --json`` prints when it is ready; None for any other line."""
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) and document.get("base_url") else None
