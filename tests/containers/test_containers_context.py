"""What is staged for an image, short of its wheels: those are staged for real by the integration tests."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from decideploy.build.project import export_checkout
from decideploy.containers import TARGETS, ImageContext, build_command, load_images, stage_context
from decideploy.errors import ConfigError, IntegrityError

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = ImageContext(folder=Path("staged"), target="verify", arguments={"FLAVOUR": "cpu", "SOURCE": ""})


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


def test_checkout_is_what_git_does_not_ignore_with_plain_modes(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "src").mkdir(parents=True)
    modes = {"src/run": 0o700, "src/text": 0o660, "new": 0o600, "ignored": 0o644, "gone": 0o644}
    for name, mode in modes.items():
        (root / name).write_text(name)
        (root / name).chmod(mode)
    git(tmp_path, "init", "--quiet", "root")
    (root / ".gitignore").write_text("/ignored\n/.gitignore\n")
    git(root, "add", "src", "gone")
    (root / "gone").unlink()
    (root / "src" / "text").write_text("changed")
    export_checkout(root, tmp_path / "out")
    found = {path.name: path for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {name: path.stat().st_mode & 0o777 for name, path in found.items()} == {
        "run": 0o755,
        "text": 0o644,
        "new": 0o644,
    }
    assert found["text"].read_text() == "changed"


def test_folder_that_is_no_checkout_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    with pytest.raises(ConfigError, match="git cannot tell"):
        export_checkout(tmp_path, tmp_path / "out")


def test_unknown_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no target 'gpu'"):
        stage_context("gpu", tmp_path, root=ROOT)


def test_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear reader")
    with pytest.raises(ConfigError, match="not staged here"):
        stage_context("verify", tmp_path, root=ROOT)
    assert (tmp_path / "letter").is_file()


def test_stale_lock_is_refused_before_anything_is_staged(tmp_path: Path) -> None:
    for name in ("build", "patches"):
        shutil.copytree(ROOT / name, tmp_path / "root" / name)
    with (tmp_path / "root" / "build" / "recipes" / "cpu.toml").open("a") as recipe:
        recipe.write("\n# changed\n")
    with pytest.raises(IntegrityError, match="stale"):
        stage_context("cpu", tmp_path / "out", root=tmp_path / "root")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        (("@sha256:", "@sha256:0"), r"bases\.cpu\.image.*bases\.cuda\.image"),
        (('python = "3.12"', "python = 3.12"), r"bases\.cuda\.python"),
        (("schema_version = 1", ""), "schema_version"),
        (("[bases.cuda]", "[bases.rocm]"), r"bases\.rocm"),
        (("[bases.cuda]", "[bases.cuda"), "images.toml"),
    ],
)
def test_faults_of_the_pins_are_named(spoil: tuple[str, str], where: str, tmp_path: Path) -> None:
    text = (ROOT / "build" / "images.toml").read_text()
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "images.toml").write_text(text.replace(*spoil))
    with pytest.raises(ConfigError) as caught:
        load_images(tmp_path)
    assert re.search(where, caught.value.where)


def test_missing_pins_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing"):
        load_images(tmp_path)


def test_buildah_gets_every_argument_and_nothing_that_differs_by_the_clock() -> None:
    command, folder = build_command(CONTEXT, "buildah", tag="mine")
    assert folder == Path("staged")
    assert command[:2] == ["buildah", "build"]
    assert command[-7:] == ["--build-arg", "FLAVOUR=cpu", "--build-arg", "SOURCE=", "--tag", "mine", "."]
    for words in ("--timestamp 0", "--no-cache", "--target verify", "--format oci"):
        assert words in " ".join(command)


def test_hermetic_build_has_no_network() -> None:
    command, _ = build_command(CONTEXT, "buildah", hermetic=True)
    assert command[:4] == ["unshare", "--net", "buildah", "build"]


@pytest.mark.parametrize("target", TARGETS)
def test_docker_bakes_the_target(target: str) -> None:
    context = ImageContext(folder=Path("staged"), target=target, arguments={})
    command, _ = build_command(context, "docker")
    assert command == ["docker", "buildx", "bake", target, "--set", f"*.tags=decideploy:{target}"]
