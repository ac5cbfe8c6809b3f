from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest
from build_fixtures import FILENAME, INFO, make_project, make_wheel, patch_text, recipe_text, write_series
from hypothesis import given
from hypothesis import strategies as st
from installer.sources import WheelFile

from decideploy.build import build, leave_out, read_series, repack
from decideploy.build.record import RecordEntry, format_record, parse_record
from decideploy.build.wheel import rewrite_version, rewrite_wheel_tags
from decideploy.errors import IntegrityError, PatchError
from decideploy.pins import load_recipe

NAME = "vllm-1.0+cpu.decideploy.1-cp38-abi3-manylinux_2_28_x86_64.whl"
NEW_INFO = "vllm-1.0+cpu.decideploy.1.dist-info"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    project = make_project(tmp_path)
    return build(
        "demo", tmp_path / "out", wheelhouses=[project.wheelhouse], root=project.root, cache=tmp_path
    ).wheel


def test_installer_accepts_the_record(wheel: Path):
    with WheelFile.open(wheel) as source:
        source.validate_record()
        assert source.dist_info_dir == NEW_INFO


def test_name_version_and_tag_agree_everywhere(wheel: Path):
    assert wheel.name == NAME
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"{NEW_INFO}/METADATA").decode()
        assert metadata.startswith("Metadata-Version: 2.1\nName: vllm\nVersion: 1.0+cpu.decideploy.1\n")
        assert metadata.endswith("\n\nVersion: prose\n")
        tags = archive.read(f"{NEW_INFO}/WHEEL").decode()
        assert [line for line in tags.splitlines() if line.startswith("Tag")] == [
            "Tag: cp38-abi3-manylinux_2_28_x86_64"
        ]
        scope: dict[str, object] = {}
        exec(archive.read("vllm/_version.py"), scope)
    assert scope["__version__"] == "1.0+cpu.decideploy.1"
    assert scope["__version_tuple__"] == (1, 0, "cpu.decideploy.1")
    assert scope["__commit_id__"] == "gabc"


def test_excluded_requirements_are_not_declared(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"{NEW_INFO}/METADATA").decode()
    assert "Requires-Dist: numpy\n" in metadata
    assert "torchvision" not in metadata


def test_untouched_members_keep_bytes_time_mode_and_order(wheel: Path, tmp_path: Path):
    with zipfile.ZipFile(wheel) as new, zipfile.ZipFile(tmp_path / "wheelhouse" / FILENAME) as old:
        assert new.testzip() is None
        assert b"line twelve\n" in new.read("vllm/layer.py")
        pairs = list(zip(old.infolist(), new.infolist(), strict=True))
        for before, after in pairs:
            assert after.filename == before.filename.replace(INFO, NEW_INFO)
            assert (after.date_time, after.external_attr) == (before.date_time, before.external_attr)
        untouched = new.getinfo("vllm/__init__.py")
        assert untouched.compress_type == zipfile.ZIP_DEFLATED


def test_repeat_gives_the_same_bytes(tmp_path: Path):
    project = make_project(tmp_path)
    results = [
        build("demo", tmp_path / out, wheelhouses=[project.wheelhouse], root=project.root, cache=tmp_path)
        for out in ("one", "two")
    ]
    assert results[0].wheel.read_bytes() == results[1].wheel.read_bytes()
    assert results[0].provenance.read_bytes() == results[1].provenance.read_bytes()
    assert results[0].sha256 == hashlib.sha256(results[0].wheel.read_bytes()).hexdigest()


def test_series_may_not_touch_the_version_file(tmp_path: Path):
    hunk = (
        "@@ -1,5 +1,5 @@\n version: str\n-__version__ = version = '1.0'\n+__version__ = version = '2.0'\n"
        " __version_tuple__ = version_tuple = (1, 0)\n \n __commit_id__ = commit_id = 'gabc'\n"
    )
    with pytest.raises(PatchError, match=r"changes vllm/_version\.py"):
        make_project(tmp_path, {"0001-version.patch": patch_text("vllm/_version.py", hunk)})


def test_record_that_disagrees_with_the_archive_is_refused(tmp_path: Path):
    (tmp_path / FILENAME).write_bytes(make_wheel())
    with zipfile.ZipFile(tmp_path / FILENAME, "a") as archive:
        archive.writestr("vllm/stowaway.py", "")
    (tmp_path / "build" / "recipes").mkdir(parents=True)
    (tmp_path / "build" / "recipes" / "demo.toml").write_text(recipe_text(make_wheel()))
    series = read_series(write_series(tmp_path, {"0001-p.patch": patch_text()}))
    recipe = load_recipe("demo", root=tmp_path)
    with pytest.raises(IntegrityError, match=r"disagree about vllm/stowaway\.py"):
        repack(tmp_path / FILENAME, tmp_path / "out.whl", recipe=recipe, series=series)


@pytest.mark.parametrize(
    "content", [b"x = 1\n", b"__version__ = version = '1'\n__version__ = version = '1'\n"]
)
def test_version_file_of_another_form_is_refused(content: bytes):
    with pytest.raises(IntegrityError, match="setuptools-scm"):
        rewrite_version(content, "1.0+decideploy.1")


def test_compressed_tag_sets_are_written_one_by_one():
    content = rewrite_wheel_tags(b"Wheel-Version: 1.0\nTag: x-y-z\n", "a-1-py2.py3-none-any.whl")
    assert content == b"Wheel-Version: 1.0\nTag: py2-none-any\nTag: py3-none-any\n"


PATHS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), min_size=1)
ENTRIES = st.builds(
    RecordEntry,
    sha256=st.binary(min_size=32, max_size=32).map(bytes.hex),
    size_bytes=st.integers(min_value=0),
)


@given(st.dictionaries(PATHS, ENTRIES))
def test_record_reads_back_as_written(entries: dict[str, RecordEntry]):
    assert parse_record(format_record(entries).decode()) == entries


def test_lean_wheel_lacks_what_is_left_out_and_nothing_else(wheel: Path, tmp_path: Path):
    (tmp_path / "lean").mkdir()
    lean = leave_out(wheel, tmp_path / "lean" / NAME, ["vllm/lay*"])
    with zipfile.ZipFile(wheel) as whole, WheelFile.open(lean.path) as source:
        source.validate_record()
        with zipfile.ZipFile(lean.path) as archive:
            assert set(whole.namelist()) - set(archive.namelist()) == {"vllm/layer.py"}
            assert "layer.py" not in archive.read(f"{NEW_INFO}/RECORD").decode()
    assert leave_out(wheel, tmp_path / NAME, ["vllm/lay*"]).sha256 == lean.sha256


def test_pattern_that_matches_nothing_is_refused(wheel: Path, tmp_path: Path):
    with pytest.raises(IntegrityError, match="matches vllm/idle, vllm/none") as caught:
        leave_out(wheel, tmp_path / NAME, ["vllm/idle", "vllm/layer.py", "vllm/none"])
    assert "unused_files" in caught.value.next_step
