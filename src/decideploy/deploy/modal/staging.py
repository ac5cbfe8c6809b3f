"""What the deploying machine does before Modal is asked for anything."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from decideploy.errors import ConfigError
from decideploy.pins import check_requirements, load_lock
from decideploy.pins.lock import file_sha256

RECIPE: Final = "cuda"
PYTHON: Final = "3.12"

_CONNECT_S: Final = 5.0
# The folder of scripts/setup, then the default of `decideploy build --out`.
_WHEEL_FOLDERS: Final = (Path(".cache") / "dist", Path("dist"))
_PROXY_VARIABLES: Final = ("MODAL_API_PROXY", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def lock_filename() -> str:
    """The name of the patched wheel that the lock describes."""
    return load_lock(RECIPE).wheel.filename


def requirement_file(root: Path) -> Path:
    """The hashed requirements of the engine for the image's Python."""
    return root / "build" / "locks" / load_lock(RECIPE).requirement_file(PYTHON).filename


def uv_version(root: Path) -> str:
    """The release of uv that every other installation of this checkout uses."""
    return check_requirements(root / "build" / "locks" / "bootstrap.txt")["uv"]


def staged_wheel(root: Path) -> Path:
    """The patched wheel below ``root``, built when it is not there; its bytes are those of the lock.

    Raises what ``decideploy build`` raises.
    """
    wheel = load_lock(RECIPE).wheel
    for folder in _WHEEL_FOLDERS:
        path = root / folder / wheel.filename
        if path.is_file() and file_sha256(path) == wheel.sha256:
            return path
    from decideploy.build import build  # noqa: PLC0415

    print(f"building {wheel.filename} for the image", flush=True)
    return build(RECIPE, root / _WHEEL_FOLDERS[0]).wheel


def check_control_plane(url: str, *, timeout_s: float = _CONNECT_S) -> None:
    """Connect to Modal's API and let go; ConfigError when it cannot be reached.

    Modal's client retries for about a minute before it says so. Behind a proxy nothing is checked: only the
    client knows the way through it.
    """
    if any(os.environ.get(name) for name in _PROXY_VARIABLES):
        return
    parts = urlsplit(url)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=timeout_s).close()
    except OSError as error:
        raise ConfigError(
            f"Modal's API at {parts.hostname}:{port} cannot be reached: {error}",
            where="server_url (MODAL_SERVER_URL, or the profile in ~/.modal.toml)",
            next_step="check the network and the address, then deploy again",
        ) from error
