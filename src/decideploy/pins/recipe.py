"""Recipes: what a build is meant to be made from, written by hand."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from decideploy.errors import ConfigError, IntegrityError
from decideploy.pins.artifact import Artifact
from decideploy.pins.root import data_root

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
PythonVersion = Annotated[str, Field(pattern=r"^3\.\d+$")]


class FileModel(BaseModel):
    """Base of everything that is read from a recipe or a lock."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PinnedFile(FileModel):
    """One file, named by its bytes."""

    filename: str
    size_bytes: int = Field(gt=0)
    sha256: Sha256


class Upstream(FileModel):
    """The release that is patched."""

    distribution: str
    version: str
    wheel: PinnedFile
    sdist: PinnedFile | None = None

    def artifact(self, file: PinnedFile) -> Artifact:
        """Return ``file`` of this release as something that can be fetched."""
        return Artifact(
            name=self.distribution,
            version=self.version,
            filename=file.filename,
            size_bytes=file.size_bytes,
            sha256=file.sha256,
        )


class Output(FileModel):
    """The name and the local version that the patched wheel carries."""

    distribution: str
    version: Annotated[str, Field(pattern=r"\+.*\bdecideploy\.\d+$")]


class Requirements(FileModel):
    """How the requirement files are resolved."""

    pythons: tuple[PythonVersion, ...]
    platform: str
    exclude_newer: datetime
    exclude: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()

    def excludes(self, distribution: str) -> bool:
        """Whether the recipe leaves ``distribution`` out of what upstream asks for."""
        return canonicalize_name(distribution) in {canonicalize_name(name) for name in self.exclude}


class TorchPin(FileModel):
    """A torch build that the registry does not have, one wheel for each Python."""

    version: str
    requires: tuple[str, ...]
    sha256: Mapping[PythonVersion, Sha256]


class BundleChoice(FileModel):
    """What a bundle may leave out, each as shell-style patterns.

    ``from_host`` and ``unused_packages`` match names of locked distributions: those that come with a torch
    that is installed already, and those that this model never calls. ``unused_files`` match paths inside the
    wheel, for the lean one.
    """

    from_host: tuple[str, ...] = ()
    unused_packages: tuple[str, ...] = ()
    unused_files: tuple[str, ...] = ()

    @property
    def has_lean(self) -> bool:
        """Whether there is anything that a lean bundle leaves out."""
        return bool(self.unused_packages or self.unused_files)


class Recipe(FileModel):
    """The contents of ``build/recipes/<name>.toml``."""

    schema_version: Literal[1]
    name: str
    upstream: Upstream
    output: Output
    requirements: Requirements
    torch: TorchPin | None = None
    bundle: BundleChoice = BundleChoice()

    @model_validator(mode="after")
    def _torch_for_every_python(self) -> Recipe:
        if self.torch and set(self.torch.sha256) != set(self.requirements.pythons):
            raise ValueError("torch.sha256 must name exactly the versions of requirements.pythons")
        return self

    @property
    def wheel_artifact(self) -> Artifact:
        """The upstream wheel."""
        return self.upstream.artifact(self.upstream.wheel)


def recipe_names(root: Path | None = None) -> tuple[str, ...]:
    """Return the names of all recipes under ``root`` (default: :func:`data_root`), sorted."""
    folder = (root or data_root()) / "build" / "recipes"
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


def recipe_path(name: str, root: Path | None = None) -> Path:
    """Return the path of a recipe.

    Raises:
        ConfigError: there is no recipe of that name.
    """
    root = root or data_root()
    if name not in recipe_names(root):
        raise ConfigError(
            f"there is no recipe named {name!r}",
            where=str(root / "build" / "recipes"),
            next_step=f"name one of: {', '.join(recipe_names(root))}",
        )
    return root / "build" / "recipes" / f"{name}.toml"


def load_recipe(name: str, *, root: Path | None = None) -> Recipe:
    """Read ``build/recipes/<name>.toml``.

    Raises:
        ConfigError: no such recipe, or it is malformed; the key at fault is named.
        IntegrityError: a pinned file has no size or no sha256.
    """
    path = recipe_path(name, root)
    try:
        recipe = Recipe.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"not TOML in UTF-8: {error}",
            where=f"build/recipes/{name}.toml",
            next_step="correct the file, or restore it from the repository",
        ) from error
    except ValidationError as error:
        raise file_error(error, f"build/recipes/{name}.toml") from error
    if recipe.name != name:
        raise ConfigError(
            f"the recipe calls itself {recipe.name!r}",
            where=f"build/recipes/{name}.toml: name",
            next_step="give the file and its `name` the same name",
        )
    return recipe


def file_error(error: ValidationError, file: str) -> ConfigError | IntegrityError:
    """Turn what pydantic found into one error that names every key at fault.

    A missing or malformed digest is an :class:`IntegrityError`: nothing may be fetched without one.
    """
    faults = [(".".join(map(str, fault["loc"])), fault["msg"]) for fault in error.errors()]
    what = "; ".join(f"{key or 'document'}: {message}" for key, message in faults)
    where = ", ".join(f"{file}: {key}" if key else file for key, _ in faults)
    if any("sha256" in key or "size_bytes" in key for key, _ in faults):
        return IntegrityError(
            f"a pin is missing or malformed: {what}",
            where=where,
            next_step="write the full size and sha256, or regenerate with scripts/update_pins.py --write",
        )
    return ConfigError(what, where=where, next_step="correct the keys named above")
