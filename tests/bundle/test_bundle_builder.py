from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest
from build_fixtures import Project
from bundle_fixtures import MakeBundle
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from google.protobuf.json_format import ParseDict
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance

from decideploy.bundle import BundleOptions, BundleResult, bundle
from decideploy.bundle.manifest import read_manifest
from decideploy.errors import ConfigError
from decideploy.pins.lock import file_sha256

# They run pip, hatchling and the installer.
pytestmark = pytest.mark.integration


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def joined(result: BundleResult) -> tarfile.TarFile:
    content = b"".join((result.folder / part.name).read_bytes() for part in result.manifest.parts)
    return tarfile.open(fileobj=io.BytesIO(content))


def read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def wheel_inside(result: BundleResult, name: str) -> zipfile.ZipFile:
    (path,) = (member.path for member in result.manifest.files if f"/{name}-" in member.path)
    with joined(result) as archive:
        return zipfile.ZipFile(io.BytesIO(read(archive, path)))


def test_same_inputs_give_the_same_bytes(original: BundleResult, make: MakeBundle):
    again = make(part_bytes=9_000, model=str(original.folder.with_name("toy")))
    assert contents(original.folder) == contents(again.folder)


def test_parts_have_the_size_asked_for_and_join(original: BundleResult):
    first = original
    parts = first.manifest.parts
    assert len(parts) > 1
    assert {part.size_bytes for part in parts[:-1]} == {9_000}
    with joined(first) as archive:
        assert archive.getnames() == [member.path for member in first.manifest.files]


def test_every_file_is_named_by_its_digest(original: BundleResult):
    assert read_manifest(original.folder) == original.manifest
    assert original.manifest.model is not None
    assert original.manifest.model.name == "toy"
    paths = [member.path for member in original.manifest.files]
    assert [path.rpartition("/")[2].partition("-")[0] for path in paths] == [
        "weights",
        "config.json",
        "uv",
        "decideploy",
        "demo_dep",
        "hostlib",
        "vllm",
    ]
    assert [member.path for member in original.manifest.files if member.from_host] == [paths[5]]
    with joined(original) as archive:
        for member in original.manifest.files:
            content = read(archive, member.path)
            assert (len(content), hashlib.sha256(content).hexdigest()) == (member.size_bytes, member.sha256)


def test_bill_is_valid_and_provenance_is_slsa(original: BundleResult):
    result = original
    text = result.sbom.read_text("utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    components = {one["name"]: one for one in json.loads(text)["components"]}
    files = {"model/config.json", "model/adapter/weights"}
    assert components.keys() == {"vllm", "decideploy", "uv", "demo-dep", "hostlib"} | files
    assert components["vllm"]["pedigree"]["patches"]
    assert components["demo-dep"]["licenses"][0]["license"]["id"] == "MIT"
    statement = json.loads(result.provenance.read_text("utf-8"))
    ParseDict(statement["predicate"], Provenance())
    subjects = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    assert subjects == {
        name: file_sha256(result.folder / name)
        for name in (
            "manifest.json",
            "install.py",
            "install.sh",
            *(part.name for part in result.manifest.parts),
        )
    }


def test_choices_leave_out_what_they_say(make: MakeBundle):
    lean = make(lean=True, host_torch=True, without=("demo-dep",))
    paths = [member.path for member in lean.manifest.files]
    assert not [path for path in paths if "hostlib" in path or "demo_dep" in path]
    with wheel_inside(lean, "vllm") as wheel:
        assert "vllm/layer.py" not in wheel.namelist()
        assert "vllm/__init__.py" in wheel.namelist()


def test_wheel_has_what_git_does_not_ignore(make: MakeBundle, checkout: Project):
    source = checkout.root / "src" / "decideploy"
    (source / "new.py").write_text("")
    (source / "secret.py").write_text("")
    (source / ".gitignore").write_text("secret.py\n.gitignore\n")
    result = make()
    for name in ("new.py", "secret.py", ".gitignore"):
        (source / name).unlink()
    with wheel_inside(result, "decideploy") as wheel:
        assert {"decideploy/build/__init__.py", "decideploy/new.py"} <= set(wheel.namelist())
        assert "decideploy/secret.py" not in wheel.namelist()


def test_earlier_bundle_is_replaced_and_other_files_are_not(bundled: Path, make: MakeBundle, tmp_path: Path):
    assert len(list(bundled.glob("bundle.tar.*"))) > 1
    assert len(list(make(bundled.name).folder.glob("bundle.tar.*"))) == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("")
    with pytest.raises(ConfigError, match="no bundle"):
        make("mine")


def test_unknown_names_are_all_told(make: MakeBundle):
    with pytest.raises(ConfigError, match="no a-typo, b-typo") as caught:
        make(without=("b-typo", "demo-dep", "a-typo"))
    assert caught.value.where == "--without"


def test_lean_needs_something_to_leave_out():
    with pytest.raises(ConfigError, match="nothing that a lean bundle"):
        bundle(BundleOptions(recipe="cpu", python="3.11", lean=True), Path("unused"))
