"""A checkout small enough to be bundled and installed in a second: its own wheels, and a uv of ten lines."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from build_fixtures import Project, make_project

from decideploy.build import build, leave_out
from decideploy.bundle import BundleOptions, BundleResult, bundle

MakeBundle = Callable[..., BundleResult]

PYTHON = "{}.{}".format(*sys.version_info)
UV = """\
#!/usr/bin/env python3
import os, subprocess, sys, zipfile
if os.environ.get("FAIL_UV"):
    sys.exit("uv was told to fail")
python = sys.argv[sys.argv.index("--python") + 1]
code = "import sysconfig; print(sysconfig.get_path('purelib'))"
site = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
for wheel in (word for word in sys.argv if word.endswith(".whl")):
    zipfile.ZipFile(wheel).extractall(site)
"""
CHECK = """\
from types import SimpleNamespace
def check_installed():
    import demo_dep, vllm
    return SimpleNamespace(version="demo", patches=("one",), lean=False)
"""
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "decideploy"
version = "9"
license = "Apache-2.0"
[tool.hatch.build.targets.wheel]
packages = ["src/decideploy"]
"""


def write_wheel(folder: Path, name: str, files: Mapping[str, str]) -> str:
    """Write NAME-1-py3-none-any.whl; returns its requirement line."""
    path = folder / f"{name.replace('-', '_')}-1-py3-none-any.whl"
    info = f"{name.replace('-', '_')}-1.dist-info"
    members = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\nLicense: MIT\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    members[f"{info}/RECORD"] = "".join(f"{member},,\n" for member in [*members, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in members.items():
            archive.writestr(zipfile.ZipInfo(member, (2026, 1, 2, 3, 4, 6)), text)
    return f"{name}==1 \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def make_bundle_project(tmp_path: Path) -> Project:
    """A git checkout with one recipe, two dependencies of which ``hostlib`` comes with torch, and uv."""
    project = make_project(tmp_path)
    locks = project.root / "build" / "locks"
    lines = [
        write_wheel(project.wheelhouse, name, {f"{name.replace('-', '_')}/__init__.py": ""})
        for name in ("demo-dep", "hostlib")
    ]
    (locks / "demo-py311.txt").write_text("".join(lines))
    uv = write_wheel(project.wheelhouse, "uv", {"uv-1.data/scripts/uv": UV})
    (locks / "bootstrap.txt").write_text(uv)
    recipe = project.recipe_path.read_text().replace('["3.11"]', f'["{PYTHON}"]').replace("2_31", "2_17")
    choice = '[bundle]\nfrom_host = ["host*"]\nunused_packages = []\nunused_files = ["vllm/layer.py"]\n'
    project.recipe_path.write_text(recipe + choice)
    source = project.root / "src" / "decideploy"
    (source / "build").mkdir(parents=True)
    (source / "__init__.py").write_text("")
    (source / "build" / "__init__.py").write_text(CHECK)
    (project.root / "pyproject.toml").write_text(PYPROJECT)
    lock_again(project, tmp_path)
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=project.root, check=True)
    return project


def lock_again(project: Project, tmp_path: Path) -> None:
    """Make the lock agree with the recipe and the requirement file."""
    requirements = project.root / "build" / "locks" / "demo-py311.txt"
    entry = {
        "filename": requirements.name,
        "purpose": "runtime",
        "python": PYTHON,
        "sha256": hashlib.sha256(requirements.read_bytes()).hexdigest(),
    }
    recipe_sha256 = hashlib.sha256(project.recipe_path.read_bytes()).hexdigest()
    project.edit_lock(recipe__sha256=recipe_sha256, requirements=[entry])
    out = tmp_path / "for-lean"
    wheel = build(
        "demo", out, root=project.root, wheelhouses=[project.wheelhouse], cache=tmp_path / "cache"
    ).wheel
    lean = leave_out(wheel, tmp_path / "lean.whl", ["vllm/layer.py"])
    project.edit_lock(
        lean={
            "filename": wheel.name,
            "size_bytes": lean.size_bytes,
            "sha256": lean.sha256,
            "files_sha256": lean.files_sha256,
        }
    )


def bundle_maker(project: Project, folder: Path) -> MakeBundle:
    """Returns what bundles the small checkout below ``folder``; options are those of BundleOptions."""

    def make(out: str = "bundle", **options: object) -> BundleResult:
        chosen = BundleOptions(**{"recipe": "demo", "python": PYTHON, **options})
        return bundle(chosen, folder / out, wheelhouses=[project.wheelhouse], root=project.root)

    return make
