"""A base image of this machine's Debian mirror, and what is built on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from container_tools import BASE, ROOT, Containers, missing


@pytest.fixture(scope="session")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """Tools over a storage that holds the base."""
    if reason := missing():
        pytest.fail(reason)
    containers = Containers(folder=tmp_path_factory.mktemp("containers"))
    containers.run(ROOT / "scripts" / "local_base", BASE, "g++", "libnuma1", "python3-dev")
    yield containers
    containers.remove()
