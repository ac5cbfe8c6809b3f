from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from decideploy.bundle.manifest import read_manifest

# They run pip, hatchling and the installer.
pytestmark = pytest.mark.integration


def install(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable, **variables}
    return subprocess.run(
        [str(folder / "install.sh"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def python_of(prefix: Path, code: str) -> str:
    done = subprocess.run(
        [str(prefix / "env" / "bin" / "python"), "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def edit_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_installs_packages_and_model_and_checks_the_build(bundled: Path, tmp_path: Path):
    prefix = tmp_path / "prefix"
    done = install(bundled, "--prefix", str(prefix))
    assert done.returncode == 0, done.stderr
    assert "vllm demo as locked, with one" in done.stdout
    assert python_of(prefix, "import demo_dep, hostlib, vllm; print(vllm.__file__)").startswith(str(prefix))
    assert (prefix / "model" / "config.json").read_text() == "{}"
    assert sorted(path.name for path in prefix.iterdir()) == ["bundle.json", "env", "model"]
    again = install(bundled, "--prefix", str(prefix))
    assert (again.returncode, "already" in again.stdout) == (0, True)


def test_goes_on_after_an_interruption(bundled: Path, tmp_path: Path):
    prefix = tmp_path / "prefix"
    failed = install(bundled, "--prefix", str(prefix), FAIL_UV="1")
    assert failed.returncode == 1
    assert "uv was told to fail" in failed.stderr
    assert not (prefix / "bundle.json").exists()
    wheels = sorted((prefix / ".install" / "wheels").iterdir())
    wheels[0].unlink()
    wheels[1].write_bytes(b"half")
    kept = wheels[2].stat().st_mtime_ns
    # What was unpacked whole stays as it is; a missing and a half file are unpacked again.
    os.utime(wheels[2], ns=(kept - 10**9, kept - 10**9))
    done = install(bundled, "--prefix", str(prefix))
    assert done.returncode == 0, done.stderr
    assert f"unpacking 2 of {len(read_manifest(bundled).files)} files" in done.stdout


def test_every_fault_of_the_parts_is_named_before_anything_is_written(bundled: Path, tmp_path: Path):
    parts = read_manifest(bundled).parts
    names = [part.name for part in parts]
    (bundled / names[0]).unlink()
    content = bytearray((bundled / names[1]).read_bytes())
    content[5] ^= 1
    (bundled / names[1]).write_bytes(content)
    (bundled / names[-1]).write_bytes(b"short")
    (bundled / "bundle.tar.999").write_bytes(b"")
    done = install(bundled, "--prefix", str(tmp_path / "prefix"))
    assert done.returncode == 3
    assert [line for line in done.stderr.splitlines() if line.startswith("error: bundle.tar.")] == [
        "error: bundle.tar.999 is extra: the manifest does not name it",
        f"error: {names[0]} is missing",
        f"error: {names[1]} is damaged: its sha256 is not {parts[1].sha256}",
        f"error: {names[-1]} is damaged: 5 bytes, not {parts[-1].size_bytes}",
    ]
    assert not (tmp_path / "prefix").exists()


def test_check_writes_nothing(bundled: Path):
    before = sorted(bundled.iterdir())
    done = install(bundled, "--check")
    assert (done.returncode, sorted(bundled.iterdir())) == (0, before)
    assert "parts are whole" in done.stdout


def test_host_that_does_not_fit_is_told_why(bundled: Path, tmp_path: Path):
    edit_manifest(bundled, python="3.8", platform="riscv64-manylinux_9_99", host_torch=True)
    done = install(bundled, "--prefix", str(tmp_path / "prefix"))
    assert done.returncode == 3
    for reason in ("for Python 3.8", "for riscv64", "needs glibc 9.99", "made without torch"):
        assert reason in done.stderr
    assert not (tmp_path / "prefix").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 2}'])
def test_manifest_that_cannot_be_read_is_refused(bundled: Path, tmp_path: Path, text: str):
    (bundled / "manifest.json").write_text(text)
    done = install(bundled, "--prefix", str(tmp_path / "prefix"))
    assert (done.returncode, "manifest.json" in done.stderr) == (3, True)


def test_prefix_with_other_things_is_left_alone(bundled: Path, tmp_path: Path):
    (tmp_path / "notes").write_text("mine")
    done = install(bundled, "--prefix", str(tmp_path))
    assert (done.returncode, "holds something else" in done.stderr) == (3, True)
    done = install(bundled, "--prefix", str(tmp_path / "notes"))
    assert (done.returncode, "is no folder" in done.stderr) == (3, True)


def test_another_bundle_does_not_go_on_where_this_one_stopped(bundled: Path, tmp_path: Path):
    prefix = tmp_path / "prefix"
    install(bundled, "--prefix", str(prefix), FAIL_UV="1")
    edit_manifest(bundled, decideploy="another")
    done = install(bundled, "--prefix", str(prefix))
    assert (done.returncode, "holds another bundle" in done.stderr) == (3, True)


def test_existing_torch_comes_from_the_host_behind_the_own_packages(bundled: Path, tmp_path: Path):
    prefix = tmp_path / "prefix"
    done = install(bundled, "--prefix", str(prefix), "--existing-torch")
    assert done.returncode == 0, done.stderr
    assert python_of(prefix, "import importlib.util as u; print(u.find_spec('hostlib'))") == "None"
    places = python_of(
        prefix, "import importlib.util as u; print(u.find_spec('torch').origin, u.find_spec('vllm').origin)"
    ).split()
    assert not places[0].startswith(str(prefix))
    assert places[1].startswith(str(prefix))
