"""Targets of ``build/Containerfile`` and the bases they stand on; the pins are ``build/images.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError

from decideploy.errors import ConfigError
from decideploy.pins.recipe import FileModel, PythonVersion, file_error

Flavour = Literal["cpu", "cuda"]

IMAGES_FILE: Final = Path("build") / "images.toml"
TARGETS: Final[Mapping[str, Flavour]] = MappingProxyType(
    {"cpu": "cpu", "cuda": "cuda", "ci": "cpu", "verify": "cpu"}
)
"""Targets, and the flavour of each: the name of its base and of the recipe whose lock it installs."""

PinnedImage = Annotated[str, Field(pattern=r"^[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}$")]


class BaseImage(FileModel):
    """An image by digest, and the Python that it has or that its distribution gives it."""

    image: PinnedImage
    python: PythonVersion


class Images(FileModel):
    """The contents of ``build/images.toml``."""

    schema_version: Literal[1]
    bases: Mapping[Flavour, BaseImage]


def load_images(root: Path) -> Images:
    """Read ``build/images.toml`` below ``root``.

    Raises:
        ConfigError: it is missing or malformed; every key at fault is named.
    """
    where = str(IMAGES_FILE)
    try:
        return Images.model_validate(tomllib.loads((root / IMAGES_FILE).read_text("utf-8")))
    except FileNotFoundError as error:
        raise ConfigError(
            "the pins of the base images are missing", where=where, next_step="work in a checkout"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not TOML in UTF-8: {error}", where=where) from error
    except ValidationError as error:
        raise file_error(error, where) from error
