from __future__ import annotations

import difflib
import subprocess
from pathlib import Path

import pytest
from build_fixtures import CHANGE, HEADER, LAYER, patch_text, write_series
from hypothesis import given, settings
from hypothesis import strategies as st

from decideploy.build import Patch, apply_series, apply_to_tree, read_series
from decideploy.errors import ConfigError, PatchError

TREE = {"vllm/layer.py": LAYER.encode()}
CHANGED = LAYER.replace("line 12\n", "line twelve\n").encode()


def series_of(root: Path, *texts: str) -> tuple[Patch, ...]:
    return read_series(write_series(root, {f"{n:04d}-p.patch": text for n, text in enumerate(texts, 1)}))


def test_applies_in_order(tmp_path: Path):
    second = patch_text(hunks=CHANGE.replace("-line 12", "-line twelve").replace("+line twelve", "+line XII"))
    series = series_of(tmp_path, patch_text(), second)
    assert apply_series(series, TREE.__getitem__) == {
        "vllm/layer.py": LAYER.replace("line 12\n", "line XII\n").encode()
    }


@pytest.mark.parametrize(
    ("hunks", "why"),
    [
        (CHANGE.replace("-9,7 +9,7", "-7,7 +7,7"), "inexactly.*offset"),
        (CHANGE.replace(" line 9\n", " line nine\n"), "does not apply"),
        (CHANGE.replace(" line 9\n", " line  9\n"), "does not apply"),
        (CHANGE.replace("-line 12\n", "-line XII\n"), "does not apply"),
        (CHANGE.replace("+line twelve\n", "+line 12\n"), "other files than it names"),
    ],
)
def test_inexact_patch_is_refused(tmp_path: Path, hunks: str, why: str):
    series = series_of(tmp_path, patch_text(hunks=hunks))
    with pytest.raises(PatchError, match=why):
        apply_series(series, TREE.__getitem__)


def test_patch_of_a_file_that_is_not_shipped_is_refused(tmp_path: Path):
    series = series_of(tmp_path, patch_text(path="csrc/kernel.cu"))
    with pytest.raises(PatchError, match=r"csrc/kernel\.cu, which the upstream release does not ship"):
        apply_series(series, TREE.__getitem__)


def test_enclosing_repository_and_hook_environment_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    scratch = repository / "scratch"
    scratch.mkdir()
    series = series_of(tmp_path, patch_text())
    # This is the trap itself: there git skips the hunk and still exits 0.
    (scratch / "vllm").mkdir()
    (scratch / "vllm" / "layer.py").write_bytes(LAYER.encode())
    trap = subprocess.run(["git", "apply", "-"], cwd=scratch, input=series[0].content, check=False)
    assert trap.returncode == 0
    assert (scratch / "vllm" / "layer.py").read_bytes() == LAYER.encode()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    assert apply_series(series, TREE.__getitem__) == {"vllm/layer.py": CHANGED}
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(repository))
    assert apply_series(series, TREE.__getitem__) == {"vllm/layer.py": CHANGED}


def test_settings_of_the_user_do_not_rewrite_white_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = tmp_path / "config"
    config.write_text("[apply]\n whitespace = fix\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    series = series_of(tmp_path, patch_text(hunks=CHANGE.replace("line twelve", "line twelve  ")))
    assert b"line twelve  \n" in apply_series(series, TREE.__getitem__)["vllm/layer.py"]


def test_tree_is_left_alone_unless_the_whole_series_applies(tmp_path: Path):
    tree = tmp_path / "tree"
    (tree / "vllm").mkdir(parents=True)
    (tree / "vllm" / "layer.py").write_bytes(LAYER.encode())
    good, bad = patch_text(), patch_text()
    with pytest.raises(PatchError, match=r"0002-p\.patch does not apply"):
        apply_to_tree(series_of(tmp_path / "bad", good, bad), tree)
    assert (tree / "vllm" / "layer.py").read_bytes() == LAYER.encode()
    assert apply_to_tree(series_of(tmp_path / "good", good), tree) == ("vllm/layer.py",)
    assert (tree / "vllm" / "layer.py").read_bytes() == CHANGED


def test_missing_git_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="git is not installed"):
        apply_series(series_of(tmp_path, patch_text()), TREE.__getitem__)


def test_git_that_cannot_be_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "git").write_text("#!/bin/sh\n")
    (tmp_path / "git").chmod(0o644)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="git cannot be run") as caught:
        apply_series(series_of(tmp_path, patch_text()), TREE.__getitem__)
    assert str(tmp_path) in caught.value.where
    assert "executable" in caught.value.next_step


LINES = st.lists(st.sampled_from(["a", "b", "c", "", "  d", "-e", "+f"]), min_size=4, max_size=25)


@settings(max_examples=25, deadline=None)
@given(old=LINES, new=LINES)
def test_any_diff_of_two_texts_leads_from_one_to_the_other(
    tmp_path_factory: pytest.TempPathFactory, old: list[str], new: list[str]
):
    before, after = (
        [f"{line}\n" for line in lines] for lines in (["top", *old, "end"], ["top", *new, "end"])
    )
    diff = "".join(difflib.unified_diff(before, after, "a/vllm/layer.py", "b/vllm/layer.py"))
    if not diff:
        return
    series = series_of(tmp_path_factory.mktemp("series"), HEADER + diff)
    tree = {"vllm/layer.py": "".join(before).encode()}
    assert apply_series(series, tree.__getitem__) == {"vllm/layer.py": "".join(after).encode()}
