"""Wheelhouse: the wheels that hashed requirement files name, for a Python and a platform of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename

from decideploy.errors import ConfigError, IntegrityError
from decideploy.pins import check_requirements

_OLDEST_GLIBC_MINOR = 5
_TOLD_LINES = 4


def stage_wheels(
    requirements: Sequence[Path],
    into: Path,
    *,
    python: str,
    platform: str,
    wheelhouses: Sequence[Path] = (),
) -> tuple[Path, ...]:
    """Fetch the wheels of hashed requirement files into the folder ``into``; return them sorted by name.

    ``python`` is such as ``"3.12"``, ``platform`` as recipes write it: ``"x86_64-manylinux_2_31"``. pip looks
    into ``into`` and ``wheelhouses``, then where it is configured to look, and takes only what has a listed
    sha256. A second call fetches what is missing; other files that lie in ``into`` are not returned.

    Raises:
        IntegrityError: a line has no hash, or a wheel is not to be had or is another one.
        ConfigError: this Python has no pip.
    """
    pins = {name: version for path in requirements for name, version in check_requirements(path).items()}
    into.mkdir(parents=True, exist_ok=True)
    files = [argument for path in requirements for argument in ("-r", str(path))]
    arguments = ["download", "--require-hashes", "--no-deps", "--dest", str(into), *files]
    arguments += [*_target(python, platform), *_find_links(into, *wheelhouses)]
    try:
        # Asking the index about two hundred packages takes minutes, and the folders may hold them all.
        _run_pip(arguments, ["--no-index"])
    except IntegrityError:
        _run_pip(arguments)
    return tuple(sorted(path for path in into.glob("*.whl") if _is_pinned(path.name, pins)))


def link_wheels(wheels: Iterable[Path], folder: Path) -> None:
    """Put ``wheels`` into ``folder`` too, as links where the file system lets us: some hold gigabytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        try:
            os.link(wheel, folder / wheel.name)
        except OSError:
            shutil.copyfile(wheel, folder / wheel.name)


def required_names(
    wheel: Path, pins: Path, *, python: str, platform: str, wheelhouses: Sequence[Path] = ()
) -> frozenset[str]:
    """Names of what ``wheel`` needs without its extras, at the versions that the requirement file pins.

    Raises:
        IntegrityError: a line of ``pins`` has no hash, or ``pins`` does not meet what the wheel asks for.
        ConfigError: this Python has no pip.
    """
    with tempfile.TemporaryDirectory(prefix="decideploy-resolve-") as folder:
        constraints, report = Path(folder) / "constraints.txt", Path(folder) / "report.json"
        lines = (f"{name}=={version}\n" for name, version in check_requirements(pins).items())
        constraints.write_text("".join(lines), "utf-8")
        _run_pip(
            ["install", "--dry-run", "--ignore-installed", "--target", folder, "-c", str(constraints)],
            ["--report", str(report), str(wheel), *_target(python, platform), *_find_links(*wheelhouses)],
        )
        found = {canonicalize_name(item["metadata"]["name"]) for item in _installs(report)}
    return frozenset(found - {parse_wheel_filename(wheel.name)[0]})


def select_requirements(text: str, names: Collection[str]) -> str:
    """Return the entries of a hashed requirement file whose name is among ``names``."""
    return "".join(block for name, block in requirement_entries(text) if name in names)


def requirement_entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the lines of each entry of a hashed requirement file."""
    for block in re.findall(r"^[a-z0-9].*\n(?:[ ].*\n)*", text, re.MULTILINE):
        yield re.split(r"[\[=]", block, maxsplit=1)[0], block


def _target(python: str, platform: str) -> list[str]:
    architecture, _, newest = platform.partition("-manylinux_2_")
    # pip takes a platform at its word and does not know that a wheel for an older glibc fits too.
    glibc = [f"manylinux_2_{minor}" for minor in range(int(newest), _OLDEST_GLIBC_MINOR - 1, -1)]
    tags = [f"{name}_{architecture}" for name in (*glibc, "manylinux2014")]
    platforms = [argument for tag in tags for argument in ("--platform", tag)]
    return ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python, *platforms]


def _find_links(*folders: Path) -> list[str]:
    return [argument for folder in folders for argument in ("--find-links", str(folder.absolute()))]


def _run_pip(*arguments: Iterable[str]) -> None:
    command = [sys.executable, "-m", "pip", *(word for words in arguments for word in words)]
    command += ["--quiet", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No module named pip" in done.stderr:
        raise ConfigError(
            "this Python has no pip, which fetches the wheels",
            where=sys.executable,
            next_step="run `python -m ensurepip`, or use the environment of scripts/setup",
        )
    if done.returncode != 0:
        faults = [line for line in done.stderr.splitlines() if line.strip() and "WARNING" not in line]
        raise IntegrityError(
            f"the locked wheels cannot be had: {'; '.join(faults[-_TOLD_LINES:])}",
            where=f"pip {command[3]}",
            next_step="name folders that hold them with --wheelhouse, or point pip at an index that has them",
        )


def _installs(report: Path) -> list[dict[str, dict[str, str]]]:
    found: list[dict[str, dict[str, str]]] = json.loads(report.read_text("utf-8"))["install"]
    return found


def _is_pinned(filename: str, pins: Mapping[str, str]) -> bool:
    name, version, _, _ = parse_wheel_filename(filename)
    return pins.get(name) == str(version)
