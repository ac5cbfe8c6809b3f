from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from build_fixtures import FILENAME, Project, make_project
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from decideploy.build import build
from decideploy.build.sbom import wheel_component
from decideploy.pins import data_root


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path)


def bill_of(project: Project, tmp_path: Path, out: str = "out") -> Path:
    return build(
        "demo",
        tmp_path / out,
        wheelhouses=[project.wheelhouse],
        root=project.root,
        cache=tmp_path / "cache",
    ).sbom


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text("utf-8")))


def test_bill_is_valid_and_the_same_for_the_same_build(project: Project, tmp_path: Path):
    first, second = bill_of(project, tmp_path), bill_of(project, tmp_path, "again")
    assert first.read_bytes() == second.read_bytes()
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(first.read_text("utf-8")) is None
    broken = first.read_text("utf-8").replace('"library"', '"librarie"')
    assert validator.validate_str(broken) is not None


def test_subject_is_the_wheel_and_its_pedigree_the_upstream_and_the_patches(project: Project, tmp_path: Path):
    path = bill_of(project, tmp_path)
    subject = read(path)["metadata"]["component"]
    wheel = path.with_name(path.name.removesuffix(".cdx.json"))
    assert subject["hashes"][0]["content"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert (subject["name"], subject["version"]) == ("vllm", "1.0+cpu.decideploy.1")
    (upstream,) = subject["pedigree"]["ancestors"]
    assert upstream["hashes"][0]["content"] == hashlib.sha256(project.wheel).hexdigest()
    assert upstream["purl"] == f"pkg:pypi/demo-cpu@1.0?file_name={FILENAME}"
    (patch,) = subject["pedigree"]["patches"]
    text = base64.b64decode(patch["diff"]["text"]["content"])
    assert text == (project.root / "patches" / "0001-say-less.patch").read_bytes()


def test_every_locked_dependency_is_there_with_its_hashes(project: Project, tmp_path: Path):
    bill = read(bill_of(project, tmp_path))
    (numpy,) = bill["components"]
    assert (numpy["name"], numpy["version"]) == ("numpy", "2.0")
    assert [entry["content"] for entry in numpy["hashes"]] == ["0" * 64]
    assert numpy["properties"] == [{"name": "decideploy:python", "value": "3.11"}]
    (dependency,) = (item for item in bill["dependencies"] if item.get("dependsOn"))
    assert dependency["dependsOn"] == [numpy["bom-ref"]]


def test_bill_of_another_wheel_has_another_serial_number(project: Project, tmp_path: Path):
    first = read(bill_of(project, tmp_path))
    other = make_project(
        tmp_path / "other",
        {
            "0001-say-less.patch": (project.root / "patches" / "0001-say-less.patch")
            .read_text()
            .replace("twelve", "XII")
        },
    )
    assert read(bill_of(other, tmp_path / "other"))["serialNumber"] != first["serialNumber"]


@pytest.mark.parametrize(
    ("field", "licence"),
    [
        ("License-Expression: Apache-2.0 AND MIT\n", {"expression": "Apache-2.0 AND MIT"}),
        ("License: Apache-2.0\n", {"license": {"id": "Apache-2.0"}}),
        (
            "License: Some House Licence\n        Long text follows.\n",
            {"license": {"name": "Some House Licence"}},
        ),
        ("Classifier: License :: OSI Approved :: MIT License\n", {"license": {"name": "MIT License"}}),
    ],
)
def test_licence_is_the_expression_or_the_words_of_the_author(
    tmp_path: Path, field: str, licence: dict[str, Any]
):
    from zipfile import ZipFile

    from decideploy.build.sbom import document

    wheel = tmp_path / "a-1-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        archive.writestr("a-1.dist-info/METADATA", f"Metadata-Version: 2.4\nName: a\nVersion: 1\n{field}\n")
    found = document(wheel_component(wheel), [])["metadata"]["component"]["licenses"]
    assert [
        {
            key: {k: v for k, v in one[key].items() if k in ("id", "name")} if key == "license" else one[key]
            for key in one
            if key in ("license", "expression")
        }
        for one in found
    ] == [licence]


def test_shipped_locks_can_be_told():
    from decideploy.build.sbom import _locked_components
    from decideploy.pins import load_lock

    components = _locked_components(load_lock("cuda"), data_root())
    assert {"torch", "transformers", "cyclonedx-python-lib"} <= {one.name for one in components}
    assert all(one.hashes for one in components)
