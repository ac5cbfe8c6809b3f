#!/usr/bin/env python3
"""Regenerate build/locks from build/recipes, patches/ and pyproject.toml.

Without an option the differences are shown and nothing is written. ``--write`` writes them;
``--check`` compares digests offline, for pre-commit and CI, and exits 3 with the stale key named.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from packaging.requirements import Requirement  # noqa: E402
from packaging.utils import canonicalize_name  # noqa: E402

from decideploy.build import PackedWheel, leave_out, read_series, repack, wheel_filename  # noqa: E402
from decideploy.build.wheelhouse import requirement_entries  # noqa: E402
from decideploy.errors import ConfigError, Error, IntegrityError  # noqa: E402
from decideploy.pins import (  # noqa: E402
    Recipe,
    cache_folder,
    check_lock,
    check_requirements,
    fetch,
    load_lock,
    load_recipe,
    recipe_names,
)
from decideploy.pins.lock import (  # noqa: E402
    REGENERATE,
    LeanWheel,
    Lock,
    OutputWheel,
    RecipeDigest,
    RequirementFile,
    digest_series,
    file_sha256,
)
from decideploy.pins.recipe import TorchPin, recipe_path  # noqa: E402

LOCKS = ROOT / "build" / "locks"
BOOTSTRAP = ROOT / "build" / "recipes" / "bootstrap.in"
# The recipe whose environment the tests and the linters run in.
DEVELOPMENT_RECIPE = "cpu"
DEVELOPMENT_GROUPS = ("test", "lint")
HEADER = "# Written by scripts/update_pins.py --write; change the recipe or pyproject.toml, not this file.\n"

Purpose = Literal["runtime", "development", "bootstrap"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedFile:
    """One requirement file that a recipe leads to."""

    filename: str
    purpose: Purpose
    python: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = parse_arguments(argv)
    names = [options.recipe] if options.recipe else list(recipe_names(ROOT))
    try:
        if options.check:
            check(names)
            return 0
        return regenerate(names, options)
    except Error as error:
        print(error, file=sys.stderr)
        return error.exit_code


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", choices=recipe_names(ROOT), help="only this recipe (default: all)")
    parser.add_argument(
        "--only",
        choices=("wheel", "requirements"),
        help="wheel: series and output wheel, requirement files as they are; requirements: the reverse",
    )
    parser.add_argument("--wheelhouse", type=Path, action="append", default=[], help="folder searched first")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--write", action="store_true", help="write the differences")
    mode.add_argument("--check", action="store_true", help="compare digests, offline")
    return parser.parse_args(argv)


def check(names: Iterable[str]) -> None:
    """Check every lock against recipe, series, requirement files and pyproject.toml, offline."""
    for name in names:
        recipe, lock = load_recipe(name, root=ROOT), load_lock(name, root=ROOT)
        check_lock(recipe, lock, root=ROOT)
        planned = {(file.filename, file.purpose, file.python) for file in planned_files(recipe)}
        locked = {(file.filename, file.purpose, file.python) for file in lock.requirements}
        if planned != locked:
            raise stale(name, "requirements", str(sorted(planned)), str(sorted(locked)))
        for file in planned_files(recipe):
            check_satisfied(recipe, file)


def check_satisfied(recipe: Recipe, file: PlannedFile) -> None:
    """Check that what pyproject.toml asks for is met by the versions in a requirement file."""
    pins = check_requirements(LOCKS / file.filename)
    if file.purpose == "development":
        pins |= check_requirements(LOCKS / runtime_filename(recipe, file.python))
    environment = {"python_version": file.python, "python_full_version": f"{file.python}.0"}
    for line in wanted(recipe, file):
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate(environment):
            continue
        version = pins.get(canonicalize_name(requirement.name), "")
        if not version or not requirement.specifier.contains(version, prereleases=True):
            raise stale(recipe.name, f"requirements ({file.filename})", line, version or "no such entry")


def stale(name: str, key: str, expected: str, actual: str) -> IntegrityError:
    """Return the error for a lock that no longer follows from its inputs."""
    return IntegrityError(
        "the lock is stale",
        where=f"build/locks/{name}.json: {key}",
        expected=expected,
        actual=actual,
        next_step=REGENERATE,
    )


def wanted(recipe: Recipe, file: PlannedFile) -> list[str]:
    """Return what is asked for by hand: lines of pyproject.toml or of bootstrap.in."""
    if file.purpose == "bootstrap":
        return BOOTSTRAP.read_text(encoding="utf-8").split()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if file.purpose == "development":
        return [line for group in DEVELOPMENT_GROUPS for line in project["dependency-groups"][group]]
    extras = project["project"].get("optional-dependencies", {})
    own: list[str] = project["project"]["dependencies"]
    return own + [line for extra in recipe.requirements.extras for line in extras[extra]]


def runtime_filename(recipe: Recipe, python: str) -> str:
    """Return the name of the runtime requirement file, such as ``cpu-py311.txt``."""
    return f"{recipe.name}-py{python.replace('.', '')}.txt"


def planned_files(recipe: Recipe) -> list[PlannedFile]:
    """List the requirement files of a recipe, each before those that build on it."""
    pythons = recipe.requirements.pythons
    files = [
        PlannedFile(filename=runtime_filename(recipe, python), purpose="runtime", python=python)
        for python in pythons
    ]
    if recipe.name != DEVELOPMENT_RECIPE:
        return files
    files += [
        PlannedFile(filename=f"dev-py{python.replace('.', '')}.txt", purpose="development", python=python)
        for python in pythons
    ]
    return [*files, PlannedFile(filename="bootstrap.txt", purpose="bootstrap", python=pythons[0])]


def regenerate(names: Iterable[str], options: argparse.Namespace) -> int:
    """Make all files in a temporary folder, show the differences, and write them if told to."""
    with tempfile.TemporaryDirectory(prefix="decideploy-pins-") as folder:
        made = Path(folder)
        for name in names:
            make_lock(load_recipe(name, root=ROOT), made, options)
        changed = show_differences(made)
        if changed and options.write:
            for filename in changed:
                shutil.copyfile(made / filename, LOCKS / filename)
    verb = "written" if options.write else "differ; run again with --write"
    print(f"{len(changed)} files {verb}" if changed else "the locks are up to date", file=sys.stderr)
    return 0


def show_differences(made: Path) -> list[str]:
    """Print a unified diff of each made file against build/locks; return the names that differ."""
    changed = []
    for path in sorted(path for path in made.iterdir() if path.is_file()):
        current = LOCKS / path.name
        old = current.read_text(encoding="utf-8").splitlines(True) if current.is_file() else []
        new = path.read_text(encoding="utf-8").splitlines(True)
        name = f"build/locks/{path.name}"
        difference = list(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))
        if difference:
            changed.append(path.name)
            sys.stdout.writelines(difference)
    return changed


def make_lock(recipe: Recipe, made: Path, options: argparse.Namespace) -> None:
    """Write the requirement files and the lock of one recipe into ``made``."""
    upstream = fetch(recipe.wheel_artifact, cache_folder(), wheelhouses=options.wheelhouse)
    for file in planned_files(recipe):
        if options.only == "wheel":
            keep_requirements(file, made)
        else:
            print(f"resolving {file.filename}", file=sys.stderr)
            (made / file.filename).write_text(resolve(recipe, file, upstream, made), encoding="utf-8")
    wheel, lean = kept_wheels(recipe) if options.only == "requirements" else build_wheels(recipe, upstream)
    lock = Lock(
        schema_version=1,
        recipe=RecipeDigest(name=recipe.name, sha256=file_sha256(recipe_path(recipe.name, ROOT))),
        series=digest_series(ROOT),
        upstream=recipe.upstream,
        requirements=tuple(digest_file(file, made) for file in planned_files(recipe)),
        wheel=wheel,
        lean=lean,
    )
    text = json.dumps(lock.model_dump(mode="json", exclude_none=True), indent=2) + "\n"
    (made / f"{recipe.name}.json").write_text(text, encoding="utf-8")


def keep_requirements(file: PlannedFile, made: Path) -> None:
    """Take a requirement file over as it is."""
    current = LOCKS / file.filename
    if not current.is_file():
        raise ConfigError(
            "there is no requirement file to keep",
            where=f"build/locks/{file.filename}",
            next_step="run again without --only wheel",
        )
    shutil.copyfile(current, made / file.filename)


def digest_file(file: PlannedFile, made: Path) -> RequirementFile:
    """Return the lock's entry for a requirement file."""
    check_requirements(made / file.filename)
    return RequirementFile(
        filename=file.filename,
        purpose=file.purpose,
        python=file.python,
        sha256=file_sha256(made / file.filename),
    )


