"""Start, watch and stop the engine's processes."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from decideploy.errors import ConfigError, EngineError
from decideploy.serve.engine_log import EngineLog

_REAPER = Path(__file__).with_name("reaper.py")
_POLL_S = 0.25
_SIGNAL_CHECK_S = 1.0
_KILL_WAIT_S = 15.0
# What a stop may take that was asked for twice.
_HASTE_S = 5.0
# What the engine's processes may take once the last answer is out: they hold nothing that a kill would lose,
# and their interpreters alone take longer to unload what they loaded.
_TEARDOWN_S = 5.0
_SHOWN_LINES = 15
_ENGINE_MODULE = "vllm.entrypoints.cli.main"
_LAST_PORT = 65535


def check_port_number(port: int) -> None:
    """ConfigError unless ``port`` is one that a server can be reached at."""
    if not 1 <= port <= _LAST_PORT:
        raise ConfigError(
            f"port {port} does not exist",
            where="--port",
            next_step=f"choose a --port from 1 to {_LAST_PORT}",
        )


def check_port(host: str, port: int) -> None:
    """Take ``host``:``port`` and let go, so that a taken port is found before a long load.

    Raises:
        ConfigError: another serve holds the port or is about to, something listens there, or the address is
            none of this machine's.
    """
    check_port_number(port)
    claim_port(host, port).close()
    _bind(host, port)


def claim_port(host: str, port: int) -> socket.socket:
    """Hold ``port`` against other serves until the socket is closed; ConfigError when one holds it.

    The engine binds only after its load. The kernel frees the name when its holder dies, however it dies.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(f"\0decideploy-serve-{port}")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            # A sandbox without abstract names loses this early warning, no more.
            return claim
        claim.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: another `decideploy serve` holds the port",
            where="--port",
            next_step="stop that server or choose another --port",
        ) from error
    return claim


def _bind(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the server does: a port whose old connections linger in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except (OSError, OverflowError, TypeError, ValueError) as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}",
                where="--host, --port",
                next_step=_bind_advice(error, port),
            ) from error


def _bind_advice(error: Exception, port: int) -> str:
    if not isinstance(error, OSError) or isinstance(error, socket.gaierror):
        return "give --host an address of this machine, or a name that resolves to one (`getent hosts NAME`)"
    if error.errno == errno.EADDRINUSE:
        return f"stop what listens there (`ss -ltnp 'sport = :{port}'`) or choose another --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return "give --host an address of this machine (`ip -brief address`), or 0.0.0.0 for all of them"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "choose a --port above 1023"
    return "choose another --host or --port"


def engine_command(argv: Sequence[str]) -> tuple[str, ...]:
    """``vllm serve …`` of a plan by this very Python, whatever PATH or the working folder hold."""
    if not argv or argv[0] != "vllm":
        return tuple(argv)
    return (sys.executable, "-P", "-m", _ENGINE_MODULE, *argv[1:])


