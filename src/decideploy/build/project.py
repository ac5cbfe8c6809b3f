"""decideploy's own wheel, built from what git does not ignore."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from decideploy.build.zip_archive import ZipWriter, open_zip
from decideploy.errors import ConfigError


def project_wheel(root: Path, into: Path) -> Path:
    """Build the wheel of the checkout ``root`` into the folder ``into`` and return its path.

    Files that git ignores stay out. Members are stored, so that the bytes do not depend on the compressor of
    this Python.

    Raises:
        ConfigError: ``root`` is no git checkout, or hatchling is not installed.
    """
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".project-", dir=into) as folder:
        checkout, out = Path(folder) / "checkout", Path(folder) / "dist"
        export_checkout(root, checkout)
        built = _run_hatchling(checkout, out)
        target = into / built.name
        with open_zip(built) as source, target.open("wb") as file:
            writer = ZipWriter(file)
            for name, info in source.members.items():
                writer.add(name, info, source.read(name))
            writer.close()
    return target


def _run_hatchling(checkout: Path, out: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ConfigError(
            f"the project's wheel cannot be built: {done.stderr.strip()[-300:]}",
            where=" ".join(command),
            next_step="use the environment of scripts/setup, which has hatchling",
        )
    (wheel,) = out.glob("*.whl")
    return wheel


def export_checkout(root: Path, folder: Path) -> None:
    """Copy what git does not ignore below ``root``, as it is now, with modes 0755 or 0644.

    Raises:
        ConfigError: ``root`` is no git checkout.
    """
    for name in _names(root):
        source, copy = root / name, folder / name
        if source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            copy.chmod(0o755 if os.access(source, os.X_OK) else 0o644)


def _names(root: Path) -> list[str]:
    listed = ask_git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return sorted({name for name in listed.split("\0") if name})


def ask_git(root: Path, *arguments: str, allowed: Sequence[int] = (0,)) -> str:
    """Return what ``git`` prints in the checkout ``root``.

    Raises:
        ConfigError: git is not installed, or its exit status is not ``allowed``: ``root`` is no checkout.
    """
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ConfigError(
            "git is not installed", where="git", next_step="install git: it tells what belongs to a checkout"
        ) from error
    if done.returncode not in allowed:
        raise ConfigError(
            f"git cannot tell what belongs to the checkout: {done.stderr.strip()}",
            where=str(root),
            next_step="work in a git checkout of decideploy",
        )
    return done.stdout
