"""Where recipes, locks and patches lie."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
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


def home_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder for all that decideploy keeps between runs.

    ``$DECIDEPLOY_HOME``, else ``decideploy`` inside ``$XDG_CACHE_HOME`` or ``~/.cache``; inside the system's
    temporary folder for a user without a home.
    """
    environ = os.environ if environ is None else environ
    if home := environ.get("DECIDEPLOY_HOME"):
        return Path(home).absolute()
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or tempfile.gettempdir()) / ".cache"
    return Path(cache).absolute() / "decideploy"


def cache_folder() -> Path:
    """Return the folder where verified downloads are kept."""
    return home_folder() / "artifacts"
