from __future__ import annotations

from pathlib import Path

import pytest
from build_fixtures import Project, make_project

from decideploy.errors import ConfigError, IntegrityError
from decideploy.pins import check_lock, check_requirements, data_root, load_lock, load_recipe, recipe_names


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path)


def check(project: Project) -> None:
    check_lock(
        load_recipe("demo", root=project.root), load_lock("demo", root=project.root), root=project.root
    )


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_locks_of_this_project_are_fresh(name: str):
    assert name in recipe_names()
    lock = load_lock(name)
    check_lock(load_recipe(name), lock)
    for file in lock.requirements:
        assert check_requirements(data_root() / "build" / "locks" / file.filename)


def test_fresh_lock_passes(project: Project):
    check(project)


def test_stale_recipe_is_named(project: Project):
    path = project.recipe_path
    path.write_text(path.read_text() + "# a remark\n")
    with pytest.raises(IntegrityError, match="update_pins") as caught:
        check(project)
    assert caught.value.where == "build/locks/demo.json: recipe.sha256"


def test_all_stale_keys_are_told(project: Project):
    path = project.recipe_path
    path.write_text(path.read_text().replace("decideploy.1", "decideploy.2"))
    with pytest.raises(IntegrityError, match=r"wheel\.version"):
        check(project)


def test_stale_series_is_named(project: Project):
    (project.root / "patches" / "0001-say-less.patch").write_text("other\n")
    with pytest.raises(IntegrityError) as caught:
        check(project)
    assert caught.value.where == "build/locks/demo.json: series.sha256"


def test_series_that_names_a_missing_patch_is_told(project: Project):
    (project.root / "patches" / "0001-say-less.patch").unlink()
    with pytest.raises(IntegrityError, match=r"0001-say-less\.patch, which does not exist"):
        check(project)


@pytest.mark.parametrize("change", ["edit", "delete"])
def test_stale_requirement_file_is_named(project: Project, change: str):
    path = project.root / "build" / "locks" / "demo-py311.txt"
    if change == "edit":
        path.write_text(path.read_text() + "\n")
    else:
        path.unlink()
    with pytest.raises(IntegrityError) as caught:
        check(project)
    assert caught.value.where == "build/locks/demo.json: requirements[0].sha256 (demo-py311.txt)"


@pytest.mark.parametrize("value", [None, "", "abc", "G" * 64, "A" * 64])
@pytest.mark.parametrize("key", ["upstream__wheel__sha256", "wheel__sha256", "recipe__sha256"])
def test_missing_or_malformed_digest_stops_with_its_key(project: Project, key: str, value: str | None):
    project.edit_lock(**{key: value})
    with pytest.raises(IntegrityError) as caught:
        load_lock("demo", root=project.root)
    assert caught.value.where == f"build/locks/demo.json: {key.replace('__', '.')}"


def test_unknown_key_is_refused(project: Project):
    project.edit_lock(wheel__colour="red")
    with pytest.raises(ConfigError) as caught:
        load_lock("demo", root=project.root)
    assert caught.value.where == "build/locks/demo.json: wheel.colour"


def test_missing_lock_is_told(project: Project):
    project.lock_path.unlink()
    with pytest.raises(IntegrityError, match="has no lock"):
        load_lock("demo", root=project.root)


def test_lock_names_the_requirement_file_of_a_python(project: Project):
    lock = load_lock("demo", root=project.root)
    assert lock.requirement_file("3.11").filename == "demo-py311.txt"
    with pytest.raises(ConfigError, match=r"use Python 3\.11"):
        lock.requirement_file("3.9")


@pytest.mark.parametrize(
    "line",
    [
        "numpy==2.0",
        "numpy>=2.0 --hash=sha256:" + "0" * 64,
        "numpy==2.0 --hash=sha256:abc",
        "numpy==2.0 --hash=md5:" + "0" * 32,
        "--index-url http://127.0.0.1/simple",
    ],
)
def test_requirement_without_exact_version_and_digest_is_named(tmp_path: Path, line: str):
    path = tmp_path / "demo-py311.txt"
    path.write_text(f"# a remark\nsix==1.0 \\\n    --hash=sha256:{'0' * 64}\n{line}\n")
    with pytest.raises(IntegrityError) as caught:
        check_requirements(path)
    assert caught.value.where.startswith("build/locks/demo-py311.txt: ")


def test_requirements_are_read(tmp_path: Path):
    path = tmp_path / "demo-py311.txt"
    digest = f"--hash=sha256:{'0' * 64}"
    path.write_text(
        f"six==1.0 \\\n    {digest} \\\n    {digest}\na-b[c]==2 ; python_version > '3' {digest}\n"
    )
    assert check_requirements(path) == {"six": "1.0", "a-b": "2"}
