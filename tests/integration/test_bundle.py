"""The real CPU wheel and decideploy's own dependencies, installed where there is no network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from decideploy import __version__
from decideploy.bundle import BundleOptions, BundleResult, bundle
from decideploy.pins import check_requirements, data_root, load_lock

pytestmark = pytest.mark.integration

PYTHON = "{}.{}".format(*sys.version_info)
OFFLINE = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]


def core() -> set[str]:
    """What decideploy needs to run, by pyproject.toml and by what is installed here."""
    project = tomllib.loads((data_root() / "pyproject.toml").read_text("utf-8"))["project"]
    found: set[str] = set()
    left = list(project["dependencies"])
    while left:
        requirement = Requirement(left.pop())
        name = canonicalize_name(requirement.name)
        if name not in found and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            left += distribution(name).requires or []
    return found


@pytest.fixture(scope="module")
def bundled(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> BundleResult:
    """A bundle without torch and the engine's other dependencies, which take gigabytes and minutes."""
    requirements = data_root() / "build" / "locks" / load_lock("cpu").requirement_file(PYTHON).filename
    without = tuple(sorted(check_requirements(requirements).keys() - core()))
    options = BundleOptions(
        recipe="cpu", python=PYTHON, model=str(demo_model), part_bytes=40 << 20, without=without
    )
    return bundle(options, tmp_path_factory.mktemp("bundle") / "out")


def offline(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command where no network is, with nothing of this environment but PATH."""
    environment = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        [*OFFLINE, *map(str, command)], env=environment, capture_output=True, text=True, check=False
    )


def test_host_without_a_network_gets_the_locked_build_and_verifies_the_model(
    bundled: BundleResult, tmp_path: Path
):
    prefix = tmp_path / "prefix"
    done = offline(bundled.folder / "install.sh", "--prefix", prefix)
    assert done.returncode == 0, done.stderr
    assert f"vllm {load_lock('cpu').wheel.version} as locked" in done.stdout
    command = prefix / "env" / "bin" / "decideploy"
    version = offline(command, "--version")
    assert version.stdout == f"decideploy {__version__}\n", version.stderr
    verified = offline(command, "verify", prefix / "model")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    listed = offline(
        command, "build", "--recipe", "cpu", "--out", tmp_path / "dist", "--wheelhouse", tmp_path
    )
    assert listed.returncode == 3
    assert re.search("could not be downloaded|is not on the index", listed.stderr)


def test_damaged_part_is_refused_there(bundled: BundleResult, tmp_path: Path):
    part = bundled.folder / bundled.manifest.parts[1].name
    content = bytearray(part.read_bytes())
    content[1000] ^= 1
    part.write_bytes(content)
    done = offline(bundled.folder / "install.sh", "--prefix", tmp_path / "prefix")
    assert done.returncode == 3
    assert f"{part.name} is damaged" in done.stderr
    assert not (tmp_path / "prefix").exists()