def kept_wheels(recipe: Recipe) -> tuple[OutputWheel, LeanWheel | None]:
    """Take the digests of the output wheels over as they are."""
    lock = load_lock(recipe.name, root=ROOT)
    return lock.wheel, lock.lean


def build_wheels(recipe: Recipe, upstream: Path) -> tuple[OutputWheel, LeanWheel | None]:
    """Build the patched wheel, and the lean one where the recipe has one, to learn their digests."""
    print(f"building {wheel_filename(recipe)}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="decideploy-wheel-") as folder:
        target = Path(folder) / wheel_filename(recipe)
        packed = repack(upstream, target, recipe=recipe, series=read_series(ROOT))
        unused = recipe.bundle.unused_files
        lean = leave_out(target, Path(folder) / "lean.whl", unused) if unused else None
    wheel = OutputWheel(version=recipe.output.version, **pinned(packed, target.name))
    return wheel, LeanWheel(**pinned(lean, target.name)) if lean else None


def pinned(packed: PackedWheel, filename: str) -> dict[str, Any]:
    """Return what a lock says of a wheel that was built."""
    return {
        "filename": filename,
        "size_bytes": packed.size_bytes,
        "sha256": packed.sha256,
        "files_sha256": packed.files_sha256,
    }


def resolve(recipe: Recipe, file: PlannedFile, upstream: Path, made: Path) -> str:
    """Resolve one requirement file and return its text."""
    lines = wanted(recipe, file)
    if file.purpose == "runtime":
        lines = [*upstream_requirements(upstream, recipe), *lines]
    constraints = made / runtime_filename(recipe, file.python) if file.purpose == "development" else None
    blocks = compile_requirements(recipe, file.python, lines, constraints)
    if constraints:
        # Installed beside the runtime file: what that already pins is not repeated.
        runtime = check_requirements(constraints)
        blocks = {name: block for name, block in blocks.items() if name not in runtime}
    elif recipe.torch and "torch" in blocks:
        blocks["torch"] = torch_block(recipe.torch, file.python)
    return HEADER + "".join(blocks.values())


def upstream_requirements(wheel: Path, recipe: Recipe) -> list[str]:
    """Read what the upstream wheel asks for, extras and the recipe's exclusions aside."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        headers = HeaderParser().parsestr(archive.read(name).decode())
    lines = [str(line) for line in headers.get_all("Requires-Dist") or []]
    parsed = ((line, Requirement(line)) for line in lines)
    return [
        line
        for line, requirement in parsed
        if "extra ==" not in str(requirement.marker) and not recipe.requirements.excludes(requirement.name)
    ]


def compile_requirements(
    recipe: Recipe, python: str, lines: Sequence[str], constraints: Path | None
) -> dict[str, str]:
    """Run ``uv pip compile``; return name → the lines of its entry, hashes included."""
    with tempfile.TemporaryDirectory(prefix="decideploy-resolve-") as folder:
        work = Path(folder)
        (work / "requirements.in").write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = uv_command(recipe, python)
        if recipe.torch:
            write_torch_stub(recipe.torch, work)
            command += ["--find-links", str(work)]
        if constraints:
            pins = "".join(
                f"{name}=={version}\n" for name, version in check_requirements(constraints).items()
            )
            (work / "constraints.txt").write_text(pins, encoding="utf-8")
            command += ["--constraints", "constraints.txt"]
        return dict(requirement_entries(run_uv([*command, "requirements.in"], work)))


def uv_command(recipe: Recipe, python: str) -> list[str]:
    """Return the uv command line, the input file aside."""
    settings = recipe.requirements
    return [
        *(uv_program(), "pip", "compile", "--quiet", "--no-config", "--generate-hashes"),
        *("--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"),
        *("--only-binary", ":all:", "--python-version", python, "--python-platform", settings.platform),
        *("--exclude-newer", settings.exclude_newer.isoformat().replace("+00:00", "Z")),
    ]


def uv_program() -> str:
    """Return the uv beside this Python, else the one on PATH."""
    return shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"


def run_uv(command: Sequence[str], work: Path) -> str:
    """Run uv and return what it prints."""
    try:
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ConfigError(
            "uv is not installed", where="uv pip compile", next_step="install build/recipes/bootstrap.in"
        ) from error
    if done.returncode != 0:
        raise ConfigError(
            f"the requirements cannot be resolved: {done.stderr.strip()}",
            where=" ".join(command),
            next_step="correct the recipe or pyproject.toml",
        )
    return done.stdout


def torch_block(torch: TorchPin, python: str) -> str:
    """Return torch's entry, with the recipe's digest in place of the stub's."""
    return f"torch=={torch.version} \\\n    --hash=sha256:{torch.sha256[python]}\n"


def write_torch_stub(torch: TorchPin, folder: Path) -> None:
    """Write a wheel that is metadata only: the resolver must know this torch, and must not fetch another."""
    info = f"torch-{torch.version}.dist-info"
    requires = "".join(f"Requires-Dist: {line}\n" for line in torch.requires)
    members: dict[str, Any] = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {torch.version}\n{requires}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    members[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*members, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"torch-{torch.version}-py3-none-any.whl", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


if __name__ == "__main__":
    sys.exit(main())
