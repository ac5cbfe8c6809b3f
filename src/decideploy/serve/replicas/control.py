"""How ``decideploy rolling-restart`` reaches the ``serve --replicas`` that it is meant for.

Over a Unix socket in a folder that only the server's user can enter: one line of JSON asks, one line a step
answers, the last one holds the outcome.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from decideploy.errors import ConfigError, Diagnostic, Error
from decideploy.serve.replicas.paths import private_folder, socket_address

_SOCKET: Final = "control.sock"
_MOST_BYTES: Final = 64 * 1024


class RestartRequest(BaseModel):
    """Renew every replica; with ``model``, a folder or a hub id, by that one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    model: str | None = None
    revision: str | None = None
    adapter: Path | None = None
    golden: Path | None = None


class RestartReport(BaseModel):
    """What came of it: every replica serves ``model`` after ``seconds``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    model: str
    replicas: int
    seconds: float


class _Fault(BaseModel):
    exit_code: int
    diagnostics: tuple[Diagnostic, ...]


class _Line(BaseModel):
    """One line of the answer: a step, or the last one."""

    step: str | None = None
    report: RestartReport | None = None
    fault: _Fault | None = None


class ReportedError(Error):
    """An error that the server met, with its exit status and all its diagnostics."""

    def __init__(self, exit_code: int, diagnostics: tuple[Diagnostic, ...]) -> None:
        first = diagnostics[0]
        super().__init__(first.what, where=first.where, next_step=first.next_step)
        self.exit_code = exit_code
        self._diagnostics = diagnostics

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Those that the server told."""
        return self._diagnostics


Handle = Callable[[RestartRequest, Callable[[str], None]], RestartReport]


def run_folder(state_dir: Path, port: int) -> Path:
    """The private folder of the server at ``port``: its front's configuration and the two sockets."""
    return state_dir / "run" / f"front-{port}"


@contextmanager
def controlled(folder: Path, handle: Handle) -> Iterator[None]:
    """Let ``handle`` answer requests, each in a thread of its own."""
    path = private_folder(folder) / _SOCKET
    # Of a server that was killed: another one would hold the ports.
    path.unlink(missing_ok=True)
    with socket_address(path) as address, _Server(address, handle) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="control", daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            path.unlink(missing_ok=True)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    # Whoever waits for a renewal does not keep the server from its end.
    block_on_close = False

    def __init__(self, address: str, handle: Handle) -> None:
        super().__init__(address, _Connection)
        self.handle = handle


class _Connection(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        try:
            self._send(_Line(report=self.server.handle(self._request(), self._step)))
        except Error as error:
            fault = _Fault(exit_code=error.exit_code, diagnostics=tuple(error.diagnostics()))
            self._send(_Line(fault=fault))

    def _request(self) -> RestartRequest:
        try:
            return RestartRequest.model_validate_json(self.rfile.readline(_MOST_BYTES))
        except ValidationError as error:
            raise ConfigError(
                f"the server does not understand the request: {error.errors()[0]['msg']}",
                next_step="use the decideploy release that the server runs",
            ) from error

    def _step(self, text: str) -> None:
        self._send(_Line(step=text))

    def _send(self, line: _Line) -> None:
        """Tell the client; one that has left changes nothing."""
        try:
            self.wfile.write(line.model_dump_json(exclude_none=True).encode() + b"\n")
        except OSError:
            return


def ask_for_restart(
    state_dir: Path, port: int, request: RestartRequest, tell: Callable[[str], None]
) -> RestartReport:
    """Have the server at ``port`` renew its replicas; ``tell`` is told each step.

    Raises ConfigError when none is there, ReportedError with what the server met.
    """
    path = run_folder(state_dir, port) / _SOCKET
    try:
        with socket_address(path) as address, socket.socket(socket.AF_UNIX) as stream:
            stream.connect(address)
            stream.sendall(request.model_dump_json().encode() + b"\n")
            with stream.makefile("rb") as lines:
                return _read_answer(lines, tell)
    except OSError as error:
        raise ConfigError(
            f"no `decideploy serve --replicas` of this user serves port {port}: {error.strerror or error}",
            where=str(path),
            next_step="give its --port, and set DECIDEPLOY_HOME as it has it",
        ) from error


def _read_answer(lines: Any, tell: Callable[[str], None]) -> RestartReport:
    for text in lines:
        line = _Line.model_validate(json.loads(text))
        if line.step is not None:
            tell(line.step)
        if line.fault is not None:
            raise ReportedError(line.fault.exit_code, line.fault.diagnostics)
        if line.report is not None:
            return line.report
    raise ConfigError(
        "the server ended before the restart did", where="decideploy serve", next_step="its log has the cause"
    )
