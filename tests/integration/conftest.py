"""One real server for the session, started as a user starts it, and the figures that tests measured."""

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from started import read_started
from waiting import PATIENCE_S, free_port

from decideploy.build import apply_to_tree, read_series
from decideploy.pins import cache_folder, data_root, fetch, load_recipe

FIGURES = pytest.StashKey[list[str]]()


@dataclass(frozen=True)
class Server:
    """A server that has passed its self-test; ``started`` is the document that ``serve --json`` printed."""

    url: str
    model: Path
    started: dict


@pytest.fixture(scope="session")
def server(demo_model: Path, engine_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    state = tmp_path_factory.mktemp("state")
    command = [shutil.which("decideploy", path=str(Path(sys.executable).parent)), "serve", str(demo_model)]
    command += ["--port", str(free_port()), "--json"]
    environment = os.environ | {"DECIDEPLOY_HOME": str(engine_home)}
    stages = state / "stages.txt"
    with (
        open(stages, "w") as stage_lines,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=stage_lines, text=True
        ) as process,
    ):
        started = read_started(process, stages)
        yield Server(url=started["base_url"], model=demo_model, started=started)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, stages.read_text("utf-8")


@pytest.fixture(scope="session")
def upstream(tmp_path_factory):
    """The upstream CPU wheel of the lock, unpacked and unpatched."""
    folder = tmp_path_factory.mktemp("upstream")
    with zipfile.ZipFile(fetch(load_recipe("cpu").wheel_artifact, cache_folder())) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="session")
def without(upstream, tmp_path_factory):
    """A function that gives vLLM with every patch of the series but one."""
    trees: dict[str, Path] = {}

    def tree(number: str) -> Path:
        if number not in trees:
            folder = tmp_path_factory.mktemp(f"without-{number}")
            subprocess.run(["cp", "-r", f"{upstream}/.", str(folder)], check=True)
            series = read_series(data_root())
            others = [patch for patch in series if not patch.name.startswith(number)]
            assert len(others) == len(series) - 1
            apply_to_tree(others, folder)
            trees[number] = folder
        return trees[number]

    return tree


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
