"""The demo model under the reference engine: its decisions must be worth comparing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from decisions import Decision, bare_prompt, random_decisions

from decideploy.decide import PromptEncoder

pytestmark = [
    pytest.mark.integration,
    # Raised while transformers, PEFT and torch load each other; nothing this package does.
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
]
COUNT = 300


class Reader:
    def __init__(self, model: Path) -> None:
        from reference import Reference

        self.reference = Reference(model)
        self.encoder = PromptEncoder.from_model(model)

    def arguments(self, decisions: Sequence[Decision]) -> tuple[list[list[int]], list[str], list[int]]:
        prompts = [self.encoder.encode(bare_prompt(decision)) for decision in decisions]
        return prompts, [decision.kind for decision in decisions], [len(d.options) for d in decisions]

    def read(self, decisions: Sequence[Decision]) -> list[np.ndarray]:
        return self.reference.probabilities(*self.arguments(decisions))


@pytest.fixture(scope="module")
def reader(demo_model: Path) -> Reader:
    return Reader(demo_model)


@pytest.fixture(scope="module")
def answers(reader: Reader) -> list[np.ndarray]:
    return reader.read(random_decisions(COUNT, seed=1))


def test_answers_are_neither_flat_nor_certain(answers: list[np.ndarray]) -> None:
    lower, upper = np.percentile([answer.max() for answer in answers], [25, 75])
    assert lower < 0.6
    assert upper > 0.85


def test_adapter_changes_at_least_half_of_the_choices(reader: Reader, answers: list[np.ndarray]) -> None:
    base = reader.reference.base_probabilities(*reader.arguments(random_decisions(COUNT, seed=1)))
    changed = [one.argmax() != other.argmax() for one, other in zip(answers, base, strict=True)]
    assert np.mean(changed) >= 0.5


def test_every_slot_of_false_true_and_scores_wins_somewhere(answers: list[np.ndarray]) -> None:
    for first, slots in ((0, 2), (1, 6)):
        assert {int(answer.argmax()) for answer in answers[first::3]} == set(range(slots))


@pytest.mark.parametrize("field", ["state", "question", "options"])
def test_one_word_changes_probabilities(reader: Reader, field: str) -> None:
    decisions = random_decisions(60, seed=1)[2::3]
    changed = [replace(decision, **{field: _other(getattr(decision, field))}) for decision in decisions]
    pairs = zip(reader.read(decisions), reader.read(changed), strict=True)
    assert np.median([np.abs(one - other).max() for one, other in pairs]) > 0.02


def _other(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    if isinstance(value, tuple):
        return ("yellow window", *value[1:])
    words = value.split(" ")
    words[len(words) // 2] = "window"
    return " ".join(words)
