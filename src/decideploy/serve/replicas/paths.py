"""Unix sockets in folders of any depth."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """``path`` as an address of a Unix socket, which may have 107 bytes at the most; its folder exists."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def private_folder(path: Path) -> Path:
    """``path``, made, and open to its owner alone: whoever can write there commands the server."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path
