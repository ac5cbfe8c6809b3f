from __future__ import annotations

import pytest
from modal_checkout import Checkout, make_checkout


@pytest.fixture(scope="session")
def shared_checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return make_checkout(tmp_path_factory.mktemp("modal-checkout"))
