"""Stage what vLLM is compiled from: the pinned sources with the series, and hashed wheels to build with."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from decideploy.build import apply_to_tree, build, read_series
from decideploy.build.wheelhouse import link_wheels, stage_wheels
from decideploy.containers.images import load_images
from decideploy.errors import ConfigError, IntegrityError
from decideploy.pins import Recipe, cache_folder, check_lock, fetch, home_folder, load_lock, load_recipe

_RECIPE: Final = "cuda"
_TOOLS: Final = "source-requirements.txt"
# The first releases of Python 3.11 have no filters; the archive is the one that the lock names.
_FILTER: Final[dict[str, Any]] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def stage_source_tree(folder: Path, *, root: Path, wheelhouses: Sequence[Path] = ()) -> tuple[str, ...]:
    """Unpack the source archive of the CUDA recipe into ``folder``, apply the series, return what it changed.

    Raises:
        ConfigError: ``folder`` holds something, or the recipe names no source archive.
        IntegrityError: the lock is stale, or the archive is not to be had or is another one.
        PatchError: the series does not apply to the sources exactly.
    """
    recipe = _checked_recipe(root)
    if recipe.upstream.sdist is None:
        raise ConfigError(
            "the recipe names no source archive",
            where=f"build/recipes/{_RECIPE}.toml: upstream.sdist",
            next_step="add the archive's name, size and sha256",
        )
    artifact = recipe.upstream.artifact(recipe.upstream.sdist)
    archive = fetch(artifact, cache_folder(), wheelhouses=wheelhouses)
    _unpack(archive, folder)
    return apply_to_tree(read_series(root), folder)


def stage_source(folder: Path, *, root: Path, wheelhouses: Sequence[Path] = ()) -> None:
    """Stage the context of ``build/source.Containerfile``: sources, wheels to build with, the released wheel.

    Raises what :func:`stage_source_tree` and :func:`stage_wheels` do.
    """
    stage_source_tree(folder / "vllm", root=root, wheelhouses=wheelhouses)
    recipe, python = load_recipe(_RECIPE, root=root), load_images(root).bases["cuda"].python
    locked = root / "build" / "locks" / load_lock(_RECIPE, root=root).requirement_file(python).filename
    for name, source in {"requirements.txt": locked, "tools.txt": root / "build" / _TOOLS}.items():
        shutil.copyfile(source, folder / name)
    wheels = stage_wheels(
        [locked, root / "build" / _TOOLS],
        home_folder() / "wheelhouse" / locked.stem,
        python=python,
        platform=recipe.requirements.platform,
        wheelhouses=wheelhouses,
    )
    link_wheels(wheels, folder / "wheels")
    released = build(_RECIPE, home_folder() / "dist", root=root, wheelhouses=wheelhouses).wheel
    shutil.copyfile(released, folder / "released.whl")
    shutil.copyfile(root / "build" / "source.Containerfile", folder / "Containerfile")
    shutil.copy(root / "build" / "apt-install", folder)


def _checked_recipe(root: Path) -> Recipe:
    recipe = load_recipe(_RECIPE, root=root)
    check_lock(recipe, load_lock(_RECIPE, root=root), root=root)
    return recipe


def _unpack(archive: Path, folder: Path) -> None:
    """The archive's one folder becomes ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError("the folder is not empty", where=str(folder), next_step="name an empty folder")
    with tarfile.open(archive) as sources:
        top = {member.name.split("/")[0] for member in sources.getmembers()}
        if len(top) != 1:
            raise IntegrityError("the source archive has more than one folder", where=archive.name)
        sources.extractall(folder, **_FILTER)
    (unpacked,) = folder.iterdir()
    for path in unpacked.iterdir():
        path.rename(folder / path.name)
    unpacked.rmdir()
