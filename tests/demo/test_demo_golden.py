from __future__ import annotations

from pathlib import Path

from decideploy.artifacts.digest import model_digest
from decideploy.demo import demo_model_name
from decideploy.serve.golden import Golden, golden_of
from decideploy.serve.questions import golden_questions


def test_the_model_ships_decisions_of_its_own_digest(demo_model: Path) -> None:
    path = golden_of(demo_model)
    assert path is not None
    golden = Golden.read(path)
    # The model's bytes are the same on every machine: a mismatch means that record_golden.py is due.
    assert golden.model_sha256 == model_digest(demo_model)
    # A folder written by another release must not be taken for this one's.
    assert demo_model_name() == f"demo-model-{model_digest(demo_model)[:8]}"
    assert [decision.request for decision in golden.decisions] == list(golden_questions())
    assert all(decision.base_probabilities is not None for decision in golden.decisions)


def test_the_variant_that_no_reference_reads_ships_none(demo_model_nvfp4: Path) -> None:
    assert golden_of(demo_model_nvfp4) is None
