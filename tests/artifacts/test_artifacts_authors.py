"""Faults that authors make, and spellings that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from author_faults import BF16, HARMLESS, NVFP4, TWICE
from model_edits import Edit, linked_copy
from test_artifacts_rules import _parse_linked_files_once, cases, found

from decideploy.artifacts import Manifest, verify

pytestmark = pytest.mark.integration

__all__ = ["_parse_linked_files_once"]


@pytest.mark.parametrize(("code", "edit"), cases(BF16))
def test_fault_of_an_author(code: str, edit: Edit, demo_model: Path, tmp_path: Path) -> None:
    assert found(demo_model, tmp_path, edit) == [code]


@pytest.mark.parametrize(("code", "edit"), cases(NVFP4))
def test_fault_of_an_exporter(code: str, edit: Edit, demo_model_nvfp4: Path, tmp_path: Path) -> None:
    assert found(demo_model_nvfp4, tmp_path, edit) == [code]


@pytest.mark.parametrize(
    ("codes", "edit"), [pytest.param(codes, edit, id=name) for codes, name, edit in TWICE]
)
def test_fault_between_two_files(codes: set[str], edit: Edit, demo_model: Path, tmp_path: Path) -> None:
    assert set(found(demo_model, tmp_path, edit)) == codes


@pytest.mark.parametrize("edit", [pytest.param(edit, id=name) for name, edit in HARMLESS])
def test_other_spelling_is_no_fault(edit: Edit, demo_model: Path, tmp_path: Path) -> None:
    assert found(demo_model, tmp_path, edit) == []


def test_manifest_that_points_out_of_the_folder_reads_nothing_there(demo_model: Path, tmp_path: Path) -> None:
    model = linked_copy(demo_model, tmp_path / "model")
    (tmp_path / "secret").write_bytes(b"1")
    record = {"size_bytes": 1, "sha256": "0" * 64}
    (tmp_path / "m.json").write_text(json.dumps({"model": "m", "files": {"../secret": record}}))
    issues = verify(model, manifest=Manifest.read(tmp_path / "m.json")).issues
    missing = [issue.where for issue in issues if issue.code == "manifest-missing"]
    assert missing == ["../secret"]
    assert "manifest-mismatched" not in {issue.code for issue in issues}
