from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from build_fixtures import Project
from bundle_fixtures import MakeBundle, bundle_maker, make_bundle_project

from decideploy.bundle import BundleResult


@pytest.fixture(scope="session")
def checkout(home: None, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The small checkout; read only."""
    return make_bundle_project(tmp_path_factory.mktemp("bundle-project"))


@pytest.fixture(autouse=True, scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A home of this session's own, so that wheels are staged once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DECIDEPLOY_HOME", str(tmp_path_factory.mktemp("bundle-home")))
        yield


@pytest.fixture
def make(checkout: Project, tmp_path: Path) -> MakeBundle:
    return bundle_maker(checkout, tmp_path)


@pytest.fixture(scope="session")
def original(checkout: Project, tmp_path_factory: pytest.TempPathFactory) -> BundleResult:
    """A bundle in several parts with a model; read only."""
    folder = tmp_path_factory.mktemp("bundle-original")
    model = folder / "toy"
    (model / "adapter").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "adapter" / "weights").write_bytes(b"w" * 100)
    return bundle_maker(checkout, folder)(part_bytes=9_000, model=str(model))


@pytest.fixture
def bundled(original: BundleResult, tmp_path: Path) -> Path:
    """A copy of that bundle to spoil."""
    return Path(shutil.copytree(original.folder, tmp_path / "bundle"))
