from __future__ import annotations

import json
from pathlib import Path

import pytest
from build_fixtures import FILENAME, Project, make_project, patch_text
from google.protobuf.json_format import ParseDict, ParseError
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.statement_pb2 import Statement

from decideploy import __version__
from decideploy.build import build
from decideploy.errors import ConfigError, IntegrityError, PatchError


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path)


def run(project: Project, tmp_path: Path):
    return build(
        "demo",
        tmp_path / "out",
        wheelhouses=[project.wheelhouse],
        root=project.root,
        cache=tmp_path / "cache",
    )


def test_result_tells_what_was_done(project: Project, tmp_path: Path):
    result = run(project, tmp_path)
    (patch,) = result.patches
    assert (patch.name, patch.description, patch.paths) == (
        "0001-say-less.patch",
        "say less",
        ("vllm/layer.py",),
    )
    assert result.size_bytes == result.wheel.stat().st_size
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        result.wheel.name,
        result.sbom.name,
        result.provenance.name,
    ]


def test_provenance_names_all_inputs(project: Project, tmp_path: Path):
    result = run(project, tmp_path)
    statement = json.loads(result.provenance.read_text())
    lock = json.loads(project.lock_path.read_text())
    assert statement["subject"] == [{"name": result.wheel.name, "digest": {"sha256": result.sha256}}]
    definition = statement["predicate"]["buildDefinition"]
    digests = {item["name"]: item["digest"]["sha256"] for item in definition["resolvedDependencies"]}
    assert digests == {
        FILENAME: lock["upstream"]["wheel"]["sha256"],
        "build/recipes/demo.toml": lock["recipe"]["sha256"],
        "patches/series": lock["series"]["sha256"],
        "patches/0001-say-less.patch": lock["series"]["patches"][0]["sha256"],
    }
    assert statement["predicate"]["runDetails"]["builder"]["version"] == {"decideploy": __version__}


def test_provenance_has_the_fields_of_slsa_and_no_others(project: Project, tmp_path: Path):
    statement = json.loads(run(project, tmp_path).provenance.read_text())
    # The messages that the in-toto project generates from its own definitions refuse an unknown field.
    ParseDict(statement["predicate"], Provenance())
    ParseDict({**statement, "predicate": {}}, Statement())
    with pytest.raises(ParseError, match="buildKind"):
        ParseDict({"buildDefinition": {"buildKind": "x"}}, Provenance())
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"


def test_wheel_that_differs_from_the_lock_is_not_kept(project: Project, tmp_path: Path):
    project.edit_lock(wheel__sha256="0" * 64)
    with pytest.raises(IntegrityError, match=r"update_pins\.py --write") as caught:
        run(project, tmp_path)
    assert caught.value.where == "build/locks/demo.json: wheel.sha256"
    assert caught.value.expected == "0" * 64
    assert list((tmp_path / "out").iterdir()) == []


def test_changed_upstream_wheel_is_refused(project: Project, tmp_path: Path):
    path = project.wheelhouse / FILENAME
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match="wrong sha256") as caught:
        run(project, tmp_path)
    assert caught.value.source == str(path)


def test_changed_patch_makes_the_lock_stale(project: Project, tmp_path: Path):
    (project.root / "patches" / "0001-say-less.patch").write_text(patch_text().replace("twelve", "XII"))
    with pytest.raises(IntegrityError) as caught:
        run(project, tmp_path)
    assert caught.value.where == "build/locks/demo.json: series.sha256"


def test_malformed_series_stops_the_build(project: Project, tmp_path: Path):
    (project.root / "patches" / "0002-orphan.patch").write_text(patch_text())
    with pytest.raises(PatchError, match="0002-orphan"):
        run(project, tmp_path)


def test_unknown_recipe_is_a_usage_error(project: Project, tmp_path: Path):
    with pytest.raises(ConfigError, match="name one of: demo"):
        build("rocm", tmp_path, root=project.root)


@pytest.mark.parametrize("content", [None, b"\xff\n"])
def test_series_that_cannot_be_read_stops_the_build(project: Project, tmp_path: Path, content: bytes | None):
    series = project.root / "patches" / "series"
    series.unlink()
    if content:
        series.write_bytes(content)
    with pytest.raises(PatchError, match="series") as caught:
        run(project, tmp_path)
    assert caught.value.where == "patches/series"
    assert caught.value.next_step


def test_wheelhouse_must_be_a_folder(project: Project, tmp_path: Path):
    missing = tmp_path / "missing"
    with pytest.raises(ConfigError, match=str(missing)) as caught:
        build("demo", tmp_path / "out", wheelhouses=[project.wheelhouse, missing], root=project.root)
    assert caught.value.where == "--wheelhouse"


def test_cache_must_be_a_folder(project: Project, tmp_path: Path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(ConfigError, match="cannot be kept") as caught:
        run(project, tmp_path)
    assert caught.value.where == str(tmp_path / "cache")
    assert "DECIDEPLOY_HOME" in caught.value.next_step
