from __future__ import annotations

from collections.abc import Iterator

import pytest
from control_plane import ControlPlane, control_plane
from modal_checkout import Checkout, make_checkout


@pytest.fixture(scope="session")
def shared_checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return make_checkout(tmp_path_factory.mktemp("modal-checkout"))


@pytest.fixture
def checkout(shared_checkout: Checkout) -> Iterator[Checkout]:
    """A checkout to configure; the shipped settings come back afterwards."""
    yield shared_checkout
    shared_checkout.configure()


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    with control_plane() as plane:
        yield plane
