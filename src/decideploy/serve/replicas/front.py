"""HAProxy itself: the program, its process, and what it is told and asked while it runs."""

from __future__ import annotations

import csv
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from decideploy.errors import ConfigError, EngineError
from decideploy.serve.engine_log import unwritable
from decideploy.serve.launch import EngineProcess, reachable_host
from decideploy.serve.replicas.haproxy import (
    ADMIN_SOCKET,
    BACKEND,
    STOP_S,
    Front,
    front_config,
    server_name,
)
from decideploy.serve.replicas.paths import private_folder, socket_address

_LEAST: Final = (2, 6)
_VERSION: Final = re.compile(r"HA-?Proxy version (?P<major>\d+)\.(?P<minor>\d+)\S*")
# Where packages put it, which the PATH of a user need not name.
_SYSTEM_FOLDERS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_ANSWER_S: Final = 5.0
_START_S: Final = 15.0
_POLL_S: Final = 0.1
_CONFIG: Final = "haproxy.cfg"
_REMEDY: Final = (
    f"install HAProxy {_LEAST[0]}.{_LEAST[1]} or newer (`apt-get install haproxy`), "
    "or serve without --replicas"
)

AdminState = Literal["ready", "drain"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerState:
    """How HAProxy sees one replica: whether it sends requests there, and how many are there now."""

    serves: bool
    sessions: int


def find_haproxy(environ: Mapping[str, str] | None = None) -> Path:
    """The program; ConfigError when there is none, or one that is too old."""
    path = (os.environ if environ is None else environ).get("PATH", os.defpath)
    found = shutil.which("haproxy", path=os.pathsep.join((path, *_SYSTEM_FOLDERS)))
    if found is None:
        raise ConfigError("HAProxy is not installed", where="--replicas", next_step=_REMEDY)
    told = _run([found, "-v"]).stdout
    version = _VERSION.search(told)
    if version is None:
        raise ConfigError(
            f"this program tells no version of HAProxy: {told[:80]!r}", where=found, next_step=_REMEDY
        )
    if (int(version["major"]), int(version["minor"])) < _LEAST:
        raise ConfigError(f"{version[0]} is too old", where=found, next_step=_REMEDY)
    return Path(found)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise ConfigError(f"cannot be run: {error.strerror}", where=command[0], next_step=_REMEDY) from error


class FrontProcess:
    """HAProxy for ``front`` in the private folder ``folder``; leaving the context stops it.

    Its log is ``log_path``: what it repeated, and what no replica answered.
    """

    def __init__(self, program: Path, front: Front, folder: Path, log_path: Path) -> None:
        self._program, self._front = program, front
        self._folder, self._log_path = folder, log_path
        self._process: EngineProcess | None = None
        self._drained: set[int] = set()

    @property
    def base_url(self) -> str:
        """Where the replicas are reached together."""
        return f"http://{reachable_host(self._front.host)}:{self._front.port}"

    def check(self) -> None:
        """Write the configuration and let HAProxy read it; ConfigError when it finds fault with it."""
        path = self._folder / _CONFIG
        try:
            private_folder(self._folder)
            path.write_text(front_config(self._front), encoding="utf-8")
        except OSError as error:
            raise unwritable(path, error) from error
        done = _run([str(self._program), "-c", "-f", str(path)])
        if done.returncode:
            faults = [line for line in done.stderr.splitlines() if "[ALERT]" in line]
            raise ConfigError(
                "HAProxy refuses its configuration: " + "; ".join(faults or [done.stderr.strip()[:500]]),
                where=str(path),
                next_step="use HAProxy 2.6, for which it is written and tested (`haproxy -vv` names yours)",
            )

    def start(self) -> None:
        """Start it, and wait until it answers; EngineError with its last lines when it does not."""
        process = self._new_process()
        try:
            process.start()
            process.wait_ready(_START_S)
        except BaseException:
            process.stop()
            raise
        self._process = process
        for index in self._drained:
            self._set(index, "drain")

    def _new_process(self) -> EngineProcess:
        return EngineProcess(
            [str(self._program), "-db", "-C", str(self._folder), "-f", _CONFIG],
            env={},
            host=self._front.host,
            port=self._front.port,
            log_path=self._log_path,
            drain_s=STOP_S + 1.0,
            stop_signal=signal.SIGUSR1,
            name="HAProxy",
        )

    def check_alive(self) -> None:
        """EngineError with its last lines when it has ended."""
        if self._process is not None:
            self._process.check_alive()

    def stop(self) -> None:
        """Let it hand over what is on its way, and end it; may be called twice."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def drain(self, index: int) -> None:
        """Send nothing new to replica ``index``."""
        self._drained.add(index)
        self._set(index, "drain")

    def admit(self, index: int) -> None:
        """Send requests to replica ``index`` again, as soon as it is found ready."""
        self._drained.discard(index)
        self._set(index, "ready")

    def _set(self, index: int, state: AdminState) -> None:
        told = self._tell(f"set server {BACKEND}/{server_name(index)} state {state}")
        if told.strip():
            raise EngineError(f"HAProxy does not {state} a replica: {told.strip()}", where=self._where)

    def servers(self) -> tuple[ServerState, ...]:
        """How HAProxy sees each replica, in order."""
        rows = csv.DictReader(self._tell(f"show stat {BACKEND} 4 -1").lstrip("# ").splitlines())
        by_name = {
            row["svname"]: ServerState(
                # "UP", or "UP 1/3" while checks begin to fail; "no check" does not occur.
                serves=row["status"].startswith("UP"),
                sessions=int(row["scur"]),
            )
            for row in rows
        }
        return tuple(by_name[server_name(index)] for index in range(len(self._front.replicas)))

    def wait_idle(self, index: int, timeout_s: float) -> bool:
        """Whether replica ``index`` has nothing in flight within ``timeout_s``."""
        return self._wait(lambda: self.servers()[index].sessions == 0, timeout_s)

    def wait_serving(self, index: int, timeout_s: float) -> bool:
        """Whether replica ``index`` is sent requests within ``timeout_s``."""
        return self._wait(lambda: self.servers()[index].serves, timeout_s)

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def _tell(self, command: str) -> str:
        """HAProxy's answer to ``command`` on its admin socket."""
        try:
            with (
                socket_address(self._folder / ADMIN_SOCKET) as address,
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream,
            ):
                stream.settimeout(_ANSWER_S)
                stream.connect(address)
                stream.sendall(f"{command}\n".encode())
                return b"".join(iter(lambda: stream.recv(65536), b"")).decode()
        except OSError as error:
            raise EngineError(
                f"HAProxy cannot be told {command!r}: {error.strerror or error}",
                where=self._where,
                next_step=f"its log is {self._log_path}",
            ) from error

    @property
    def _where(self) -> str:
        return str(self._folder / ADMIN_SOCKET)
