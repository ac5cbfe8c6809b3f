"""Where recipes, locks and patches lie."""

from __future__ import annotations

import os
from pathlib import Path

from decideploy.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parents[1]


def data_root() -> Path:
    """Return the folder that holds ``build/`` and ``patches/``.

    In a checkout that is the checkout itself, in an installed wheel the packaged copy.

    Raises:
        ConfigError: the installation holds neither.
    """
    candidates = (_PACKAGE.parents[1], _PACKAGE / "_data")
    for candidate in candidates:
        if (candidate / "build" / "recipes").is_dir() and (candidate / "patches").is_dir():
            return candidate
    raise ConfigError(
        "recipes and patches are missing from this installation",
        where=", ".join(str(candidate) for candidate in candidates),
        next_step="install decideploy again from its wheel or from a full checkout",
    )


def home_folder() -> Path:
    """Return the folder for all that decideploy keeps between runs.

    ``$DECIDEPLOY_HOME``, else ``decideploy`` inside ``$XDG_CACHE_HOME`` or ``~/.cache``.
    """
    if home := os.environ.get("DECIDEPLOY_HOME"):
        return Path(home)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "decideploy"


def cache_folder() -> Path:
    """Return the folder where verified downloads are kept."""
    return home_folder() / "artifacts"
