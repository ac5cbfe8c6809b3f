"""One number for how sure a distribution is, as public servers of this family compute it.

All functions take probabilities that sum to 1, at least one of them, and give a number from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence


def choice_confidence(probabilities: Sequence[float]) -> float:
    """``(n·pmax - 1)/(n - 1)``: 0 for the uniform distribution, 1 for certainty; 1 for a single option."""
    count = len(probabilities)
    if count == 1:
        return 1.0
    return _within_unit((count * max(probabilities) - 1) / (count - 1))


def score_confidence(probabilities: Sequence[float]) -> float:
    """``1 - E|i - mode| / mean|i - (n-1)/2|`` over the levels ``i``; 1 for a single level.

    Mass at both ends makes the quotient larger than 1; the answer is then 0.
    """
    count = len(probabilities)
    if count == 1:
        return 1.0
    mode = probabilities.index(max(probabilities))
    spread = sum(probability * abs(level - mode) for level, probability in enumerate(probabilities))
    uniform = sum(abs(level - (count - 1) / 2) for level in range(count)) / count
    return _within_unit(1 - spread / uniform)


def expected_level(probabilities: Sequence[float]) -> float:
    """The mean of the levels 0, 1, …, each weighted with its probability."""
    return sum(level * probability for level, probability in enumerate(probabilities))


def _within_unit(value: float) -> float:
    return min(1.0, max(0.0, value))
