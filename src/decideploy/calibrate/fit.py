"""The temperature that makes labelled answers likeliest.

With scores z and labels y, the mean negative log-likelihood of softmax(z / T) is convex in 1/T, and its slope
there, E[z] - z_y, rises with 1/T: the best temperature is where the slope changes its sign, found by
bisection. (C. Guo et al., "On Calibration of Modern Neural Networks", 2017, section 4.2.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from decideploy.decide.calibration import MAX_TEMPERATURE, MIN_TEMPERATURE

Floats: TypeAlias = NDArray[np.float64]
Labels: TypeAlias = NDArray[np.int64]

# Halves ln(100 / 0.01) to below 1e-12.
BISECTIONS: Final = 44


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """``temperature`` in [0.01, 100]; ``bound`` names the end at which the search stopped, if it did."""

    temperature: float
    bound: Literal["lowest", "highest"] | None


def probabilities_at(scores: Floats, temperature: float) -> Floats:
    """softmax(scores / temperature) by row: (n, k) to (n, k); -inf is an option that is not there."""
    scaled = (scores - scores.max(axis=1, keepdims=True)) / temperature
    weights = np.exp(scaled)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def slopes(scores: Floats, labels: Labels, temperature: float) -> Floats:
    """Derivative of each row's negative log-likelihood by 1/T: (n,)."""
    # Against -inf * 0 where a row has fewer options.
    finite = np.where(np.isfinite(scores), scores, 0.0)
    expected = (probabilities_at(scores, temperature) * finite).sum(axis=1)
    return np.asarray(expected - finite[np.arange(len(labels)), labels])


def fit_temperature(scores: Floats, labels: Labels) -> Fit:
    """The best temperature for ``scores`` (n, k) and ``labels`` (n,); n ≥ 1."""
    # First, because answers that are all alike fit as well at every temperature as at any other.
    if slopes(scores, labels, MAX_TEMPERATURE).mean() >= 0:
        return Fit(temperature=MAX_TEMPERATURE, bound="highest")
    if slopes(scores, labels, MIN_TEMPERATURE).mean() <= 0:
        return Fit(temperature=MIN_TEMPERATURE, bound="lowest")
    low, high = math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        # A positive slope asks for a smaller 1/T.
        if slopes(scores, labels, math.exp(middle)).mean() > 0:
            low = middle
        else:
            high = middle
    return Fit(temperature=math.exp((low + high) / 2), bound=None)
