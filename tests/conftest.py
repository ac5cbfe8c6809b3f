"""What several packages share: the demo models, each made once a session, and how examples are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from decideploy.demo import write_demo_model

# The same examples on every machine, and no time that a busy one could exceed.
settings.load_profile("ci")


@pytest.fixture(scope="session")
def demo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bf16 demo model; read only."""
    folder = tmp_path_factory.mktemp("demo-bf16") / "model"
    write_demo_model(folder)
    return folder


@pytest.fixture(scope="session")
def demo_model_nvfp4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The NVFP4 demo model; read only."""
    folder = tmp_path_factory.mktemp("demo-nvfp4") / "model"
    write_demo_model(folder, nvfp4=True)
    return folder


@pytest.fixture(scope="session")
def engine_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DECIDEPLOY_HOME of the engines, with vLLM's caches: a start without them imports vLLM once more."""
    return tmp_path_factory.mktemp("engine-home")
