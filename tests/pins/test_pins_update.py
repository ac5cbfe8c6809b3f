from __future__ import annotations

import importlib.util
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from build_fixtures import FILENAME, make_project, patch_text

from decideploy.pins import data_root, load_recipe

PYPROJECT = """\
[project]
dependencies = ["numpy>=2"]
[project.optional-dependencies]
gpu = ["six"]
server = ["idna"]
[dependency-groups]
test = ["pytest"]
lint = ["ruff"]
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, working on a small project instead of this one."""
    path = data_root() / "scripts" / "update_pins.py"
    spec = importlib.util.spec_from_file_location("update_pins", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name.
    monkeypatch.setitem(sys.modules, "update_pins", module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(module)
    project = make_project(tmp_path)
    (project.root / "pyproject.toml").write_text(PYPROJECT)
    monkeypatch.setattr(module, "ROOT", project.root)
    monkeypatch.setattr(module, "LOCKS", project.root / "build" / "locks")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return module


def run(tool: ModuleType, tmp_path: Path, *arguments: str) -> int:
    return int(tool.main(["--recipe", "demo", "--wheelhouse", str(tmp_path / "wheelhouse"), *arguments]))


def test_fresh_lock_passes_the_check(tool: ModuleType, tmp_path: Path):
    assert run(tool, tmp_path, "--check") == 0


def test_lock_that_is_fresh_is_made_again_the_same(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run(tool, tmp_path, "--only", "wheel", "--write")
    capsys.readouterr()
    assert run(tool, tmp_path, "--only", "wheel") == 0
    assert capsys.readouterr().out == ""


def test_changed_patch_is_shown_then_written(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    patch = tool.ROOT / "patches" / "0001-say-less.patch"
    patch.write_text(patch_text().replace("twelve", "XII"))
    assert run(tool, tmp_path, "--check") == 3
    assert "build/locks/demo.json: series.sha256" in capsys.readouterr().err
    old = (tool.LOCKS / "demo.json").read_text()
    assert run(tool, tmp_path, "--only", "wheel") == 0
    assert "+++ b/build/locks/demo.json" in capsys.readouterr().out
    assert (tool.LOCKS / "demo.json").read_text() == old
    assert run(tool, tmp_path, "--only", "wheel", "--write") == 0
    assert run(tool, tmp_path, "--check") == 0


@pytest.mark.parametrize("dependency", ["numpy>=3", "scipy"])
def test_dependency_that_no_file_meets_is_named(
    tool: ModuleType, tmp_path: Path, dependency: str, capsys: pytest.CaptureFixture[str]
):
    (tool.ROOT / "pyproject.toml").write_text(PYPROJECT.replace("numpy>=2", dependency))
    assert run(tool, tmp_path, "--check") == 3
    assert "requirements (demo-py311.txt)\n" in capsys.readouterr().err


def test_dependency_for_another_python_is_not_asked_for(tool: ModuleType, tmp_path: Path):
    text = PYPROJECT.replace("numpy>=2", "scipy; python_version < '3.11'")
    (tool.ROOT / "pyproject.toml").write_text(text)
    assert run(tool, tmp_path, "--check") == 0


def test_upstream_requirements_leave_exclusions_out(tool: ModuleType, tmp_path: Path):
    wheel = tmp_path / "wheelhouse" / FILENAME
    assert tool.upstream_requirements(wheel, load_recipe("demo", root=tool.ROOT)) == ["numpy"]


def test_own_requirements_of_each_purpose(tool: ModuleType):
    recipe = load_recipe("cpu")
    runtime, development = (
        tool.PlannedFile(filename="x", purpose=purpose, python="3.11")
        for purpose in ("runtime", "development")
    )
    cuda = load_recipe("cuda")
    assert tool.wanted(recipe, runtime) == ["numpy>=2", "idna"]
    assert tool.wanted(cuda, runtime) == ["numpy>=2", "six", "idna"]
    assert tool.wanted(recipe, development) == ["pytest", "ruff"]


def test_each_target_plans_its_files(tool: ModuleType):
    assert [file.filename for file in tool.planned_files(load_recipe("cuda"))] == ["cuda-py312.txt"]
    names = {file.filename for file in tool.planned_files(load_recipe("cpu"))}
    assert names >= {"cpu-py311.txt", "cpu-py313.txt", "dev-py312.txt", "bootstrap.txt"}


def test_torch_stub_is_metadata_only_and_its_digest_is_not_used(tool: ModuleType, tmp_path: Path):
    torch = load_recipe("cpu").torch
    tool.write_torch_stub(torch, tmp_path)
    (stub,) = tmp_path.glob("torch-*.whl")
    with zipfile.ZipFile(stub) as archive:
        assert all(".dist-info/" in name for name in archive.namelist())
    assert torch.sha256["3.12"] in tool.torch_block(torch, "3.12")
    assert torch.sha256["3.11"] not in tool.torch_block(torch, "3.12")
