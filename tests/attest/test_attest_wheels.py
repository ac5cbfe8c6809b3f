from __future__ import annotations

import json
from pathlib import Path

import pytest
from build_fixtures import Project, make_project

from decideploy.attest import attest, verify_build
from decideploy.build import BuildResult, build
from decideploy.errors import ConfigError, IntegrityError


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("DECIDEPLOY_HOME", str(tmp_path / "home"))
    return make_project(tmp_path)


@pytest.fixture
def built(project: Project, tmp_path: Path) -> BuildResult:
    return build("demo", tmp_path / "out", wheelhouses=[project.wheelhouse], root=project.root)


def faults(project: Project, wheel: Path, **options: object) -> list[str]:
    with pytest.raises(IntegrityError) as caught:
        verify_build(wheel, root=project.root, **options)
    return [fault.what for fault in caught.value.diagnostics()]


def flip(path: Path, position: int = 200) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_signed_wheel_passes_and_tells_what_was_checked(project: Project, built: BuildResult, keys):
    signature = attest(built.wheel, keys.private)
    assert signature.name == f"{built.wheel.name}.attestation.json.sig"
    found = verify_build(
        built.wheel,
        public_key=keys.public,
        again=True,
        wheelhouses=[project.wheelhouse],
        root=project.root,
    )
    assert found.sha256 == built.sha256
    assert found.checked == (
        "files",
        "signature",
        "attested files",
        "lock, provenance and sbom",
        "second build",
    )


def test_without_a_key_the_signature_is_not_claimed(project: Project, built: BuildResult):
    assert "signature" not in verify_build(built.wheel, root=project.root).checked


def test_every_fault_is_named_at_once(project: Project, built: BuildResult, keys, other_keys):
    attest(built.wheel, keys.private)
    flip(built.wheel)
    statement = json.loads(built.provenance.read_text())
    statement["predicate"]["buildDefinition"]["externalParameters"]["recipe"] = "other"
    built.provenance.write_text(json.dumps(statement))
    built.sbom.unlink()
    told = faults(project, built.wheel, public_key=other_keys.public)
    name = built.wheel.name
    for part in (
        f"{built.sbom.name} is missing",
        "the signature does not fit",
        f"{name} is not the attested file",
        f"{built.provenance.name} is not the attested file",
        f"{built.sbom.name} is attested and not here",
        "the wheel has sha256",
        "at predicate.buildDefinition.externalParameters.recipe",
    ):
        assert [what for what in told if part in what], (part, told)


def test_each_paper_must_be_what_the_lock_leads_to(project: Project, built: BuildResult):
    bill = json.loads(built.sbom.read_text())
    bill["components"][0]["version"] = "6.6"
    built.sbom.write_text(json.dumps(bill))
    built.provenance.write_text("{")
    told = faults(project, built.wheel)
    assert [what for what in told if "at components[0].version" in what]
    assert [what for what in told if "is no JSON" in what]


def test_attestation_that_was_changed_after_signing_is_refused(project: Project, built: BuildResult, keys):
    attest(built.wheel, keys.private)
    path = built.wheel.with_name(f"{built.wheel.name}.attestation.json")
    document = json.loads(path.read_text())
    del document["files"][built.sbom.name]
    path.write_text(json.dumps(document))
    told = faults(project, built.wheel, public_key=keys.public)
    assert "the signature does not fit" in told[0]
    assert f"{built.sbom.name} is not attested" in told


def test_wheel_of_another_recipe_is_told(project: Project, built: BuildResult):
    project.edit_lock(wheel__filename="vllm-2.0+cpu.decideploy.1-cp38-abi3-manylinux_2_28_x86_64.whl")
    (what,) = faults(project, built.wheel)
    assert "no lock here names a wheel of this name" in what


def test_unsigned_wheel_is_told(project: Project, built: BuildResult, keys):
    told = faults(project, built.wheel, public_key=keys.public)
    assert [what for what in told if "attestation.json.sig is missing" in what]
    assert [what for what in told if "no attestation" in what]


def test_second_build_that_differs_is_told(project: Project, built: BuildResult):
    flip(built.wheel)
    told = faults(project, built.wheel, again=True, wheelhouses=[project.wheelhouse])
    assert [what for what in told if f"a second build gave sha256 {built.sha256}" in what]


def test_all_missing_files_are_told_before_signing(built: BuildResult, keys):
    built.sbom.unlink()
    built.provenance.unlink()
    with pytest.raises(ConfigError) as caught:
        attest(built.wheel, keys.private)
    assert built.sbom.name in caught.value.what
    assert built.provenance.name in caught.value.what


def test_only_wheels_and_bundles_are_artifacts(tmp_path: Path, keys):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ConfigError, match="neither a wheel nor"):
        attest(tmp_path / "notes.txt", keys.private)
