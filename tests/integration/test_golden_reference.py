"""The golden decisions that the demo model ships are the reference engine's."""

import pytest
from record_golden import record

from decideploy.serve.golden import Golden, distance

pytestmark = [
    pytest.mark.integration,
    # Raised while transformers, PEFT and torch load each other; nothing this package does.
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
]
# Rounding, and what another order of float32 sums does.
NOISE = 1e-3


def test_shipped_golden_decisions_are_the_references(demo_model):
    shipped, read = Golden.read(demo_model / "golden.json"), record(demo_model)
    assert shipped.model_sha256 == read.model_sha256
    assert [one.request for one in shipped.decisions] == [one.request for one in read.decisions]
    for name in ("probabilities", "base_probabilities"):
        sides = [[getattr(one, name) for one in golden.decisions] for golden in (read, shipped)]
        assert distance(*sides).largest < NOISE
