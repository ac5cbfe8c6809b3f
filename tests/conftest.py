"""Fixtures that several packages share: the demo models, each made once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from decideploy.demo import write_demo_model


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
