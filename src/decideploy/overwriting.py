"""Files that verbs write are replaced only when that was asked for."""

from __future__ import annotations

from pathlib import Path

from decideploy.errors import ConfigError


def check_absent(path: Path, *, force: bool) -> None:
    """Raise ConfigError when ``path`` exists, unless ``force``."""
    if path.exists() and not force:
        raise file_exists(path)


def file_exists(path: Path) -> ConfigError:
    """The error of a file that would be overwritten."""
    return ConfigError("the file exists", where=str(path), next_step="name another, or pass --force")
