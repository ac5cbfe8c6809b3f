"""Values computed by hand."""

from collections.abc import Sequence

import pytest

from decideploy.api.confidence import choice_confidence, expected_level, score_confidence


@pytest.mark.parametrize(
    ("probabilities", "confidence"),
    [
        ([1.0], 1.0),
        ([0.5, 0.5], 0.0),
        ([0.9, 0.1], 0.8),
        ([0.7, 0.2, 0.1], 0.55),
        ([0.1, 0.6, 0.1, 0.1, 0.1], 0.5),
        ([0.25] * 4, 0.0),
        ([0.0, 1.0, 0.0], 1.0),
    ],
)
def test_choice(probabilities: Sequence[float], confidence: float) -> None:
    assert choice_confidence(probabilities) == pytest.approx(confidence, abs=1e-12)


@pytest.mark.parametrize(
    ("probabilities", "confidence", "level"),
    [
        ([1.0], 1.0, 0.0),
        ([0.0, 0.0, 1.0], 1.0, 2.0),
        # E|i-2| = 0.4, the mean distance from the middle 2/3.
        ([0.1, 0.2, 0.7], 0.4, 1.6),
        # E|i-0| = 0.5 of 1.5.
        ([0.5, 0.5, 0.0, 0.0, 0.0, 0.0], 2 / 3, 0.5),
        # E|i-1| = 0.2·1 + 0.1·2 = 0.4 of 1.
        ([0.1, 0.7, 0.1, 0.1], 0.6, 1.2),
        # E|i-0| = 2.5, more than 1.5.
        ([0.5, 0.0, 0.0, 0.0, 0.0, 0.5], 0.0, 2.5),
        ([0.5, 0.5], 0.0, 0.5),
    ],
)
def test_score(probabilities: Sequence[float], confidence: float, level: float) -> None:
    assert score_confidence(probabilities) == pytest.approx(confidence, abs=1e-12)
    assert expected_level(probabilities) == pytest.approx(level, abs=1e-12)
