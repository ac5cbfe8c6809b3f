"""The manifest of a bundle: its parts, the files inside them, and what it is for.

``install.py`` reads the same document on a host that has nothing but Python.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from decideploy.errors import ConfigError, IntegrityError
from decideploy.pins.recipe import FileModel, PythonVersion, Sha256, file_error

MANIFEST = "manifest.json"
PARTS = "bundle.tar."


class Part(FileModel):
    """One part; the parts in order are one tar archive."""

    name: str
    size_bytes: int = Field(gt=0)
    sha256: Sha256


class Member(FileModel):
    """One file of the archive; ``from_host`` is whether a host's own torch brings it."""

    path: str
    size_bytes: int = Field(ge=0)
    sha256: Sha256
    from_host: bool = False


class BundledModel(FileModel):
    """The model that lies below ``model/``; ``revision`` is the hub's commit where there is one."""

    name: str
    revision: str | None = None


class BundleManifest(FileModel):
    """The contents of ``manifest.json``.

    ``host_torch`` is whether torch and what comes with it were left out, ``without`` the names of other
    packages that were. ``platform`` is as in recipes: ``x86_64-manylinux_2_31``.
    """

    schema_version: Literal[1] = 1
    recipe: str
    python: PythonVersion
    platform: str
    decideploy: str
    vllm: str
    lean: bool
    host_torch: bool
    without: tuple[str, ...] = ()
    model: BundledModel | None = None
    parts: tuple[Part, ...]
    files: tuple[Member, ...]

    def write(self, folder: Path) -> Path:
        """Write the manifest into ``folder``; equal manifests give equal bytes."""
        path = folder / MANIFEST
        path.write_text(self.model_dump_json(indent=1) + "\n", "utf-8")
        return path


def read_manifest(folder: Path) -> BundleManifest:
    """Return the manifest of the bundle in ``folder``.

    Raises:
        ConfigError: there is none, or it is malformed; keys at fault are named.
        IntegrityError: a digest or a size in it is missing or malformed.
    """
    path = folder / MANIFEST
    try:
        return BundleManifest.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(
            "the folder holds no bundle", where=str(path), next_step="name a folder of `decideploy bundle`"
        ) from error
    except ValidationError as error:
        fault: ConfigError | IntegrityError = file_error(error, str(path))
        raise fault from error
