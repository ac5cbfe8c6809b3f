"""The table of measured figures, and the demo model's server."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import Server, serving

from decideploy.hardware import probe

FIGURES = pytest.StashKey[dict[str, object]]()


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where results are left; the suite's script names the folder."""
    named = os.environ.get("DECIDEPLOY_GPU_RESULTS")
    return Path(named) if named else tmp_path_factory.mktemp("results")


@pytest.fixture(scope="session")
def figure(request: pytest.FixtureRequest, results: Path):
    """Record a measured figure under a name; all of them are printed after the session."""
    figures = request.config.stash.setdefault(FIGURES, {})

    def record(name: str, value: object) -> None:
        figures[name] = value
        # At once: a run that is cut short keeps what it measured.
        (results / "figures.json").write_text(json.dumps(figures, indent=1, default=str))

    return record


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if figures := config.stash.get(FIGURES, {}):
        terminalreporter.section("measured")
        for name, value in figures.items():
            terminalreporter.write_line(f"{name:<58} {value}")


@pytest.fixture(scope="session")
def hardware():
    return probe()


@pytest.fixture(scope="session")
def demo(demo_model: Path, demo_model_nvfp4: Path, hardware, results: Path) -> Iterator[Server]:
    """The demo model as this machine serves it: NVFP4 on a GPU, else bf16, to rehearse these tests."""
    model = demo_model_nvfp4 if hardware.platform == "cuda" else demo_model
    with serving(model, results) as server:
        yield server
