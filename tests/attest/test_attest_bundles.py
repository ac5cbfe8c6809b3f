from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from build_fixtures import Project
from bundle_fixtures import bundle_maker, make_bundle_project

from decideploy.attest import attest, verify_build
from decideploy.bundle import BundleResult
from decideploy.errors import IntegrityError

# They run pip, hatchling and the installer.
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DECIDEPLOY_HOME", str(tmp_path_factory.mktemp("attest-home")))
        yield make_bundle_project(tmp_path_factory.mktemp("attest-project"))


@pytest.fixture(scope="module")
def original(checkout: Project, tmp_path_factory: pytest.TempPathFactory) -> BundleResult:
    return bundle_maker(checkout, tmp_path_factory.mktemp("attest-bundle"))(part_bytes=9_000)


@pytest.fixture
def folder(original: BundleResult, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original.folder, tmp_path / "bundle"))


def faults(checkout: Project, folder: Path, **options: object) -> list[str]:
    with pytest.raises(IntegrityError) as caught:
        verify_build(folder, root=checkout.root, **options)
    return [fault.what for fault in caught.value.diagnostics()]


def test_signed_bundle_passes_and_is_built_again(checkout: Project, folder: Path, original, keys):
    attest(folder, keys.private)
    found = verify_build(
        folder, public_key=keys.public, again=True, wheelhouses=[checkout.wheelhouse], root=checkout.root
    )
    assert found.sha256 == original.sha256
    assert found.checked[-1] == "second build"


def test_every_fault_is_named_at_once(checkout: Project, folder: Path, keys):
    attest(folder, keys.private)
    (folder / "bundle.tar.000").unlink()
    (folder / "bundle.tar.001").write_bytes(b"short")
    (folder / "bundle.tar.777").write_bytes(b"")
    script = folder / "install.py"
    script.write_text(script.read_text() + "\n# changed\n")
    bill = json.loads((folder / "bundle.cdx.json").read_text())
    gone = bill["components"].pop(0)
    bill["metadata"]["component"]["hashes"][0]["content"] = "0" * 64
    (folder / "bundle.cdx.json").write_text(json.dumps(bill))
    told = faults(checkout, folder, public_key=keys.public)
    for part in (
        "bundle.tar.000 is missing",
        "bundle.tar.001 is damaged",
        "bundle.tar.777 is extra",
        "bundle.tar.777 is not attested",
        "install.py is not the attested file",
        "bundle.cdx.json is the bill of another bundle",
        f"bundle.cdx.json lacks wheels/{gone['name'].replace('-', '_')}",
        "bundle.provenance.json differs",
    ):
        assert [what for what in told if part in what], (part, told)


def test_wheel_that_no_lock_names_is_told(checkout: Project, folder: Path):
    manifest = json.loads((folder / "manifest.json").read_text())
    (index,) = (i for i, file in enumerate(manifest["files"]) if "demo_dep" in file["path"])
    manifest["files"][index]["sha256"] = "1" * 64
    (folder / "manifest.json").write_text(json.dumps(manifest))
    path = manifest["files"][index]["path"]
    told = faults(checkout, folder)
    assert [what for what in told if what == f"{path} is not what the lock of demo names"]


def test_second_bundle_that_differs_is_told(checkout: Project, folder: Path):
    (folder / "install.sh").write_text("#!/bin/sh\n")
    told = faults(checkout, folder, again=True, wheelhouses=[checkout.wheelhouse])
    assert "a second build gave another install.sh" in told


def test_folder_without_a_bundle_is_told(checkout: Project, tmp_path: Path):
    assert "the folder holds no bundle" in faults(checkout, tmp_path)
