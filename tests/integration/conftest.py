"""One real server for the session, started as a user starts it, and the figures that tests measured."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

FIGURES = pytest.StashKey[list[str]]()


@dataclass(frozen=True)
class Server:
    """A server that has passed its self-test; ``started`` is the document that ``serve --json`` printed."""

    url: str
    model: Path
    started: dict


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def server(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    state = tmp_path_factory.mktemp("state")
    command = [shutil.which("decideploy", path=str(Path(sys.executable).parent)), "serve", str(demo_model)]
    command += ["--port", str(free_port()), "--json"]
    environment = os.environ | {"DECIDEPLOY_HOME": str(state)}
    with (
        open(state / "stages.txt", "w+") as stages,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=stages, text=True
        ) as process,
    ):
        line = process.stdout.readline()
        assert line, (state / "stages.txt").read_text()
        started = json.loads(line)
        yield Server(url=started["base_url"], model=demo_model, started=started)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, (state / "stages.txt").read_text()


@pytest.fixture
def figure(request: pytest.FixtureRequest):
    """Record a measured figure; all of them are printed after the session."""
    return request.config.stash.setdefault(FIGURES, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    figures = config.stash.get(FIGURES, [])
    if figures:
        terminalreporter.section("measured on the demo model")
        for line in figures:
            terminalreporter.write_line(line)
