from __future__ import annotations

from pathlib import Path

import pytest
from build_fixtures import CHANGE, HEADER, patch_text, write_series

from decideploy.build import lint_series, read_series
from decideploy.build.series import parse_header
from decideploy.build.unified_diff import DiffError, parse_diff
from decideploy.errors import PatchError
from decideploy.pins import data_root

GOOD = "0001-say-less.patch"


def test_series_of_this_project_has_no_faults():
    assert lint_series(data_root()) == []
    assert len(read_series(data_root())) >= 1


def test_patch_names_its_files_and_header(tmp_path: Path):
    (patch,) = read_series(write_series(tmp_path, {GOOD: patch_text()}))
    assert patch.paths == ("vllm/layer.py",)
    assert patch.header["Description"] == "say less\nwhy"
    assert patch.description == "say less"


@pytest.mark.parametrize(
    ("patches", "series", "fault"),
    [
        ({GOOD: patch_text()}, "", f"{GOOD} is not in the series"),
        ({GOOD: patch_text()}, f"{GOOD}\n{GOOD}\n", "listed twice"),
        ({GOOD: patch_text()}, f"{GOOD}\n0002-gone.patch\n", "0002-gone.patch does not exist"),
        ({"0002-two.patch": patch_text()}, "0002-two.patch\n", "not named 0001-slug.patch"),
        ({"fix.patch": patch_text()}, "fix.patch\n", "not named 0001-slug.patch"),
        ({GOOD: patch_text(header="---\n")}, f"{GOOD}\n", "lacks Description"),
        ({GOOD: patch_text(header=HEADER.replace("Author: A\n", ""))}, f"{GOOD}\n", "lacks Origin or Author"),
        ({GOOD: patch_text(header=HEADER.replace("2026-01-02", "soon"))}, f"{GOOD}\n", "is no date"),
        ({GOOD: HEADER}, f"{GOOD}\n", "it changes no file"),
        ({GOOD: patch_text() + patch_text(header="")}, f"{GOOD}\n", "changed twice"),
    ],
)
def test_malformed_series_is_refused(tmp_path: Path, patches: dict[str, str], series: str, fault: str):
    write_series(tmp_path, patches, series)
    assert any(fault in diagnostic.what for diagnostic in lint_series(tmp_path))
    with pytest.raises(PatchError, match=fault):
        read_series(tmp_path)


def test_every_fault_is_told_at_once(tmp_path: Path):
    patches = {GOOD: patch_text(header="---\n"), "0009-orphan.patch": patch_text()}
    with pytest.raises(PatchError) as caught:
        read_series(write_series(tmp_path, patches, f"{GOOD}\n"))
    for fault in ("0009-orphan.patch", "Description", "Forwarded", "Last-Update"):
        assert fault in str(caught.value)


def test_path_outside_record_is_a_fault(tmp_path: Path):
    write_series(tmp_path, {GOOD: patch_text()})
    assert lint_series(tmp_path, {"vllm/layer.py"}) == []
    (fault,) = lint_series(tmp_path, {"vllm/other.py"})
    assert "vllm/layer.py is not in the upstream wheel's RECORD" in fault.what


def test_missing_series_is_a_fault(tmp_path: Path):
    (fault,) = lint_series(tmp_path)
    assert fault.where == "patches/series"
    assert fault.next_step


def test_series_that_is_not_text_is_a_fault(tmp_path: Path):
    write_series(tmp_path, {})
    (tmp_path / "patches" / "series").write_bytes(b"0001-\xff.patch\n")
    (fault,) = lint_series(tmp_path)
    assert "not UTF-8" in fault.what
    with pytest.raises(PatchError, match="not UTF-8"):
        read_series(tmp_path)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (patch_text(hunks=CHANGE.replace("-9,7", "-9,8")), "shorter than its header"),
        (patch_text(hunks=CHANGE.replace("-9,7 +9,7", "-9,6 +9,6")), "longer than its header"),
        (patch_text(hunks="@@ -12 +12 @@\n-line 12\n+line twelve\n"), "without context"),
        (patch_text(hunks=""), "without a hunk"),
        (patch_text(path="../escape.py"), "out of the tree"),
        (patch_text().replace("--- a/vllm/layer.py", "--- /dev/null"), "of one file"),
        (patch_text().replace("+++ b/vllm/layer.py", "+++ b/vllm/other.py"), "of one file"),
        (HEADER + "diff --git a/x b/y\nrename from x\nrename to y\n", "existing text files"),
        (
            HEADER + "diff --git a/x b/x\nnew file mode 100644\n--- /dev/null\n+++ b/x\n",
            "existing text files",
        ),
        (HEADER + CHANGE, "belongs to no file"),
        (patch_text().rstrip("\n"), "no newline"),
    ],
)
def test_diff_that_could_be_misread_is_refused(text: str, fault: str):
    with pytest.raises(DiffError, match=fault):
        parse_diff(text)


def test_diff_accepts_a_signature_and_a_missing_newline_mark():
    hunks = CHANGE + "\\ No newline at end of file\n-- \n2.39\n"
    assert [file.hunks for file in parse_diff(patch_text(hunks=hunks))] == [1]


def test_header_stops_at_the_diff():
    fields = parse_header("Description: a: b\n c\nForwarded: no\ndiff --git a/x b/x\nOrigin: late\n")
    assert fields == {"Description": "a: b\nc", "Forwarded": "no"}
