from __future__ import annotations

import sys
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from types import ModuleType

import pytest
from build_fixtures import make_project

from decideploy.build import build, check_installed, leave_out
from decideploy.errors import IntegrityError
from decideploy.pins import Lock, load_lock
from decideploy.pins.lock import LeanWheel


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Lock]:
    """A folder with the built wheel installed, first on the path, and its lock."""
    project = make_project(tmp_path)
    result = build(
        "demo", tmp_path / "out", wheelhouses=[project.wheelhouse], root=project.root, cache=tmp_path
    )
    folder = tmp_path / "site"
    with zipfile.ZipFile(result.wheel) as archive:
        archive.extractall(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return folder, load_lock("demo", root=project.root)


def test_untouched_installation_passes(site: tuple[Path, Lock]):
    folder, lock = site
    (folder / "vllm" / "__pycache__").mkdir()
    (folder / "vllm" / "__pycache__" / "layer.cpython-311.pyc").write_bytes(b"compiled")
    record = next(folder.glob("*.dist-info/RECORD"))
    record.write_text(record.read_text() + "vllm/__pycache__/layer.cpython-311.pyc,,\n")
    found = check_installed(lock)
    assert found.version == "1.0+cpu.decideploy.1"
    assert (found.recipe, found.patches) == ("demo", ("0001-say-less.patch",))
    assert found.files_sha256 == lock.wheel.files_sha256


def test_lean_installation_passes_and_is_told(
    site: tuple[Path, Lock], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _, lock = site
    (wheel,) = (tmp_path / "out").glob("*.whl")
    packed = leave_out(wheel, tmp_path / "lean.whl", ["vllm/layer.py"])
    with zipfile.ZipFile(packed.path) as archive:
        archive.extractall(tmp_path / "lean")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "lean"), *sys.path])
    with pytest.raises(IntegrityError, match="another build"):
        check_installed(lock)
    lean = LeanWheel(
        filename=wheel.name,
        size_bytes=packed.size_bytes,
        sha256=packed.sha256,
        files_sha256=packed.files_sha256,
    )
    found = check_installed(lock.model_copy(update={"lean": lean}))
    assert (found.lean, found.files_sha256) == (True, packed.files_sha256)


def test_changed_and_missing_files_are_named(site: tuple[Path, Lock]):
    folder, lock = site
    (folder / "vllm" / "layer.py").write_text("line 12\n")
    (folder / "vllm" / "__init__.py").unlink()
    with pytest.raises(IntegrityError, match="changed after installation") as caught:
        check_installed(lock)
    assert "vllm/layer.py" in caught.value.what
    assert "vllm/__init__.py (missing)" in caught.value.what
    assert "_version.py" not in caught.value.what


def test_other_build_of_the_same_version_is_told(site: tuple[Path, Lock]):
    _, lock = site
    other = lock.model_copy(update={"wheel": lock.wheel.model_copy(update={"files_sha256": "0" * 64})})
    with pytest.raises(IntegrityError, match="another build of it"):
        check_installed(other)


def test_other_version_is_told(site: tuple[Path, Lock]):
    _, lock = site
    other = lock.model_copy(update={"wheel": lock.wheel.model_copy(update={"version": "9+decideploy.1"})})
    with pytest.raises(IntegrityError) as caught:
        check_installed(other)
    assert (caught.value.expected, caught.value.actual) == ("9+decideploy.1", "1.0+cpu.decideploy.1")


def test_without_a_lock_the_version_picks_it(site: tuple[Path, Lock]):
    with pytest.raises(IntegrityError, match="another build") as caught:
        check_installed()
    assert " or " in caught.value.expected


def test_vllm_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch):
    def missing(_name: str) -> Distribution:
        raise PackageNotFoundError("vllm")

    monkeypatch.setattr("decideploy.build.installed.distribution", missing)
    with pytest.raises(IntegrityError, match="not installed"):
        check_installed()


def test_added_files_are_named(site: tuple[Path, Lock]):
    folder, lock = site
    (folder / "vllm" / "plugins").mkdir()
    for name in ("plugins/extra.py", "spy.so", "sourceless.pyc"):
        (folder / "vllm" / name).write_bytes(b"")
    with pytest.raises(IntegrityError, match="files were added") as caught:
        check_installed(lock)
    assert "vllm/plugins/extra.py, vllm/sourceless.pyc, vllm/spy.so" in caught.value.what
    assert "layer" not in caught.value.what


def test_linked_folder_is_an_added_file(site: tuple[Path, Lock], tmp_path: Path):
    folder, lock = site
    (folder / "vllm" / "linked").symlink_to(tmp_path)
    with pytest.raises(IntegrityError, match="vllm/linked"):
        check_installed(lock)


def test_bytecode_of_listed_sources_passes(site: tuple[Path, Lock]):
    folder, lock = site
    (folder / "vllm" / "__pycache__").mkdir()
    for name in ("layer.cpython-311.pyc", "layer.cpython-311.opt-2.pyc", "__init__.cpython-311.pyc"):
        (folder / "vllm" / "__pycache__" / name).write_bytes(b"compiled")
    (folder / "vllm" / "layer.pyc").write_bytes(b"compiled")
    assert check_installed(lock).recipe == "demo"


def test_vllm_that_shadows_the_installed_one_is_told(
    site: tuple[Path, Lock], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, lock = site
    shadow = tmp_path / "work" / "vllm" / "__init__.py"
    shadow.parent.mkdir(parents=True)
    shadow.write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "work"))
    with pytest.raises(IntegrityError, match="another vllm") as caught:
        check_installed(lock)
    assert (caught.value.expected, caught.value.actual) == (str(folder / "vllm" / "__init__.py"), str(shadow))


def test_imported_vllm_counts_before_the_path(site: tuple[Path, Lock], monkeypatch: pytest.MonkeyPatch):
    _, lock = site
    imported = ModuleType("vllm")
    imported.__file__ = "/elsewhere/vllm/__init__.py"
    monkeypatch.setitem(sys.modules, "vllm", imported)
    with pytest.raises(IntegrityError, match="another vllm") as caught:
        check_installed(lock)
    assert caught.value.actual == "/elsewhere/vllm/__init__.py"