def engine_environment(env: Mapping[str, str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """``env`` over this process's environment, less what would put another vllm before the checked one."""
    merged = {**(os.environ if environ is None else environ), **env, "PYTHONSAFEPATH": "1"}
    merged.pop("PYTHONPATH", None)
    return merged


class EngineProcess:
    """The engine in its own session, under a reaper that kills every process of it when this one goes.

    A context manager: leaving it stops the engine. ``base_url`` is where it will answer. ``keep_fds`` are
    descriptors that it inherits. ``stop_signal`` is what asks it to drain, and ``name`` what errors call it.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        host: str,
        port: int,
        log_path: Path,
        drain_s: float = 30.0,
        keep_fds: Sequence[int] = (),
        stop_signal: signal.Signals = signal.SIGTERM,
        name: str = "the engine",
    ) -> None:
        self.command = engine_command(argv)
        self.base_url = f"http://{reachable_host(host)}:{port}"
        self.log = EngineLog(log_path)
        self._env = engine_environment(env)
        self._host, self._port = host, port
        self._drain_s = drain_s
        self._keep_fds = tuple(keep_fds)
        self._stop_signal = stop_signal
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._claim: socket.socket | None = None

    def start(self) -> None:
        """Take the port and make the log's folder, then start; returns before the engine is ready.

        Raises:
            ConfigError: the port is taken, or the log cannot be written.
        """
        check_port_number(self._port)
        self._claim = claim_port(self._host, self._port)
        try:
            _bind(self._host, self._port)
            self.log.prepare()
            self._process = self._spawn()
        except BaseException:
            self._cut_lifeline()
            self._release_port()
            raise
        assert isinstance(self._process.stdout, BufferedReader)
        self.log.follow(self._process.stdout)

    def _spawn(self) -> subprocess.Popen[bytes]:
        read_end, self._lifeline = os.pipe()
        try:
            return subprocess.Popen(
                [sys.executable, "-I", str(_REAPER), str(read_end), *self.command],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(read_end, *self._keep_fds),
                start_new_session=True,
            )
        finally:
            os.close(read_end)

    @property
    def exit_status(self) -> int | None:
        """None while it runs; else its exit status, 128 + signal when it was killed."""
        return None if self._process is None else self._process.poll()

    def wait_ready(self, timeout_s: float) -> float:
        """Wait until the server answers, whatever it says; returns the seconds it took.

        It listens only after the load. Errors as in :meth:`wait_proven`, which waits for its self-test.
        """
        begin = time.monotonic()
        self._poll("/live", timeout_s, lambda _: True)
        return time.monotonic() - begin

    def wait_proven(self, timeout_s: float) -> dict[str, Any]:
        """Wait until the self-test inside the server has ended, either way; returns what ``/ready`` says.

        EngineError 503 at once when the engine dies, 504 after ``timeout_s``; both show the last log lines.
        """
        document: dict[str, Any] = self._poll("/ready", timeout_s, _has_verdict).json()
        return document

    def _poll(self, path: str, timeout_s: float, done: Callable[[httpx.Response], bool]) -> httpx.Response:
        deadline = time.monotonic() + timeout_s
        with httpx.Client(base_url=self.base_url, timeout=5.0, trust_env=False) as client:
            while time.monotonic() < deadline:
                self.check_alive()
                # A server that is loading or overloaded does not answer; whether it died is asked above.
                with suppress(httpx.HTTPError):
                    if done(reply := client.get(path)):
                        return reply
                time.sleep(_POLL_S)
        raise EngineError(
            f"{self._name} did not answer {path} within {timeout_s:.0f} s\n{self._last_lines()}",
            status=504,
            where=str(self.log.path),
            next_step=self.log.cause or "raise --startup-timeout if the log shows progress",
        )

    def wait(self) -> int:
        """Wait until the engine ends by itself; returns its exit status.

        Signal handlers run meanwhile, within a second: one that comes just before a wait without a limit, or
        that another thread takes, would not end that wait.
        """
        while (status := self._wait_quietly(_SIGNAL_CHECK_S)) is None:
            pass
        return status

    def check_alive(self) -> None:
        """EngineError 503 with the last log lines when the engine has ended."""
        status = self.exit_status
        if status is None:
            return
        self.log.wait(2.0)
        raise EngineError(
            f"{self._name} ended with {_status_text(status)}\n{self._last_lines()}",
            where=str(self.log.path),
            next_step=self.log.cause or _status_advice(status),
        )

    def stop(self) -> int | None:
        """SIGTERM, wait for the drain, kill what is left. Returns the exit status; may be called twice.

        A Ctrl-C during the drain hastens it: requests in flight are cut off.
        """
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._drain()
        self._cut_lifeline()
        if self._wait_quietly(_KILL_WAIT_S) is None:
            self._process.kill()
        status = self._process.wait()
        self._release_port()
        self.log.wait(2.0)
        return status

    def hasten(self) -> None:
        """Ask an engine that drains to finish nothing; from another thread than the one that stops it."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def _drain(self) -> None:
        assert self._process is not None
        try:
            self._process.send_signal(self._stop_signal)
            self._await_drained()
        except KeyboardInterrupt:
            # The second signal tells the server to finish nothing; a third interrupt leaves it to the kill.
            with suppress(KeyboardInterrupt):
                self._process.terminate()
                self._wait_quietly(_HASTE_S)

    def _await_drained(self) -> None:
        """Until it has ended, or ``drain_s`` are over, or it has answered all and torn down long enough."""
        deadline = time.monotonic() + self._drain_s
        closed = False
        while self._wait_quietly(_POLL_S) is None and time.monotonic() < deadline:
            if not closed and not _is_listening(self.base_url):
                closed, deadline = True, min(deadline, time.monotonic() + _TEARDOWN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _wait_quietly(self, timeout_s: float) -> int | None:
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def _cut_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _release_port(self) -> None:
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def _last_lines(self) -> str:
        last, first_error = self.log.tail(_SHOWN_LINES), self.log.first_error
        text = "\n".join(f"  | {line}" for line in last) or "  | (no output)"
        if set(first_error) <= set(last):
            return text
        return "\n".join(
            ("the first error:", *(f"  | {line}" for line in first_error), "the last lines:", text)
        )


def _is_listening(base_url: str) -> bool:
    url = httpx.URL(base_url)
    try:
        socket.create_connection((url.host, url.port or 0), timeout=1.0).close()
    except TimeoutError:
        # Busy: it has not closed its socket.
        return True
    except OSError:
        return False
    return True


def _has_verdict(reply: httpx.Response) -> bool:
    """Whether the self-test has ended; an answer that is none of the gateway's is not its verdict."""
    if reply.headers.get("content-type") != "application/json":
        return False
    return reply.json().get("phase") not in (None, "starting", "testing")


def reachable_host(host: str) -> str:
    """Where a client on this machine reaches a server bound to ``host``, as it stands in a URL."""
    if host in ("", "0.0.0.0"):
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host


def _status_text(status: int) -> str:
    if status <= 128:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(status - 128).name}"
    except ValueError:
        return f"exit status {status}"


def _status_advice(status: int) -> str:
    if status == 128 + signal.SIGKILL:
        return "it was killed from outside, most often for memory: `dmesg | grep -i oom` tells"
    return "the first error in the log names the cause"
