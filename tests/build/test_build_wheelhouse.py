"""Wheels by hash from a folder, as pip takes them: no index is asked."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from decideploy.build.wheelhouse import required_names, requirement_entries, select_requirements, stage_wheels
from decideploy.errors import ConfigError, IntegrityError

TARGET = {"python": "3.12", "platform": "x86_64-manylinux_2_31"}
OLDER_GLIBC = "cp312-cp312-manylinux_2_28_x86_64"
NEWER_GLIBC = "cp312-cp312-manylinux_2_39_x86_64"


@pytest.fixture(autouse=True)
def _no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")


def write_wheel(folder: Path, name: str, *requires: str, tag: str = "py3-none-any") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-{tag}.whl"
    lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
    with zipfile.ZipFile(path, "w") as wheel:
        info = f"{name}-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{lines}")
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def entry(wheel: Path) -> str:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"{wheel.name.split('-')[0]}==1.0 \\\n    --hash=sha256:{digest}\n"


def write_lock(folder: Path, *wheels: Path) -> Path:
    path = folder / "lock.txt"
    path.write_text("# made\n" + "".join(entry(wheel) for wheel in wheels))
    return path


def test_wheels_of_an_older_glibc_are_staged_and_strangers_left_out(tmp_path: Path) -> None:
    source = tmp_path / "source"
    lock = write_lock(tmp_path, write_wheel(source, "one"), write_wheel(source, "two", tag=OLDER_GLIBC))
    stranger = write_wheel(tmp_path / "into", "stranger")
    staged = stage_wheels([lock], stranger.parent, wheelhouses=[source], **TARGET)
    assert [path.name for path in staged] == ["one-1.0-py3-none-any.whl", f"two-1.0-{OLDER_GLIBC}.whl"]
    assert {path.parent for path in staged} == {stranger.parent}


def test_another_file_of_the_same_name_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "source", "one")
    lock = write_lock(tmp_path, wheel)
    write_wheel(wheel.parent, "one", "another")
    with pytest.raises(IntegrityError, match="HASHES"):
        stage_wheels([lock], tmp_path / "into", wheelhouses=[wheel.parent], **TARGET)


def test_wheel_for_a_newer_glibc_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "source", "one", tag=NEWER_GLIBC)
    with pytest.raises(IntegrityError, match="No matching distribution"):
        stage_wheels([write_lock(tmp_path, wheel)], tmp_path / "into", wheelhouses=[wheel.parent], **TARGET)


def test_python_without_pip_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'python: No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(ConfigError, match="no pip"):
        stage_wheels([write_lock(tmp_path)], tmp_path / "into", **TARGET)


def test_requirements_of_a_wheel_are_followed_to_their_end(tmp_path: Path) -> None:
    source = tmp_path / "source"
    wheels = [
        write_wheel(source, "one", "two"),
        write_wheel(source, "two", "three; python_version >= '3'"),
        write_wheel(source, "three"),
        write_wheel(source, "four"),
    ]
    lock = write_lock(tmp_path, *wheels[1:])
    names = required_names(wheels[0], lock, wheelhouses=[source], **TARGET)
    assert names == {"two", "three"}
    assert select_requirements(lock.read_text(), names) == entry(wheels[1]) + entry(wheels[2])


def test_a_hashed_file_is_split_by_distribution() -> None:
    text = "a-b[c]==1 \\\n    --hash=sha256:0 \\\n    --hash=sha256:1\nsix==2 \\\n    --hash=sha256:2\n"
    entries = dict(requirement_entries(text))
    assert list(entries) == ["a-b", "six"]
    assert "".join(entries.values()) == text
