"""What goes into a bundle: wheels by hash, uv to install them, and a model."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.utils import parse_wheel_filename

from decideploy.build import build, leave_out
from decideploy.build.project import project_wheel
from decideploy.build.wheelhouse import select_requirements, stage_wheels
from decideploy.errors import ConfigError, IntegrityError
from decideploy.pins import Lock, Recipe, check_requirements, home_folder

WHEELS = "wheels"
MODEL = "model"
TOOLS = "tools"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheels:
    """The wheels of a bundle by role; ``from_host`` are names that a host's torch brings."""

    engine: Path
    project: Path
    dependencies: tuple[Path, ...]
    installer: Path
    from_host: frozenset[str]

    def is_from_host(self, wheel: Path) -> bool:
        """Whether a host with a torch of its own does without ``wheel``."""
        return _name(wheel) in self.from_host


def gather_wheels(
    recipe: Recipe,
    lock: Lock,
    *,
    python: str,
    leave: Collection[str],
    lean: bool,
    root: Path,
    scratch: Path,
    wheelhouses: Sequence[Path],
) -> Wheels:
    """Build or fetch every wheel for ``python``, without the locked packages named in ``leave``.

    What is fetched is kept in :func:`home_folder`; what is made for this bundle lies in ``scratch``.

    Raises:
        IntegrityError: a lock is stale, or a wheel is not to be had or is not what the lock names.
        PatchError: the series does not apply.
        ConfigError: ``root`` is no git checkout, or this Python lacks pip or hatchling.
    """
    locks = root / "build" / "locks"
    requirements = locks / lock.requirement_file(python).filename
    names = check_requirements(requirements)
    kept = home_folder() / "wheelhouse" / requirements.stem
    target = (python, recipe.requirements.platform)
    dependencies = _stage(requirements, names.keys() - leave, kept, target, wheelhouses)
    (installer,) = _stage(locks / "bootstrap.txt", {"uv"}, kept, target, wheelhouses)
    engine = build(recipe.name, home_folder() / "dist", root=root, wheelhouses=wheelhouses).wheel
    return Wheels(
        engine=_lean(engine, lock, recipe, scratch) if lean else engine,
        project=project_wheel(root, scratch),
        dependencies=dependencies,
        installer=installer,
        from_host=matching(names, recipe.bundle.from_host),
    )


def matching(names: Iterable[str], patterns: Sequence[str]) -> frozenset[str]:
    """The names that match one of the shell-style ``patterns``."""
    return frozenset(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))


def left_out(
    recipe: Recipe, lock: Lock, *, python: str, lean: bool, host_torch: bool, root: Path
) -> set[str]:
    """Names of the locked packages that the choices of a bundle leave out."""
    requirements = root / "build" / "locks" / lock.requirement_file(python).filename
    names = check_requirements(requirements)
    unused = matching(names, recipe.bundle.unused_packages) if lean else frozenset()
    return set(unused | (matching(names, recipe.bundle.from_host) if host_torch else frozenset()))


def check_names(recipe: Recipe, lock: Lock, *, python: str, without: Sequence[str], root: Path) -> None:
    """Raise ConfigError when ``without`` names packages that the lock does not have; all are told."""
    requirements = root / "build" / "locks" / lock.requirement_file(python).filename
    unknown = sorted(set(without) - check_requirements(requirements).keys())
    if unknown:
        raise ConfigError(
            f"the lock of {recipe.name} for Python {python} has no {', '.join(unknown)}",
            where="--without",
            next_step=f"name packages as {requirements.name} does",
        )


def _stage(
    requirements: Path,
    names: Collection[str],
    kept: Path,
    target: tuple[str, str],
    wheelhouses: Sequence[Path],
) -> tuple[Path, ...]:
    python, platform = target
    with tempfile.TemporaryDirectory(prefix="decideploy-stage-") as folder:
        wanted = Path(folder) / requirements.name
        wanted.write_text(select_requirements(requirements.read_text("utf-8"), names), "utf-8")
        return stage_wheels([wanted], kept, python=python, platform=platform, wheelhouses=wheelhouses)


def _lean(engine: Path, lock: Lock, recipe: Recipe, scratch: Path) -> Path:
    packed = leave_out(engine, scratch / engine.name, recipe.bundle.unused_files)
    if lock.lean is None or packed.sha256 != lock.lean.sha256:
        raise IntegrityError(
            "the lean wheel is not the one in the lock",
            where=f"build/locks/{recipe.name}.json: lean.sha256",
            expected=lock.lean.sha256 if lock.lean else "",
            actual=packed.sha256,
            next_step="run scripts/update_pins.py --only wheel, read the difference, then add --write",
        )
    return packed.path


def _name(wheel: Path) -> str:
    return str(parse_wheel_filename(wheel.name)[0])
