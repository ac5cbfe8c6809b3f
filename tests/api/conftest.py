"""The encoder that every route test shares."""

import pytest
from decide_fakes import make_encoder

from decideploy.decide import PromptEncoder


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> PromptEncoder:
    return make_encoder(tmp_path_factory.mktemp("model"))
