"""What costs nothing to find out before a model is fetched or read; ``serve`` and ``doctor`` share it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from decideploy.errors import ConfigError, Error
from decideploy.hardware.probe import is_writable

# What an engine's kernels are linked with and no Python package brings, by recipe: without it they are not
# loaded, and the engine fails only at its first step.
_LIBRARIES = {"cpu": {"libnuma.so.1": "libnuma1 on Debian and Ubuntu, numactl-libs on Fedora"}}


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


def check_libraries(recipe: str) -> None:
    """That the host has the libraries which the kernels of ``recipe`` load; ConfigError when it has not."""
    for library, package in _LIBRARIES.get(recipe, {}).items():
        try:
            ctypes.CDLL(library)
        except OSError as error:
            raise ConfigError(
                f"the engine's kernels cannot be loaded: {error}",
                where=library,
                next_step=f"install the system's package: {package}",
            ) from error
