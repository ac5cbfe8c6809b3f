"""Stage the folder that an image is built from: every input of the build, each fetched by its digest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from decideploy import __version__
from decideploy.build import build
from decideploy.build.project import ask_git, export_checkout, project_wheel
from decideploy.build.wheelhouse import link_wheels, required_names, select_requirements, stage_wheels
from decideploy.containers.images import TARGETS, BaseImage, load_images
from decideploy.errors import ConfigError
from decideploy.pins import Lock, Recipe, check_lock, home_folder, load_lock, load_recipe
from decideploy.pins.lock import file_sha256

_BUILD_FILES = ("Containerfile", "docker-bake.hcl", "apt-install")
_OVERRIDE = "docker-bake.override.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageContext:
    """A staged folder, the target that it is for, and the build arguments that belong to its files."""

    folder: Path
    target: str
    arguments: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Inputs:
    root: Path
    folder: Path
    recipe: Recipe
    lock: Lock
    base: BaseImage
    wheelhouses: Sequence[Path]

    @property
    def requirements(self) -> Path:
        return self.root / "build" / "locks" / self.lock.requirement_file(self.base.python).filename

    @property
    def development(self) -> Path:
        return self.requirements.with_name(self.requirements.name.replace(self.recipe.name, "dev", 1))


def stage_context(
    target: str, folder: Path, *, root: Path, base: str = "", wheelhouses: Sequence[Path] = ()
) -> ImageContext:
    """Stage ``target`` of the checkout ``root`` into ``folder``, which is made anew.

    ``base`` is an image to stand on in place of the pinned one. ``wheelhouses`` are folders that are searched
    for wheels first; what is fetched is kept in :func:`home_folder` for the next time.

    Raises:
        ConfigError: no such target, ``root`` is no git checkout, or ``folder`` holds something else.
        IntegrityError: a lock is stale, or a file is not to be had or is not what the lock names.
        PatchError: the series does not apply.
    """
    if target not in TARGETS:
        raise ConfigError(f"there is no target {target!r}", next_step=f"name one of: {', '.join(TARGETS)}")
    flavour = TARGETS[target]
    recipe, lock = load_recipe(flavour, root=root), load_lock(flavour, root=root)
    check_lock(recipe, lock, root=root)
    _empty(folder)
    inputs = _Inputs(
        root=root,
        folder=folder,
        recipe=recipe,
        lock=lock,
        base=load_images(root).bases[flavour],
        wheelhouses=wheelhouses,
    )
    for name in _BUILD_FILES:
        shutil.copy(root / "build" / name, folder)
    project = _stage_project(inputs, keep_checkout=target == "ci")
    if target == "verify":
        _stage_core(inputs, project)
    else:
        _stage_engine(inputs, development=target == "ci")
    arguments = _arguments(inputs, base)
    (folder / _OVERRIDE).write_text(_override(arguments), "utf-8")
    return ImageContext(folder=folder, target=target, arguments=arguments)


def _empty(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()) and not (folder / _OVERRIDE).is_file():
        raise ConfigError(
            "the folder holds something that was not staged here",
            where=str(folder),
            next_step="name an empty folder, or one of an earlier run",
        )
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "wheels").mkdir(parents=True)


def _stage_project(inputs: _Inputs, *, keep_checkout: bool) -> Path:
    """Build this project's wheel from all that git does not ignore, and from nothing else."""
    if keep_checkout:
        export_checkout(inputs.root, inputs.folder / "checkout")
    staged = project_wheel(inputs.root, inputs.folder / "wheels")
    _pin(inputs.folder / "project.txt", "decideploy", __version__, staged)
    return staged


def _stage_core(inputs: _Inputs, project: Path) -> None:
    """What `decideploy verify` needs: the project's own requirements, as the engine's lock pins them."""
    target = {"python": inputs.base.python, "platform": inputs.recipe.requirements.platform}
    names = required_names(project, inputs.requirements, wheelhouses=inputs.wheelhouses, **target)
    core = inputs.folder / "core.txt"
    core.write_text(select_requirements(inputs.requirements.read_text("utf-8"), names), "utf-8")
    _stage_locked(inputs, [core])


def _stage_engine(inputs: _Inputs, *, development: bool) -> None:
    files = {"requirements.txt": inputs.requirements}
    if development:
        files["development.txt"] = inputs.development
    for name, source in files.items():
        shutil.copyfile(source, inputs.folder / name)
    _stage_locked(inputs, list(files.values()))
    dist = home_folder() / "dist"
    result = build(inputs.recipe.name, dist, root=inputs.root, wheelhouses=inputs.wheelhouses)
    link_wheels([result.wheel], inputs.folder / "wheels")
    output = inputs.recipe.output
    _pin(inputs.folder / "engine.txt", output.distribution, output.version, result.wheel)


def _stage_locked(inputs: _Inputs, requirements: Sequence[Path]) -> None:
    kept = home_folder() / "wheelhouse" / inputs.requirements.stem
    wheels = stage_wheels(
        requirements,
        kept,
        python=inputs.base.python,
        platform=inputs.recipe.requirements.platform,
        wheelhouses=inputs.wheelhouses,
    )
    link_wheels(wheels, inputs.folder / "wheels")


def _pin(path: Path, name: str, version: str, wheel: Path) -> None:
    path.write_text(f"{name}=={version} --hash=sha256:{file_sha256(wheel)}\n", "utf-8")


def _arguments(inputs: _Inputs, base: str) -> dict[str, str]:
    flavour = inputs.recipe.name
    lock = inputs.root / "build" / "locks" / f"{flavour}.json"
    return {
        "FLAVOUR": flavour,
        f"{flavour.upper()}_BASE": base or inputs.base.image,
        "SOURCE": _source(inputs.root),
        "REVISION": _revision(inputs.root),
        "VERSION": __version__,
        "LOCK_SHA256": file_sha256(lock),
        "SERIES_SHA256": inputs.lock.series.sha256,
    }


def _source(root: Path) -> str:
    """The repository's address; empty for one that only this machine can follow."""
    remotes = ask_git(root, "config", "--get-regexp", r"^remote\.origin\.url$", allowed=(0, 1))
    address = remotes.partition(" ")[2].strip()
    return address if address.startswith("https://") and "@" not in address else ""


def _revision(root: Path) -> str:
    """The commit; that something was changed on top of it is told."""
    changed = ask_git(root, "status", "--porcelain")
    return ask_git(root, "rev-parse", "HEAD").strip() + ("+changed" if changed else "")


def _override(arguments: Mapping[str, str]) -> str:
    variables = {name: {"default": value} for name, value in arguments.items()}
    return json.dumps({"variable": variables}, indent=2) + "\n"
