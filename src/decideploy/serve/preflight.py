"""What costs nothing to find out before a model is fetched or read; ``serve`` and ``doctor`` share it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from decideploy.errors import ConfigError, Error
from decideploy.hardware.probe import is_writable


@contextmanager
def collected(faults: list[Error]) -> Iterator[None]:
    """Keep a fault for later, so that the next check runs too."""
    try:
        yield
    except Error as fault:
        faults.append(fault)


def check_state_folder(folder: Path) -> str:
    """That logs and caches can be written; ConfigError when they cannot."""
    if not is_writable(folder):
        raise ConfigError(
            "the state folder cannot be written",
            where=str(folder),
            next_step="set DECIDEPLOY_HOME to a writable folder",
        )
    return f"{folder} is writable"
